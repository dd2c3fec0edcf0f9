//! Frames of adds: what a storage node does with those that came together (storage_node/bookie/store/runs.py is the
//! twin, storage_node/protocol/layouts.py has the layout of an add, storage_node/bookie/disk/records.py of a record).
//!
//! An add's frame, without its length, as all known clients write it; V is a varint of up to 9 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0a, length, 08 03 10 02 18 V | header: version 3, add, transaction id |
//! | aa 06 V | length of the rest |
//! | 08 V, 10 V | ledger id, entry id: only repeated in the answer |
//! | 1a 14, 20 bytes | the ledger's key |
//! | 22 V, the rest | the entry: ledger id, entry id and LAC, as int64, then what the node does not read |

use crc_fast::{CrcAlgorithm, checksum};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffers::{Input, Results};

/// Bytes before a record's body.
const HEADER_BYTES: usize = 32;
/// Records begin on multiples of this.
const ALIGN: usize = 32;
/// The kind of a record that is an entry.
const ENTRY: u32 = 0xD15B_AC01;
/// Bytes of a larger body are not copied here.
const SMALL_BYTES: usize = 16 * 1024;
/// Bytes of a ledger's key.
const KEY_BYTES: usize = 20;
/// Most bytes of a varint: such a number is below 2^63.
const VARINT_BYTES: usize = 9;

/// An add as it lies in its frame: ids as they stand there.
struct Add<'a> {
    txn: &'a [u8],
    ledger: &'a [u8],
    entry: &'a [u8],
    key: &'a [u8],
    body: &'a [u8],
}

/// Take `expected` from the beginning of `rest`.
#[inline]
fn literal(rest: &mut &[u8], expected: &[u8]) -> Option<()> {
    *rest = rest.strip_prefix(expected)?;
    Some(())
}

/// Take a varint, as it stands there.
#[inline]
fn varint<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().take(VARINT_BYTES).position(|byte| byte & 0x80 == 0)?;
    let (taken, left) = rest.split_at_checked(end + 1)?;
    *rest = left;
    Some(taken)
}

/// Take a varint that says how many bytes follow it, in as few bytes as it can be written; whether it does.
#[inline]
fn says_rest(rest: &mut &[u8]) -> Option<bool> {
    let digits = varint(rest)?;
    let value = digits.iter().rev().fold(0_u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
    let shortest = digits.len() == 1 || digits.last() != Some(&0);
    Some(shortest && value == rest.len() as u64)
}

/// Read an add without priority, flags and options whose fields are in canonical order.
fn add(frame: &[u8]) -> Option<Add<'_>> {
    let rest = &mut &*frame;
    literal(rest, b"\x0a")?;
    let (head, left) = rest.split_first()?;
    *rest = left;
    literal(rest, b"\x08\x03\x10\x02\x18")?;
    let txn = varint(rest)?;
    if usize::from(*head) != 5 + txn.len() {
        return None;
    }
    literal(rest, b"\xaa\x06")?;
    if !says_rest(rest)? {
        return None;
    }
    literal(rest, b"\x08")?;
    let ledger = varint(rest)?;
    literal(rest, b"\x10")?;
    let entry = varint(rest)?;
    literal(rest, b"\x1a\x14")?;
    let (key, left) = rest.split_at_checked(KEY_BYTES)?;
    *rest = left;
    literal(rest, b"\x22")?;
    says_rest(rest)?.then_some(Add { txn, ledger, entry, key, body: rest })
}

/// Write the frame that answers `add` with EOK behind what is in `answer`.
fn answer(add: &Add<'_>, answer: &mut Vec<u8>) {
    // Three ids of 9 bytes at most: each length below is a varint of one byte.
    let message = 4 + add.ledger.len() + add.entry.len();
    let length = 2 + 5 + add.txn.len() + 5 + message;
    answer.extend_from_slice(&[0, 0, 0, length as u8, 0x0a, 5 + add.txn.len() as u8, 8, 3, 16, 2, 24]);
    answer.extend_from_slice(add.txn);
    answer.extend_from_slice(&[16, 0, 0xaa, 6, message as u8, 8, 0, 16]);
    answer.extend_from_slice(add.ledger);
    answer.push(24);
    answer.extend_from_slice(add.entry);
}

/// Ledger id, entry id and LAC of an entry that has them.
fn ids(body: &[u8]) -> Option<(i64, i64, i64)> {
    let (ledger, rest) = body.split_first_chunk::<8>()?;
    let (entry, rest) = rest.split_first_chunk::<8>()?;
    let (lac, _) = rest.split_first_chunk::<8>()?;
    Some((i64::from_be_bytes(*ledger), i64::from_be_bytes(*entry), i64::from_be_bytes(*lac)))
}

/// The CRC-32 of a record's header and body.
fn crc32(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32IsoHdlc, data) as u32
}

