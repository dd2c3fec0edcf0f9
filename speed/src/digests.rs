//! Headers of entries with their digests (storage_node/protocol/digests.py has the layout), for the two checksums.
//!
//! | offset | length | field |
//! |---|---|---|
//! | 0 | 32 | ledger id, entry id, LAC, length |
//! | 32 | D | digest over those and the payload: 8 bytes for CRC32, 4 for CRC32C |
//! | 32 + D | n | payload |
//!
//! Integers are big-endian. The interpreter is held throughout: a checksum of the largest entry takes some microseconds.

use crc_fast::{CrcAlgorithm, Digest};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffers::Input;

/// Bytes before the digest.
const HEADER_BYTES: usize = 32;
/// Bytes of a header with the longest digest.
pub const ENTRY_HEADER_MOST: usize = HEADER_BYTES + 8;

/// The checksum whose digest has `digest_size` bytes.
fn algorithm(digest_size: usize) -> Option<CrcAlgorithm> {
    match digest_size {
        8 => Some(CrcAlgorithm::Crc32IsoHdlc),
        4 => Some(CrcAlgorithm::Crc32Iscsi),
        _ => None,
    }
}

/// The header, and the digest over it and `payload`. None for another digest, or where an argument is not what the
/// twin takes: it words the error.
#[pyfunction]
pub fn package_entry<'py>(
    digest_size: usize,
    ids: &Bound<'py, PyTuple>,
    payload: &Bound<'py, PyTuple>,
) -> Option<Bound<'py, PyBytes>> {
    let pieces: Vec<Input<'py>> = payload.iter().map(|piece| Input::take(&piece).ok()).collect::<Option<_>>()?;
    let (packed, end) = entry_header(digest_size, ids.extract().ok()?, &pieces)?;
    Some(PyBytes::new(payload.py(), packed.get(..end)?))
}

/// The header with ledger id, entry id, LAC and length, and behind it the digest over it and `payload`; and where that
/// ends. None for another digest.
pub fn entry_header(
    digest_size: usize,
    ids: [i64; 4],
    payload: &[Input<'_>],
) -> Option<([u8; ENTRY_HEADER_MOST], usize)> {
    let mut digest = Digest::new(algorithm(digest_size)?);
    let mut packed = [0_u8; ENTRY_HEADER_MOST];
    for (place, id) in packed.chunks_exact_mut(8).zip(ids) {
        place.copy_from_slice(&id.to_be_bytes());
    }
    digest.update(packed.get(..HEADER_BYTES)?);
    for piece in payload {
        digest.update(piece.bytes());
    }
    // Both sums have 32 bits; CRC32 has four bytes of zeros before it.
    let sum = digest.finalize().to_be_bytes();
    let end = HEADER_BYTES + digest_size;
    packed.get_mut(HEADER_BYTES..end)?.copy_from_slice(sum.get(8 - digest_size..)?);
    Some((packed, end))
}

/// Entry id, LAC and length of an entry whose digest is right, and which is the one that was asked for (None: any of
/// the ledger). None where it is not: the twin looks again, and says what is wrong.
#[pyfunction]
pub fn verify_entry(
    digest_size: usize,
    ledger_id: &Bound<'_, PyAny>,
    entry_id: &Bound<'_, PyAny>,
    data: &Bound<'_, PyAny>,
) -> Option<(i64, i64, i64)> {
    let ledger_id: i64 = ledger_id.extract().ok()?;
    let entry_id: Option<i64> = entry_id.extract().ok()?;
    let data = Input::take(data).ok()?;
    let mut digest = Digest::new(algorithm(digest_size)?);
    let (header, rest) = data.bytes().split_first_chunk::<HEADER_BYTES>()?;
    let (claimed, payload) = rest.split_at_checked(digest_size)?;
    digest.update(header);
    digest.update(payload);
    // Nothing of the header is believed before the digest has been compared (I6).
    if digest.finalize().to_be_bytes().get(8 - digest_size..)? != claimed {
        return None;
    }
    let field = |at: usize| header.get(at..)?.first_chunk().map(|bytes| i64::from_be_bytes(*bytes));
    let (found_ledger, found_entry) = (field(0)?, field(8)?);
    // An intact entry of another place is as bad as a damaged one: one value for one position (I3).
    if found_ledger != ledger_id || entry_id.is_some_and(|wanted| wanted != found_entry) {
        return None;
    }
    Some((found_entry, field(16)?, field(24)?))
}
