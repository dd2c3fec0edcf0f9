//! Requests of adds: what a client makes of the entries of one turn (storage_node/protocol/adds.py is the twin).
//!
//! An add's frame; V is a varint:
//!
//! | bytes | field |
//! |---|---|
//! | int32 | length of all that follows |
//! | 0a V, 08 03 10 02 18 V, priority | header: version 3, add, transaction id; the priority's field, or nothing |
//! | aa 06 V | length of the rest |
//! | 08 V, 10 V | ledger id, entry id |
//! | 1a V, bytes | the ledger's key |
//! | 22 V, entry | the entry: header and digest (`digests`), payload |
//! | tail | fields of options, or nothing |
//!
//! The frame that answers it with EOK:
//!
//! | bytes | field |
//! |---|---|
//! | int32 | length of all that follows |
//! | 0a V, 08 03 10 02 18 V | header: version 3, add, transaction id |
//! | 10 00 | status |
//! | aa 06 V | length of the rest |
//! | 08 00, 10 V, 18 V | status, ledger id, entry id |

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::buffers::Input;
use crate::digests::{entry_header, ENTRY_HEADER_MOST};

/// Most bytes of a varint.
const VARINT_BYTES: usize = 10;
/// Of a header: version 3, add, and what announces the transaction id.
const HEADER: &[u8] = b"\x08\x03\x10\x02\x18";
/// More than what a frame has beside key, priority, tail and payload.
const OVERHEAD_BYTES: usize = 4 + 2 + HEADER.len() + 2 + 1 + 1 + 1 + 1 + 7 * VARINT_BYTES + ENTRY_HEADER_MOST;

/// A varint.
struct Varint([u8; VARINT_BYTES], usize);

impl Varint {
    fn of(mut value: u64) -> Self {
        let (mut digits, mut length) = ([0; VARINT_BYTES], 0);
        for digit in &mut digits {
            length += 1;
            *digit = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                break;
            }
            *digit |= 0x80;
        }
        Varint(digits, length)
    }

    /// Of a length.
    fn size(length: usize) -> Self {
        Varint::of(length as u64)
    }

    fn bytes(&self) -> &[u8] {
        self.0.get(..self.1).unwrap_or(&[])
    }
}

/// Write pieces one behind the other.
fn write(out: &mut Vec<u8>, pieces: &[&[u8]]) {
    for piece in pieces {
        out.extend_from_slice(piece);
    }
}

/// An entry id, the LAC and the length that the entry carries, its payload's size, its payload.
type Add<'py> = (i64, i64, i64, usize, Bound<'py, PyTuple>);
/// Frames, answers and the entries' headers, and the length of every answer, 0 where they differ.
type Run<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// Package `adds` to a ledger under transaction ids in a row; `ids` are the ledger's and the first of those, `fields`
/// the ledger's key, and the priority and the options as they stand in a frame. None for another digest, for ids from
/// 2^63 on, or where an argument is not what the twin takes: it decides, and words the error.
#[pyfunction]
pub fn encode_adds<'py>(
    digest_size: usize,
    ids: &Bound<'py, PyAny>,
    fields: (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>),
    adds: &Bound<'py, PyList>,
) -> Option<Run<'py>> {
    let (ledger_id, first_txn_id): (i64, i64) = ids.extract().ok()?;
    let (key, priority, tail) = (fields.0.as_bytes(), fields.1.as_bytes(), fields.2.as_bytes());
    let ledger = Varint::of(u64::try_from(ledger_id).ok()?);
    let key_size = Varint::size(key.len());
    let adds: Vec<Add<'py>> = adds.iter().map(|add| add.extract().ok()).collect::<Option<_>>()?;
    let payload_bytes = adds.iter().try_fold(0_usize, |sum, add| sum.checked_add(add.3))?;
    let beside = OVERHEAD_BYTES + key.len() + priority.len() + tail.len();
    let room = adds.len().checked_mul(beside)?.checked_add(payload_bytes)?;
    // Taken before it is allocated: a size is the caller's word until its payload has been looked at.
    i32::try_from(room).ok()?;
    let mut frames = Vec::with_capacity(room);
    let mut answers = Vec::with_capacity(adds.len() * 48);
    let mut headers = Vec::with_capacity(adds.len() * ENTRY_HEADER_MOST);
    let (mut shortest, mut longest) = (usize::MAX, 0);
    for (number, (entry_id, lac, length, size, payload)) in adds.iter().enumerate() {
        let pieces: Vec<Input<'py>> = payload.iter().map(|one| Input::take(&one).ok()).collect::<Option<_>>()?;
        if pieces.iter().map(|one| one.bytes().len()).sum::<usize>() != *size {
            return None;
        }
        let (header, end) = entry_header(digest_size, [ledger_id, *entry_id, *lac, *length], &pieces)?;
        let header = header.get(..end)?;
        let txn_id = u64::try_from(first_txn_id).ok()?.checked_add(number as u64)?;
        let (txn, entry) = (Varint::of(txn_id), Varint::of(u64::try_from(*entry_id).ok()?));
        let (txn, entry, ledger) = (txn.bytes(), entry.bytes(), ledger.bytes());
        let body = header.len() + size;
        let body_size = Varint::size(body);
        let message = 2 + ledger.len() + entry.len() + 1 + key_size.bytes().len() + key.len() + 1;
        let message = message + body_size.bytes().len() + body + tail.len();
        let message_size = Varint::size(message);
        let head = HEADER.len() + txn.len() + priority.len();
        let head_size = Varint::size(head);
        let all = 1 + head_size.bytes().len() + head + 2 + message_size.bytes().len() + message;
        let prefix = i32::try_from(all).ok()?.to_be_bytes();
        write(&mut frames, &[&prefix, b"\x0a", head_size.bytes(), HEADER, txn, priority]);
        write(&mut frames, &[b"\xaa\x06", message_size.bytes(), b"\x08", ledger, b"\x10", entry]);
        write(&mut frames, &[b"\x1a", key_size.bytes(), key, b"\x22", body_size.bytes(), header]);
        pieces.iter().for_each(|piece| frames.extend_from_slice(piece.bytes()));
        frames.extend_from_slice(tail);
        let before = answers.len();
        let (head, message) = (HEADER.len() + txn.len(), 4 + ledger.len() + entry.len());
        // Both are below 128: one byte.
        let prefix = i32::try_from(2 + head + 5 + message).ok()?.to_be_bytes();
        write(&mut answers, &[&prefix, b"\x0a", &[head as u8], HEADER, txn, b"\x10\x00\xaa\x06", &[message as u8]]);
        write(&mut answers, &[b"\x08\x00\x10", ledger, b"\x18", entry]);
        headers.extend_from_slice(header);
        let its = answers.len() - before;
        (shortest, longest) = (shortest.min(its), longest.max(its));
    }
    let every = if shortest == longest { longest } else { 0 };
    let py = fields.0.py();
    Some((PyBytes::new(py, &frames), PyBytes::new(py, &answers), PyBytes::new(py, &headers), every))
}
