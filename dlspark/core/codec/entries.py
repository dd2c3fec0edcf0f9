"""Entries: what a ledger of a log segment holds, and its way to and from records and Arrow columns.

    BookKeeper ledger (one a log segment)
      entry 0..LAC              one entry = one transmitted buffer
        [envelope, 13 bytes]    segments of metadata version 4 and above       envelopes
        record, record, ...     back to back                                    records
          a record may be a record set that holds several payloads              record_sets

Two ways lead in each direction, equal in result: record by record (`plain_entries`: `EntryBuilder`, `decode_entry`)
and by columns (`vector_encoding`: `encode_entries`; `vector_decoding`: `decode_entries`). This module names what others
use.

Whatever the bytes, decoding returns all records of an entry or raises InvalidEntryError (I12).
"""

from __future__ import annotations

from dlspark.core.codec.envelopes import Compression
from dlspark.core.codec.plain_entries import EncodedEntry, EntryBuilder, decode_entry
from dlspark.core.codec.record_sets import decode_record_set, encode_record_set
from dlspark.core.codec.vector_decoding import DecodedBatch, EntrySummary, decode_entries, entry_summary
from dlspark.core.codec.vector_encoding import DEFAULT_ENTRY_BYTES, encode_entries

__all__ = [
    "Compression",
    "DEFAULT_ENTRY_BYTES",
    "DecodedBatch",
    "EncodedEntry",
    "EntryBuilder",
    "EntrySummary",
    "decode_entries",
    "decode_entry",
    "decode_record_set",
    "encode_entries",
    "encode_record_set",
    "entry_summary",
]
