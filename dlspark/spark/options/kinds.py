"""Kinds of values that only options have: durations, points in time, and JSON. The others are the foundation's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from metadata.foundation.settings import WHOLE, Kind

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_DIGITS: Final = 40
"""Far more than any number here has; `int` refuses some thousands of digits with words of its own."""
_DURATION: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
# The suffixes of Spark's own durations (spark.network.timeout and its like).
_UNIT_MICROS: Final = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def _read_duration(text: str) -> int:
    """Milliseconds, rounded up; a number without a unit counts them, as in Spark's own durations."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNIT_MICROS:
        raise ValueError(text)
    return -(-int(found[1]) * _UNIT_MICROS[found[2]] // 1_000)


def _read_instant(text: str) -> int:
    """Milliseconds since the epoch; a fraction of a millisecond is rounded up, so that "at or after" stays true."""
    try:
        return WHOLE.read(text)
    except ValueError:
        text = text.strip()
        if text.lstrip("+-").isdigit():  # of too many digits: some of them could pass for a date without dashes
            raise
    iso = text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text
    moment = datetime.fromisoformat(iso)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    since = moment - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-microseconds // 1000)


DURATION: Final[Kind[int]] = Kind(
    "a duration as 15m, 90s or 500ms (units: us, ms, s, m, min, h, d; without one: milliseconds)",
    _read_duration,
    WHOLE.take,
)
INSTANT: Final[Kind[int]] = Kind(
    "a time: milliseconds since 1970, as 1372636800000, or ISO-8601, as 2013-07-01T00:00:00Z",
    _read_instant,
    WHOLE.take,
)


def parse_json(text: str, pairs: Callable[[list[tuple[str, object]]], object] | None = None) -> object:
    """What JSON says; ValueError for whatever it cannot be, nesting and numbers without end among it."""
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_json_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _json_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)
