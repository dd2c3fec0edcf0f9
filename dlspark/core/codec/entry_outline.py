"""The part of an entry that a log's new owner needs: its control records, and where its last records are; no user's
payload.

An entry is some 1 MB at most, out of its envelope too; its record sets may hold 64 times as much, in objects without
number. So nothing is expanded here: how many payloads a set holds its header says, which its writer has checked. What
is damaged inside a set is for those to find who read it. Records are found in bulk (`record_chain`), and only control
records are looked at one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_content, entry_content, record_set_count
from dlspark.core.codec.record_chain import Run, find_chain
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    FLAGS_MASK,
    HEADER,
    HEADER_BYTES,
    MAX_POSITION,
    POSITION_MASK,
    POSITION_SHIFT,
)
from dlspark.errors import InvalidEntryError
from metadata.foundation.errors import InvariantViolation

SHORT_BYTES: Final = 1024
"""Entries up to this size are walked record by record: that is quicker than to prepare arrays for them."""
CONTROL_COST_BYTES: Final = 128
"""Bytes that a control record takes besides its payload."""


class LastRecord(NamedTuple):
    """The last record of an entry; of a record set, its last payload."""

    slot: int
    txid: int
    position: int


class EntryOutline(NamedTuple):
    """An entry without the payloads of users."""

    control: tuple[tuple[int, bytes], ...]
    """Slot and payload of each control record, in order."""
    last: LastRecord | None
    """None in an entry without records."""
    last_user_slot: int
    """Slot of the last user record, -1 where there is none."""

    @property
    def kept_bytes(self) -> int:
        """About what it takes of memory."""
        return CONTROL_COST_BYTES + sum(len(payload) + CONTROL_COST_BYTES for _, payload in self.control)


def outline_entry(payload: memoryview, *, enveloped: bool, dlsn: DLSN) -> EntryOutline:
    """Return the outline of a ledger entry whose digest is verified; `dlsn`: its first record's.

    Raises InvalidEntryError carrying the DLSN.
    """
    content = entry_content(payload, enveloped, dlsn)
    return _walked(content, dlsn) if len(content) <= SHORT_BYTES else _of_columns(content, dlsn)


def _walked(content: memoryview, dlsn: DLSN) -> EntryOutline:
    """Record by record. Nothing is made of a record here, for a segment may have thousands of such entries."""
    control: list[tuple[int, bytes]] = []
    last: LastRecord | None = None
    size, offset, slot, last_user = len(content), 0, 0, -1
    while offset < size:
        start = offset + HEADER_BYTES
        word, txid, length = HEADER.unpack_from(content, offset) if start <= size else (0, 0, size)
        offset, position = start + length, word >> POSITION_SHIFT & POSITION_MASK
        if offset > size or position > MAX_POSITION:
            raise _damage_error(content, dlsn)
        count = 1
        if word & FLAG_RECORD_SET:
            count = record_set_count(content[start:offset], dlsn._replace(slot_id=slot))
            if position + count - 1 > MAX_POSITION:
                raise _damage_error(content, dlsn)
        if word & FLAG_CONTROL:
            control.append((slot, bytes(content[start:offset])))
        slot += count
        if count:  # a set without payloads takes no slot
            last = LastRecord(slot - 1, txid, position + count - 1)
            last_user = last_user if word & (FLAG_CONTROL | FLAG_END_OF_STREAM) else slot - 1
    return EntryOutline(tuple(control), last, last_user)


def _of_columns(content: memoryview, dlsn: DLSN) -> EntryOutline:
    chain = find_chain(Run([dlsn.entry_id], [content]))
    if chain is None:
        raise _damage_error(content, dlsn)
    words = chain.headers["word"].astype(np.int64)
    flags, lengths = words & FLAGS_MASK, chain.headers["length"]

    def payload_of(index: int) -> memoryview:
        start = chain.start_of(index) + HEADER_BYTES
        return content[start : start + int(lengths[index])]

    counts = np.ones(len(flags), np.int64)
    for index in np.flatnonzero(flags & FLAG_RECORD_SET).tolist():
        counts[index] = record_set_count(payload_of(index), dlsn)
    after = np.cumsum(counts)
    positions = (words >> POSITION_SHIFT & POSITION_MASK) + np.maximum(counts, 1) - 1
    if positions.max() > MAX_POSITION:
        raise _damage_error(content, dlsn)
    control = np.flatnonzero(flags & FLAG_CONTROL)
    taking = np.flatnonzero(counts)
    user = np.flatnonzero((flags & (FLAG_CONTROL | FLAG_END_OF_STREAM) == 0) & (counts > 0))
    last = int(taking[-1]) if len(taking) else -1
    return EntryOutline(
        tuple(
            (slot, bytes(payload_of(index)))
            for slot, index in zip((after[control] - counts[control]).tolist(), control.tolist(), strict=True)
        ),
        LastRecord(int(after[last]) - 1, int(chain.headers["txid"][last]), int(positions[last])) if last >= 0 else None,
        int(after[user[-1]]) - 1 if len(user) else -1,
    )


def _damage_error(content: memoryview, dlsn: DLSN) -> InvalidEntryError:
    """Return the error for content that is not a chain of records, worded by the plain decoder."""
    try:
        decode_content(content, dlsn.lssn, dlsn.entry_id, 0, expand_record_sets=False)
    except InvalidEntryError as error:
        return error
    raise InvariantViolation("an entry was refused that the plain decoder accepts", entry_id=dlsn.entry_id)
