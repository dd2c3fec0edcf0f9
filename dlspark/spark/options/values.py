"""The kinds of values that options have, and how the text of each is read; what cannot be read is an OptionError."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum
from typing import Final

from dlspark.spark.errors import OptionError

MAX_LONG = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_MAX_DIGITS: Final = 40
"""Far more than any number here has; `int` refuses some thousands of digits with words of its own."""
_MAX_SHOWN: Final = 120
_DURATION = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
# The suffixes of Spark's own durations (spark.network.timeout and its like).
_UNIT_MICROS = {
    "us": 1,
    "": 1_000,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


class Kind(Enum):
    """The type of an option's value; the value is what the documentation's table calls it."""

    TEXT = "text"
    FLAG = "true / false"
    COUNT = "integer >= 1"
    LONG = "integer >= 0"
    INSTANT = "epoch milliseconds or ISO-8601"
    DURATION = "duration"


def shown(value: object) -> str:
    """A user's value as it stands in an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


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


def parse_text(name: str, value: str) -> str:
    if not value.strip():
        raise OptionError(f"Option {name} is empty", advice="Give it a value or leave it out")
    return value


def parse_flag(name: str, value: str) -> bool:
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise OptionError(f"Option {name} must be true or false, not {shown(value)}", advice="Correct the value")


def parse_count(name: str, value: str) -> int:
    return _integer(name, value, 1)


def parse_long(name: str, value: str) -> int:
    return _integer(name, value, 0)


def _integer(name: str, value: str, lowest: int) -> int:
    text = value.strip()
    if not _INTEGER.fullmatch(text):
        raise OptionError(f"Option {name} must be an integer, not {shown(value)}", advice="Correct the value")
    if len(text) > _MAX_DIGITS or not lowest <= int(text) <= MAX_LONG:
        raise OptionError(
            f"Option {name} must be an integer from {lowest} to {MAX_LONG}, not {shown(text)}",
            advice="Correct the value",
        )
    return int(text)


def parse_duration(name: str, value: str) -> int:
    """Milliseconds, rounded up; a number without a unit counts them, as in Spark's own durations."""
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None or found[2] not in _UNIT_MICROS:
        raise OptionError(
            f"Option {name} is not a duration: {shown(value)}",
            advice="Write for example 15m, 90s or 500ms (units: us, ms, s, m, min, h, d; without one: milliseconds)",
        )
    ms = -(-int(found[1]) * _UNIT_MICROS[found[2]] // 1_000)
    if ms > MAX_LONG:
        raise OptionError(f"Option {name} is longer than can be counted: {value!r}", advice="Give a shorter one")
    return ms


def parse_instant(name: str, value: str) -> int:
    """Milliseconds since the epoch; a fraction of a millisecond is rounded up, so that "at or after" stays true."""
    text = value.strip()
    if not _INTEGER.fullmatch(text):
        number = _iso_ms(name, text)
    elif len(text) > _MAX_DIGITS:
        number = -1 if text.startswith("-") else MAX_LONG + 1
    else:
        number = int(text)
    if number < 0:
        raise OptionError(
            f"Option {name} must not lie before 1970-01-01T00:00:00Z: {shown(value)}",
            advice="Transaction ids, of which times are read, are never negative; use earliest for the beginning",
        )
    if number > MAX_LONG:
        raise OptionError(
            f"Option {name} lies beyond every transaction id (2^63 - 1 ms): {shown(value)}",
            advice="Times are milliseconds since 1970: give those, not microseconds or nanoseconds",
        )
    return number


def _iso_ms(name: str, text: str) -> int:
    iso = text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        raise OptionError(
            f"Option {name} is neither epoch milliseconds nor an ISO-8601 time: {shown(text)}",
            advice="Write for example 1372636800000 or 2013-07-01T00:00:00Z",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    since = moment - _EPOCH
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-microseconds // 1000)


PARSERS: dict[Kind, Callable[[str, str], object]] = {
    Kind.TEXT: parse_text,
    Kind.FLAG: parse_flag,
    Kind.COUNT: parse_count,
    Kind.LONG: parse_long,
    Kind.INSTANT: parse_instant,
    Kind.DURATION: parse_duration,
}
