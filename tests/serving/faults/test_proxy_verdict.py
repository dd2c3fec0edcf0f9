"""The judge of the rounds with proxies notices what it is there for."""

from __future__ import annotations

import pytest
from helpers.serving.load import payload_of
from helpers.serving.rounds import Written, check_log, first_acknowledgements

from dlspark.core.codec.dlsn import DLSN

PLAIN = "plain"


def told(number: int, outcome: str = "ok", writer: str = "a") -> Written:
    return Written("log", writer, number, number, number + 0.5, outcome, str(place(number)))


def place(number: int) -> DLSN:
    return DLSN(1, number, 0)


def held(*numbers: int, writer: str = "a") -> list[tuple[DLSN, bytes]]:
    return [(place(number), payload_of(writer, number)) for number in numbers]


def test_what_is_as_it_was_told_passes() -> None:
    outcomes = [told(1), told(2, "failed"), told(3, "unknown"), told(4, "unknown"), told(5)]
    check_log("log", held(1, 3, 5), outcomes, ())
    check_log("log", held(2, 1, writer=PLAIN), [told(1, writer=PLAIN), told(2, writer=PLAIN)], (PLAIN,))


@pytest.mark.parametrize(
    ("records", "outcomes", "noticed"),
    [
        ([], [told(1)], "acknowledged, found at None"),
        ([(place(2), payload_of("a", 1))], [told(1)], "acknowledged, found at"),
        ([*held(1), (place(2), payload_of("a", 1))], [told(1)], "twice"),
        ([(place(1), payload_of("a", 7)), (place(2), payload_of("a", 7))], [told(7, "unknown")], "twice"),
        (held(1), [told(1, "failed")], "said not to be written"),
        (held(1, 2), [told(1)], "never written"),
        (held(2, 1), [told(1), told(2)], "not in its order"),
    ],
)
def test_what_is_not_is_noticed(records: list[tuple[DLSN, bytes]], outcomes: list[Written], noticed: str) -> None:
    with pytest.raises(AssertionError, match=noticed):
        check_log("log", records, outcomes, (PLAIN,))


def test_only_what_was_sent_behind_a_fault_shows_that_it_is_over() -> None:
    outcomes = [told(1), told(2, "unknown"), told(3), told(4)]
    assert first_acknowledgements(outcomes, ["log", "other"], 1.2) == {"log": pytest.approx(2.3)}
