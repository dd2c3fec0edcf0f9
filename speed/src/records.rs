//! Records of entries: where they are, and their columns (dlspark/core/codec/records.py has the layout).
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u64 | metadata word: flags in bits 0..16, position in bits 16..48 |
//! | 8 | i64 | transaction id |
//! | 16 | u32 | payload length n |
//! | 20 | n bytes | payload |
//!
//! Integers are big-endian.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyType};

use crate::buffers::{Input, Results};
use crate::objects::{keep_from_collector, Class, Field};

/// Bytes before a payload.
pub const HEADER_BYTES: usize = 20;
/// The flags whose records the columns leave to Python: end of stream, record set.
const UNUSUAL: u64 = 0x2 | 0x4;
/// The topmost bit of a position: a position that has it is refused.
const TOPMOST_POSITION: u64 = 1 << 47;

/// The header at the beginning of `rest`: word, transaction id and length. None where it is cut off.
#[inline]
pub fn header(rest: &[u8]) -> Option<(u64, u64, usize)> {
    let (head, _) = rest.split_first_chunk::<HEADER_BYTES>()?;
    let (word, more) = head.split_first_chunk::<8>()?;
    let (txid, more) = more.split_first_chunk::<8>()?;
    let (length, _) = more.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    Some((u64::from_be_bytes(*word), u64::from_be_bytes(*txid), length))
}

/// Count the records of `contents` that have none of the flags `hidden`, and the bytes of their payloads.
///
/// None where an entry is not a chain of records, or one ends the stream or is a record set: the twin does those.
#[pyfunction]
pub fn measure_records(contents: Vec<Input<'_>>, hidden: u64) -> Option<(usize, usize)> {
    let (mut count, mut size) = (0_usize, 0_usize);
    for content in &contents {
        let mut rest = content.bytes();
        while !rest.is_empty() {
            let (word, _, length) = header(rest)?;
            rest = rest.get(HEADER_BYTES.checked_add(length)?..)?;
            if word & (UNUSUAL | TOPMOST_POSITION) != 0 {
                return None;
            }
            if word & hidden == 0 {
                count += 1;
                size += length;
            }
        }
    }
    Some((count, size))
}

/// A column of 64-bit numbers that is filled from its beginning.
struct Column<'a>(std::slice::ChunksExactMut<'a, u8>);

impl<'a> Column<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Column(bytes.chunks_exact_mut(8))
    }

    /// Append a number; None where the column is full.
    #[inline]
    fn push(&mut self, number: i64) -> Option<()> {
        self.0.next()?.copy_from_slice(&number.to_ne_bytes());
        Some(())
    }
}

/// Write the columns of the records that `measure_records` has counted, in order.
///
/// `entry_ids` has the number of each of `contents`; the columns are arrays of int64 for as many records, `offsets` one
/// of int32 for one more, `payload` has room for the payloads. False where they have another size than was counted.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn record_columns<'py>(
    contents: Vec<Input<'py>>,
    entry_ids: Vec<i64>,
    hidden: u64,
    start_sequence_id: i64,
    numbers: [Bound<'py, PyAny>; 6],
    offsets: &Bound<'py, PyAny>,
    payload: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let [entry_id, slot_id, txid, position, sequence_id, flags] = &numbers;
    let objects = [entry_id, slot_id, txid, position, sequence_id, flags, offsets, payload];
    let mut results = Results::take(objects, &contents)?;
    Ok(fill(&contents, &entry_ids, hidden, start_sequence_id, results.slices()).is_some())
}

fn fill(
    contents: &[Input<'_>],
    entry_ids: &[i64],
    hidden: u64,
    start_sequence_id: i64,
    results: [&mut [u8]; 8],
) -> Option<()> {
    if contents.len() != entry_ids.len() {
        return None;
    }
    let [entry_id, slot_id, txid, position, sequence_id, flags, offsets, payload] = results;
    let (mut entry_id, mut slot_id, mut txid) = (Column::new(entry_id), Column::new(slot_id), Column::new(txid));
    let (mut position, mut sequence_id) = (Column::new(position), Column::new(sequence_id));
    let (mut flags, mut offsets) = (Column::new(flags), offsets.chunks_exact_mut(4));
    let before = start_sequence_id.wrapping_sub(1);
    let size = i32::try_from(payload.len()).ok()?;
    let mut room = payload;
    offsets.next()?.copy_from_slice(&0_i32.to_ne_bytes());
    for (content, number) in contents.iter().zip(entry_ids) {
        let mut rest = content.bytes();
        let mut slot = 0;
        while !rest.is_empty() {
            let (word, id, length) = header(rest)?;
            let (body, following) = rest.get(HEADER_BYTES..)?.split_at_checked(length)?;
            rest = following;
            if word & hidden == 0 {
                let place = (word >> 16 & 0xffff_ffff) as i64;
                entry_id.push(*number)?;
                slot_id.push(slot)?;
                txid.push(id as i64)?;
                position.push(place)?;
                // As upstream's arithmetic: it wraps where the segment's start is unassigned.
                sequence_id.push(before.wrapping_add(place))?;
                flags.push((word & 0xffff) as i64)?;
                let (own, left) = room.split_at_mut_checked(length)?;
                own.copy_from_slice(body);
                room = left;
                let end = size - i32::try_from(room.len()).ok()?;
                offsets.next()?.copy_from_slice(&end.to_ne_bytes());
            }
            slot += 1;
        }
    }
    let full = room.is_empty() && offsets.next().is_none() && txid.0.next().is_none();
    full.then_some(())
}

/// A row of the columns, before it is an object: payload, position and transaction id.
type Row<'py> = (Bound<'py, PyBytes>, Bound<'py, PyInt>, Bound<'py, PyInt>);