/// Write a record with `body` at the beginning of `room`; the bytes it takes, with the gap behind it, or None where
/// there is no room.
fn record(room: &mut [u8], ledger_id: i64, entry_id: i64, body: &[u8]) -> Option<usize> {
    let size = (HEADER_BYTES + body.len()).next_multiple_of(ALIGN);
    let (head, rest) = room.get_mut(..size)?.split_at_mut(HEADER_BYTES);
    head[..4].copy_from_slice(&ENTRY.to_be_bytes());
    head[4..8].copy_from_slice(&u32::try_from(body.len()).ok()?.to_be_bytes());
    head[8..16].copy_from_slice(&ledger_id.to_be_bytes());
    head[16..24].copy_from_slice(&entry_id.to_be_bytes());
    head[24..28].copy_from_slice(&crc32(body).to_be_bytes());
    let sum = crc32(&head[..28]);
    head[28..].copy_from_slice(&sum.to_be_bytes());
    rest[..body.len()].copy_from_slice(body);
    Some(size)
}

/// What was stored: (bytes of the records, ledger id, first entry id, highest LAC, key, answers, places, sizes);
/// places and sizes are arrays of uint32.
type Run<'py> = (usize, i64, i64, i64, Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Write the entries of the adds in `frames` as records into `region`, as far as they are a run and it has room;
/// `place` is where its beginning will lie in its log. None where not even the first one is.
#[pyfunction]
pub fn append_adds<'py>(
    frames: &Bound<'py, PyList>,
    region: &Bound<'py, PyAny>,
    place: u32,
) -> PyResult<Option<Run<'py>>> {
    let (py, room) = (frames.py(), region.len()?);
    let mut run: Vec<(Input<'py>, usize)> = Vec::with_capacity(frames.len());
    let (mut first, mut at, mut highest) = (None, 0_usize, -1_i64);
    let (mut places, mut sizes) = (Vec::new(), Vec::new());
    let (mut answers, mut ends) = (Vec::new(), Vec::new());
    // A frame is looked at only where all before it are of the run: what follows that is for the next call.
    for object in frames.iter() {
        let frame = Input::take(&object)?;
        let Some(found) = add(frame.bytes()) else { break };
        let Some((ledger_id, entry_id, lac)) = ids(found.body) else { break };
        let Ok(key) = <[u8; KEY_BYTES]>::try_from(found.key) else { break };
        let (its_ledger, first_id, its_key) = *first.get_or_insert((ledger_id, entry_id, key));
        let next = i64::try_from(run.len()).ok().and_then(|count| first_id.checked_add(count));
        let fits = ledger_id == its_ledger && next == Some(entry_id) && key == its_key;
        if !fits || ledger_id < 0 || entry_id < 0 || found.body.len() > SMALL_BYTES {
            break;
        }
        let Some(its_place) = u32::try_from(at / ALIGN).ok().and_then(|blocks| place.checked_add(blocks)) else { break };
        let length = HEADER_BYTES + found.body.len();
        if at + length.next_multiple_of(ALIGN) > room {
            break;
        }
        places.extend_from_slice(&its_place.to_ne_bytes());
        sizes.extend_from_slice(&(length as u32).to_ne_bytes());
        answer(&found, &mut answers);
        ends.push(answers.len());
        highest = highest.max(lac);
        at += length.next_multiple_of(ALIGN);
        let body_at = frame.bytes().len() - found.body.len();
        run.push((frame, body_at));
    }
    let Some((ledger_id, first_id, key)) = first else { return Ok(None) };
    if run.is_empty() || write(&run, region, ledger_id, first_id)? != Some(at) {
        return Ok(None);
    }
    // Only now: a list of Python's may start its garbage collector, and with it any code.
    let (mut begin, made) = (0, PyList::empty(py));
    for end in ends {
        made.append(PyBytes::new(py, answers.get(begin..end).unwrap_or_default()))?;
        begin = end;
    }
    let key = PyBytes::new(py, &key);
    let (places, sizes) = (PyBytes::new(py, &places), PyBytes::new(py, &sizes));
    Ok(Some((at, ledger_id, first_id, highest, key, made, places, sizes)))
}

/// Write the entries of these frames, each of which begins somewhere in its frame, as records; the bytes they take, or
/// None where there is no room.
fn write(
    run: &[(Input<'_>, usize)],
    region: &Bound<'_, PyAny>,
    ledger_id: i64,
    first_id: i64,
) -> PyResult<Option<usize>> {
    let mut results = Results::take([region], run.iter().map(|(frame, _)| frame))?;
    let [region] = results.slices();
    let (mut at, mut entry_id) = (0_usize, first_id);
    for (frame, body_at) in run {
        let body = frame.bytes().get(*body_at..).unwrap_or_default();
        let size = region.get_mut(at..).and_then(|left| record(left, ledger_id, entry_id, body));
        let Some(size) = size else { return Ok(None) };
        at += size;
        entry_id = entry_id.wrapping_add(1);
    }
    Ok(Some(at))
}
