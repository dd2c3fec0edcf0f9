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

/// The frame with this number, None behind the last one or where it has more than `longest` bytes.
fn frame<'py>(frames: &Bound<'py, PyList>, at: usize, longest: usize) -> PyResult<Option<Input<'py>>> {
    if at >= frames.len() {
        return Ok(None);
    }
    let found = Input::take(&frames.get_item(at)?)?;
    Ok(Some(found).filter(|one| one.bytes().len() <= longest))
}

/// Take the writes that stand in `frames` from number `first` on, as long as they are of one record each, on one stream
/// and in frames of at most `longest` bytes. None where they are fewer than two. What stands behind them is not looked
/// at, but for one frame.
#[pyfunction]
pub fn take_writes<'py>(
    py: Python<'py>,
    frames: &Bound<'py, PyList>,
    first: usize,
    longest: usize,
) -> PyResult<Option<Run<'py>>> {
    let Some(opened) = frame(frames, first, longest)? else { return Ok(None) };
    let Some(start) = write(opened.bytes()) else { return Ok(None) };
    let (mut numbers, mut payloads, mut size, mut summed) = (Vec::new(), Vec::new(), 0, true);
    // Bytes do not have the collector run: no code of Python's does while a frame is read.
    let mut add = |one: &Write<'_>| {
        numbers.push(one.number);
        payloads.push(PyBytes::new(py, one.payload));
        size += one.payload.len();
        summed &= is_summed(one);
    };
    let mut at = first + 1;
    while let Some(next) = frame(frames, at, longest)? {
        let Some(found) = write(next.bytes()).filter(|one| one.stream == start.stream) else { break };
        if at == first + 1 {
            add(&start);
        }
        add(&found);
        at += 1;
    }
    if numbers.is_empty() {
        return Ok(None);
    }
    let stream = PyBytes::new(py, start.stream);
    drop(opened);
    Ok(Some((stream, PyList::new(py, numbers)?, PyList::new(py, payloads)?, size, summed)))
}