/// Rows that have entry id, flags, and position less slot id in common, and how many they are.
struct Run {
    common: (i64, i64, i64),
    count: usize,
}

/// A record of class `kind` for each row of columns of one segment.
///
/// `fields` are the descriptors by which a record's fields are stored: what it shares with others, payload, position,
/// transaction id. `segment` is the segment's number and its start sequence id. `columns` are arrays of int64: entry
/// ids, slots, positions, flags and transaction ids. Payload i is `data[offsets[i]..offsets[i + 1]]`, the offsets being
/// int32. The class must let none of the fields be changed: the collector does not see the records. None where the arrays
/// do not fit together, or one does not lie in one piece: the twin says what is wrong, if anything is.
#[pyfunction]
pub fn make_records<'py>(
    kind: &Bound<'py, PyType>,
    fields: [Bound<'py, PyAny>; 4],
    segment: (i64, i64),
    columns: [Bound<'py, PyAny>; 5],
    offsets: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let py = kind.py();
    let ([Some(a), Some(b), Some(c), Some(d), Some(e)], [Some(offsets), Some(data)]) =
        (columns.each_ref().map(|one| Input::take(one).ok()), [offsets, data].map(|one| Input::take(one).ok()))
    else {
        return Ok(None);
    };
    let columns = [a, b, c, d, e];
    let Some((rows, runs)) = rows(py, &columns, offsets.bytes(), data.bytes()) else {
        return Ok(None);
    };
    // From here on Python's code may run, and no view is held any more.
    drop((columns, offsets, data));
    let (Some(class), [Some(shared), Some(payload), Some(position), Some(txid)]) =
        (Class::take(kind), fields.each_ref().map(Field::take))
    else {
        return Ok(None);
    };
    let (lssn, start) = segment;
    let mut records = Vec::with_capacity(rows.len());
    let mut rows = rows.into_iter();
    for Run { common: (entry, flags, before), count } in runs {
        let common = (lssn, entry, start, flags, 1, before).into_pyobject(py)?;
        for (bytes, place, id) in rows.by_ref().take(count) {
            let record = class.make()?;
            shared.store(&record, common.as_any())?;
            payload.store(&record, bytes.as_any())?;
            position.store(&record, place.as_any())?;
            txid.store(&record, id.as_any())?;
            // Bytes, integers and a tuple of them, for ever: with thousands alive the collector would take longer than all this.
            keep_from_collector(&record);
            records.push(record);
        }
    }
    PyList::new(py, records).map(Some)
}

/// The rows, and the runs that they are in. None where the arrays do not fit together.
fn rows<'py>(
    py: Python<'py>,
    columns: &[Input<'py>; 5],
    offsets: &[u8],
    data: &[u8],
) -> Option<(Vec<Row<'py>>, Vec<Run>)> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|one| i64::from_ne_bytes(*one));
    let count = columns.first()?.bytes().len() / 8;
    if columns.iter().any(|one| one.bytes().len() != 8 * count) || offsets.len() != 4 * (count + 1) {
        return None;
    }
    let [mut entry_ids, mut slots, mut positions, mut flags, mut txids] =
        columns.each_ref().map(|one| one.bytes().chunks_exact(8));
    let mut ends = offsets
        .chunks_exact(4)
        .map(|one| one.first_chunk().and_then(|one| usize::try_from(i32::from_ne_bytes(*one)).ok()));
    let mut start = ends.next()??;
    let mut made = Vec::with_capacity(count);
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..count {
        let place = number(positions.next()?)?;
        let less = place.wrapping_sub(number(slots.next()?)?);
        let common = (number(entry_ids.next()?)?, number(flags.next()?)?, less);
        match runs.last_mut() {
            Some(run) if run.common == common => run.count += 1,
            _ => runs.push(Run { common, count: 1 }),
        }
        let end = ends.next()??;
        // Neither bytes nor integers have the collector run.
        let payload = PyBytes::new(py, data.get(start..end)?);
        made.push((payload, place.into_pyobject(py).ok()?, number(txids.next()?)?.into_pyobject(py).ok()?));
        start = end;
    }
    Some((made, runs))
}

/// Write records one behind the other: each of `headers`, of 20 bytes, and behind it its payload.
///
/// Payload i is `data[offsets[i]..offsets[i + 1]]`, the offsets being int64. False where there is not one more of them
/// than headers, one leads outside of `data`, or `records` is not exactly filled.
#[pyfunction]
pub fn lay_out_records<'py>(
    headers: Input<'py>,
    offsets: Input<'py>,
    data: Input<'py>,
    records: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let inputs = [headers, offsets, data];
    let mut results = Results::take([records], &inputs)?;
    let [headers, offsets, data] = &inputs;
    let [records] = results.slices();
    Ok(interleave(headers.bytes(), offsets.bytes(), data.bytes(), records).is_some())
}

fn interleave(headers: &[u8], offsets: &[u8], data: &[u8], records: &mut [u8]) -> Option<()> {
    let mut ends = offsets.chunks_exact(8).map(|one| one.first_chunk().map(|one| i64::from_ne_bytes(*one)));
    let mut start = usize::try_from(ends.next()??).ok()?;
    let mut room = records;
    let headers = headers.chunks_exact(HEADER_BYTES);
    if headers.len() != ends.len() || !headers.remainder().is_empty() {
        return None;
    }
    for (header, end) in headers.zip(ends) {
        let end = usize::try_from(end?).ok()?;
        let payload = data.get(start..end)?;
        let (head, rest) = room.split_at_mut_checked(HEADER_BYTES)?;
        head.copy_from_slice(header);
        let (body, rest) = rest.split_at_mut_checked(payload.len())?;
        body.copy_from_slice(payload);
        (start, room) = (end, rest);
    }
    room.is_empty().then_some(())
}
