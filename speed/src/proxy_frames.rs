//! Frames of writes: what a proxy does with those that came together (dlspark/serving/protocol/write_runs.py is the
//! twin, docs/reference/serving.md#request-frames has the layout).
//!
//! The frame of a write of one record of which nothing is asked but to be stored, without its length:
//!
//! | bytes | field |
//! |---|---|
//! | 01 02, u16 | version, a write, flags: 1 where the checksum counts |
//! | u64 | the request's number |
//! | u32, u32 | checksum, timeout in ms |
//! | u16, so many bytes | the stream's name |
//! | u32, u32, the rest | one payload, its length, the payload |

use crc_fast::{CrcAlgorithm, Digest};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffers::Input;

/// The flag of a write whose checksum counts.
const CHECKSUM: u16 = 1;

/// A write as it lies in its frame.
struct Write<'a> {
    number: u64,
    checksum: Option<u32>,
    stream: &'a [u8],
    payload: &'a [u8],
}

/// Read a write of one record.
fn write(frame: &[u8]) -> Option<Write<'_>> {
    let rest = frame.strip_prefix(&[1, 2])?;
    let (flags, rest) = rest.split_first_chunk::<2>()?;
    let flags = u16::from_be_bytes(*flags);
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let (_timeout, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (stream, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (size, payload) = rest.split_first_chunk::<4>()?;
    if flags & !CHECKSUM != 0 || u32::from_be_bytes(*count) != 1 {
        return None;
    }
    if u64::from(u32::from_be_bytes(*size)) != payload.len() as u64 {
        return None;
    }
    let checksum = (flags != 0).then_some(u32::from_be_bytes(*checksum));
    Some(Write { number: u64::from_be_bytes(*number), checksum, stream, payload })
}

/// Whether the checksum of a write is the one that came with it, if one did.
fn is_summed(write: &Write<'_>) -> bool {
    let Some(checksum) = write.checksum else { return true };
    let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
    digest.update(write.stream);
    digest.update(write.payload);
    digest.finalize() == u64::from(checksum)
}

/// The stream's name, numbers, payloads, their bytes, and whether no checksum is wrong.
type Run<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>, usize, bool);

/// Take the writes that `frames` begin with, as long as they are of one record each and on one stream. None where not
/// even the first one is.
#[pyfunction]
pub fn take_writes<'py>(py: Python<'py>, frames: Vec<Input<'py>>) -> PyResult<Option<Run<'py>>> {
    let mut taken: Vec<Write<'_>> = Vec::with_capacity(frames.len());
    for frame in &frames {
        let Some(found) = write(frame.bytes()) else { break };
        if taken.first().is_some_and(|first| first.stream != found.stream) {
            break;
        }
        taken.push(found);
    }
    let Some(first) = taken.first() else { return Ok(None) };
    let stream = PyBytes::new(py, first.stream);
    let numbers = PyList::new(py, taken.iter().map(|one| one.number))?;
    let payloads = PyList::new(py, taken.iter().map(|one| PyBytes::new(py, one.payload)))?;
    let size = taken.iter().map(|one| one.payload.len()).sum();
    Ok(Some((stream, numbers, payloads, size, taken.iter().all(is_summed))))
}
