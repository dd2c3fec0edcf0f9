"""Points in time: the one reading of what people write, and the one way in which times are printed.

A time is an integer of nanoseconds since 1970 (UTC); no float comes near it, so that a millisecond which is written is
the millisecond which is meant. A transaction id is compared with times as milliseconds since 1970, so a time becomes an
id by rounding in the direction that keeps what was asked:

| what is asked of ids | becomes |
|---|---|
| at or after a time: a start | `first_ms`: the first millisecond that is not before it |
| before a time: an exclusive end, what a purge keeps | the same: the first millisecond that is left out |
| up to and with a time: an inclusive end | `last_ms`: the last millisecond that is not after it |

Written are `2013-07-01T02:00:00.000000001+02:00` and what is shorter: without the fraction (of one to nine digits,
behind a point or a comma), the seconds, the minutes or the time of day; a space for the `T`; `z`, `Z`, `UTC`, `+02`,
`+0200` or nothing for the zone, which then is UTC; everything in lower case, and without dashes and colons
(`20130701T020000Z`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Final

from metadata.foundation.settings import WHOLE, UnreadableValue

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
FORMS: Final = "2013-07-01, 2013-07-01T02:00:00Z, 2013-07-01 02:00:00.000000001+02:00"
"""Examples of what `read_time` reads, for errors."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400
_TIME: Final = re.compile(
    r"(?P<year>\d{4})(?P<dash>-?)(?P<month>\d\d)(?P=dash)(?P<day>\d\d)"
    r"(?:(?:T|[ ]+)(?P<hour>\d\d)(?:(?P<colon>:?)(?P<minute>\d\d)(?:(?P=colon)(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d+))?)?)?"
    r"[ ]*(?P<zone>Z|UTC|GMT|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d)(?::?(?P<seconds>\d\d))?)?)?)?",
    re.ASCII | re.IGNORECASE,
)
_LOOSE: Final = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+(\d{1,2})(\D.*)?)?", re.ASCII | re.IGNORECASE)
"""Nearly a time: other separators, numbers of one digit."""
_NUMBER: Final = re.compile(r"[+-]?\d+[.,]\d*", re.ASCII)
_MAX_TEXT: Final = 64


def read_time(text: str) -> int:
    """Return a written time as nanoseconds since 1970. Raises UnreadableValue, which says why and what is near."""
    text = text.strip()
    found = _TIME.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None:
        near = _near(text)
        raise UnreadableValue(f"perhaps {near} is meant" if near is not None else f"times are written as {FORMS}")
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise UnreadableValue(f"there is no {hour:02}:{minute:02}:{second:02} in a day, which ends with 23:59:59")
    fraction = (found["fraction"] or "").rstrip("0")
    if len(fraction) > 9:
        raise UnreadableValue("it is finer than a nanosecond; nine digits behind the point are the most")
    try:
        day = date(int(found["year"]), int(found["month"]), int(found["day"])).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise UnreadableValue(f"there is no such day: {error}") from None
    seconds = day * _DAY_S + hour * 3600 + minute * 60 + second - _offset_s(found)
    return seconds * NS_PER_S + int(fraction.ljust(9, "0"))


def _offset_s(found: re.Match[str]) -> int:
    """Return how far the zone is ahead of UTC, in seconds."""
    if found["sign"] is None:
        return 0
    hours, minutes, seconds = (int(found[part] or 0) for part in ("hours", "minutes", "seconds"))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise UnreadableValue(f"no zone is {found['zone']} from UTC; they are less than a day away from it")
    offset = hours * 3600 + minutes * 60 + seconds
    return -offset if found["sign"] == "-" else offset


def _near(text: str) -> str | None:
    """Return the time that was perhaps meant, as `read_time` reads it."""
    found = _LOOSE.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None:
        return None
    near = f"{found[1]}-{found[2]:0>2}-{found[3]:0>2}"
    if found[4] is not None:
        near += f"T{found[4]:0>2}{found[5] or ''}"
    if _TIME.fullmatch(near) is None:
        return None
    try:
        read_time(near)
    except UnreadableValue:
        return None
    return near


def read_first_ms(text: str) -> int:
    """Return `first_ms` of a time that is written, or a number of milliseconds since 1970. Raises UnreadableValue."""
    word = text.strip()
    try:
        return WHOLE.read(word)
    except ValueError:
        if word.lstrip("+-").isdigit():
            raise UnreadableValue("it has too many digits for milliseconds since 1970") from None
    if _NUMBER.fullmatch(word):
        raise UnreadableValue("a number counts whole milliseconds since 1970, without a point")
    return first_ms(read_time(word))


def first_ms(time_ns: int) -> int:
    """Return the first millisecond that is not before a time; 0 for times before 1970: no transaction id is below
    it."""
    return max(-(-time_ns // NS_PER_MS), 0)


def last_ms(time_ns: int) -> int:
    """Return the last millisecond that is not after a time; negative before 1970."""
    return time_ns // NS_PER_MS


def time_text(epoch_ms: int) -> str:
    """Return a time for JSON: in UTC, to the millisecond. One outside the years 1 to 9999 is given as a number."""
    return _printed(epoch_ms, lambda moment: moment.isoformat(timespec="milliseconds"))


def short_time(epoch_ms: int) -> str:
    """Return a time for tables: in UTC, to the second, as in `2013-07-01 02:00:00Z`; what is cut off is not rounded."""
    return _printed(epoch_ms, lambda moment: moment.replace(tzinfo=None).isoformat(" ", "seconds") + "Z")


def _printed(epoch_ms: int, printed: Callable[[datetime], str]) -> str:
    try:
        return printed(_EPOCH + timedelta(milliseconds=epoch_ms))
    except OverflowError:
        return f"{epoch_ms} ms since 1970"
