"""The kinds of values that options have, and how the text of each is read; what cannot be read is an OptionError."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum

from dlspark.spark.errors import OptionError

MAX_LONG = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
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
    raise OptionError(f"Option {name} must be true or false, not {value!r}", advice="Correct the value")


def parse_count(name: str, value: str) -> int:
    return _integer(name, value, 1)


def parse_long(name: str, value: str) -> int:
    return _integer(name, value, 0)


def _integer(name: str, value: str, lowest: int) -> int:
    try:
        number = int(value.strip())
    except ValueError:
        raise OptionError(f"Option {name} must be an integer, not {value!r}", advice="Correct the value") from None
    if not lowest <= number <= MAX_LONG:
        raise OptionError(
            f"Option {name} must be an integer from {lowest} to {MAX_LONG}, not {value}", advice="Correct the value"
        )
    return number


def parse_duration(name: str, value: str) -> int:
    """Milliseconds, rounded up; a number without a unit counts them, as in Spark's own durations."""
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None or found[2] not in _UNIT_MICROS:
        raise OptionError(
            f"Option {name} is not a duration: {value!r}",
            advice="Write for example 15m, 90s or 500ms (units: us, ms, s, m, min, h, d; without one: milliseconds)",
        )
    ms = -(-int(found[1]) * _UNIT_MICROS[found[2]] // 1_000)
    if ms > MAX_LONG:
        raise OptionError(f"Option {name} is longer than can be counted: {value!r}", advice="Give a shorter one")
    return ms


def parse_instant(name: str, value: str) -> int:
    """Milliseconds since the epoch; a fraction of a millisecond is rounded up, so that "at or after" stays true."""
    text = value.strip()
    if text.lstrip("-").isdigit():
        number = int(text)
    else:
        number = _iso_ms(name, text)
    if not 0 <= number <= MAX_LONG:
        raise OptionError(
            f"Option {name} must not lie before 1970-01-01T00:00:00Z: {value!r}",
            advice="Transaction ids, of which times are read, are never negative; use earliest for the beginning",
        )
    return number


def _iso_ms(name: str, text: str) -> int:
    iso = text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        raise OptionError(
            f"Option {name} is neither epoch milliseconds nor an ISO-8601 time: {text!r}",
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
