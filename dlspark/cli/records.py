"""How a record is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlspark.cli.common import Json, shown
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.core.codec.records import LogRecord


def record_as_json(record: LogRecord, *, as_hex: bool = False, payload: bool = True) -> dict[str, Json]:
    """A record's fields; `value` is its payload."""
    fields: dict[str, Json] = {
        "dlsn": str(record.dlsn),
        "transaction_id": record.txid,
        "sequence_id": record.sequence_id,
    }
    return fields | {"value": shown(record.payload, as_hex=as_hex)} if payload else fields


def record_as_text(record: LogRecord, *, as_hex: bool = False, payload: bool = True) -> str:
    """A record on a line; without its payload how long that is."""
    text = shown(record.payload, as_hex=as_hex) if payload else counted(len(record.payload), "byte")
    return f"{record.dlsn!s:<16} {record.txid:>15}  {text}"
