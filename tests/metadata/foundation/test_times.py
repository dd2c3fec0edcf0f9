"""Times are read exactly, rounded in the direction that keeps their meaning, and refused with what is near."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest

from metadata.foundation.settings import UnreadableValue
from metadata.foundation.times import first_ms, last_ms, read_first_ms, read_time, short_time, time_text

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
YEAR_9999_MS = 253_402_300_799_999


def iso(ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")


def test_each_of_200_000_milliseconds_is_read_as_itself() -> None:
    seeded = random.Random(5)
    for _ in range(200_000):
        ms = seeded.randrange(4_102_444_800_000)
        ns = read_time(iso(ms))
        assert (first_ms(ns), last_ms(ns), ns) == (ms, ms, ms * 10**6)


def test_each_of_200_000_nanoseconds_is_read_as_itself() -> None:
    seeded = random.Random(7)
    for _ in range(200_000):
        ns = seeded.randrange(4_102_444_800 * 10**9)
        whole, fraction = divmod(ns, 10**9)
        text = f"{(EPOCH + timedelta(seconds=whole)).replace(tzinfo=None).isoformat()}.{fraction:09d}z"
        assert read_time(text) == ns


def test_a_start_and_an_exclusive_end_are_rounded_up_and_an_inclusive_end_down() -> None:
    seeded = random.Random(9)
    for _ in range(20_000):
        ns = seeded.randrange(10**18)
        first, last = first_ms(ns), last_ms(ns)
        assert (first - 1) * 10**6 < ns <= first * 10**6
        assert last * 10**6 <= ns < (last + 1) * 10**6
        assert Decimal(first) == (Decimal(ns) / 10**6).to_integral_value("ROUND_CEILING")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00.0005Z", 500_000),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01 00:00:00,5", 500_000_000),
        ("2013-07-01", 1_372_636_800 * 10**9),
        ("2013-07-01T00", 1_372_636_800 * 10**9),
        ("2013-07-01 00:00", 1_372_636_800 * 10**9),
        ("  2013-07-01   00:00:00  ", 1_372_636_800 * 10**9),
        ("2013-07-01t00:00:00z", 1_372_636_800 * 10**9),
        ("2013-07-01 00:00:00 utc", 1_372_636_800 * 10**9),
        ("2013-07-01T02:00:00+02:00", 1_372_636_800 * 10**9),
        ("2013-07-01T02:00:00 +0200", 1_372_636_800 * 10**9),
        ("2013-07-01T02+02", 1_372_636_800 * 10**9),
        ("2013-06-30T20:00:00-04:00", 1_372_636_800 * 10**9),
        ("2013-07-01T00:53:28+00:53:28", 1_372_636_800 * 10**9),
        ("20130701T000000Z", 1_372_636_800 * 10**9),
        ("2013-07-01T00:00:00.0000000000Z", 1_372_636_800 * 10**9),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("9999-12-31T23:59:59.999999999Z", YEAR_9999_MS * 10**6 + 999_999),
        ("0001-01-01", -62_135_596_800 * 10**9),
    ],
)
def test_a_time_is_read_in_every_form(text: str, ns: int) -> None:
    assert read_time(text) == ns


def test_no_id_is_below_0_so_a_start_before_1970_is_0() -> None:
    assert read_first_ms("1960-01-01") == first_ms(-1) == 0
    assert last_ms(-1) == -1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2013-7-1", "perhaps 2013-07-01 is meant"),
        ("2013/07/01 5:00", "perhaps 2013-07-01T05:00 is meant"),
        ("2013.07.01", "perhaps 2013-07-01 is meant"),
        ("2013-02-30", "no such day"),
        ("2013-13-01", "no such day"),
        ("0000-01-01", "no such day"),
        ("2013-07-01T24:00", "no 24:00:00 in a day"),
        ("2013-07-01T00:60", "no 00:60:00 in a day"),
        ("2016-12-31T23:59:60Z", "no 23:59:60 in a day"),
        ("2013-07-01T00:00:00.0000000001Z", "finer than a nanosecond"),
        ("2013-07-01T00:00:00+24:00", "no zone is +24:00 from UTC"),
        ("2013-07-01T00:00:00 Europe/Berlin", "times are written as"),
        ("yesterday", "times are written as"),
        ("", "times are written as"),
        ("1372636800.5", "whole milliseconds"),
        ("9" * 30, "too many digits"),
        ("٢٠١٣-٠٧-٠١", "times are written as"),
        ("2013-07-01T00:00:00." + "1" * 10_000, "times are written as"),
    ],
)
def test_what_is_none_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(UnreadableValue, match=re.escape(says)):
        read_first_ms(text)


def test_numbers_are_milliseconds() -> None:
    assert [read_first_ms(text) for text in ("0", " 1372636800000 ", "20130701", "-5")] == [
        0,
        1_372_636_800_000,
        20_130_701,
        -5,
    ]


def test_times_are_printed_as_they_are_read() -> None:
    seeded = random.Random(11)
    for _ in range(20_000):
        ms = seeded.randrange(YEAR_9999_MS)
        assert read_first_ms(time_text(ms)) == ms
        assert read_first_ms(short_time(ms)) == ms // 1000 * 1000
    assert time_text(1_372_636_800_001) == "2013-07-01T00:00:00.001+00:00"
    assert short_time(1_372_636_800_999) == "2013-07-01 00:00:00Z"
    assert time_text(2**63 - 1) == short_time(2**63 - 1) == "9223372036854775807 ms since 1970"
