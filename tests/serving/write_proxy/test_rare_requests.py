"""Which streams match a client's expression: as a whole, in their order, a slice at a time, and never at any price."""

from __future__ import annotations

import pytest

from dlspark.serving.write_proxy.rare_requests import MAX_REGEX_CHARS, SLICE_CHARS, matching
from metadata.foundation.errors import CallerError

NAMES = [f"events-{number}" for number in range(2000)]


def found(streams: list[str], regex: str | None) -> list[str]:
    return [stream for part in matching(streams, regex) for stream in part]


@pytest.mark.parametrize("regex", [None, ".*"])
def test_without_an_expression_all_come_in_one_step(regex: str | None) -> None:
    assert list(matching(NAMES, regex)) == [NAMES]


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("events-1", ["events-1"]),
        (r"events-\d{4}", NAMES[1000:]),
        ("events-(7|99)", ["events-7", "events-99"]),
        ("vents", []),
        ("events-1|nothing", ["events-1"]),
        (r"(?i)EVENTS-3", ["events-3"]),
        ("", []),
    ],
)
def test_names_match_as_a_whole_whichever_slice_they_are_in(regex: str, expected: list[str]) -> None:
    assert found(NAMES, regex) == expected


def test_a_step_matches_only_so_many_characters() -> None:
    steps = list(matching(NAMES, "events-.*"))
    assert [name for step in steps for name in step] == NAMES
    longest = max(map(len, NAMES))
    assert all(sum(map(len, step)) < SLICE_CHARS + longest for step in steps)
    assert len(steps) > 4
    assert list(matching([], "x")) == []


@pytest.mark.parametrize(
    "regex",
    [
        "a" * (MAX_REGEX_CHARS + 1),
        "(?:.?){1000}(?:.?){1000}(?:.?){1000}x",
        "(?:(?:.{0,30}){0,30})*y",
        ".{1000}" * 140,
        "a{,2000}",
        "a{99999999999999999999999}",
        r"(?:\pL?\PL?){0,100}" * 50 + "q",
    ],
)
def test_an_expression_that_would_take_long_is_not_begun(regex: str) -> None:
    with pytest.raises(CallerError, match="repetitions written out"):
        next(matching(NAMES, regex))


@pytest.mark.parametrize("regex", ["(", "a)(b", "(?=x)", r"(a)\1", "*", "[", "\ud800", "a{5,2}"])
def test_what_is_no_expression_of_re2_is_refused(regex: str) -> None:
    with pytest.raises(CallerError, match="not a regular expression"):
        next(matching(NAMES, regex))
