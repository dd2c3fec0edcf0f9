"""Log records that programs can read: what they are about is in fields beside the message.

The core's log records have those of the attributes `log` (name), `segment` (sequence number), `ledger` (id), `entry`
(id) and `path` (znode) that apply. `JsonFormatter` writes a record with them as one line of JSON.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Final

FIELDS: Final = ("log", "segment", "ledger", "entry", "path", "kind", "duration_ms", "threshold_ms")
"""Attributes that the core's log records may have, in the order in which they are written."""


def about(
    *,
    log: str | None = None,
    segment: int | None = None,
    ledger: int | None = None,
    entry: int | None = None,
    path: str | None = None,
) -> dict[str, object]:
    """Return what a log record is about, for its `extra`: the arguments that are not None."""
    given = {"log": log, "segment": segment, "ledger": ledger, "entry": entry, "path": path}
    return {name: value for name, value in given.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, the fields that the record has, and its error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON, without a line break at its end."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
