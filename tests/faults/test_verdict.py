"""The judge of the kill rounds sees every way in which a log can be wrong."""

from __future__ import annotations

import pytest
from helpers.faults.record_writer import payload_of
from helpers.faults.verdict import Outcomes, check_round

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord


def record(number: int, place: int | None = None, payload: bytes | None = None) -> LogRecord:
    entry = number if place is None else place
    return LogRecord(number, payload or payload_of(number), DLSN(1, entry, 0), entry + 1, flags=0, sequence_id=entry)


LOG = [record(number) for number in range(5)]


def told(*lines: str) -> Outcomes:
    outcomes = Outcomes()
    for line in lines:
        outcomes.take(line)
    return outcomes


def test_a_log_that_holds_what_was_acknowledged_passes() -> None:
    outcomes = told("ready", "ok 0 1:0:0", "ok 3 1:3:0", "unknown 4 Timeout", "unknown 9 Timeout", "failed 7 Refused")
    check_round(outcomes, LOG, LOG[:2])
    assert outcomes.notes == ["ready"]


@pytest.mark.parametrize(
    ("outcomes", "log", "seen", "says"),
    [
        (told("ok 9 1:9:0"), LOG, [], "acknowledged but not there"),
        (told("ok 2 1:3:0"), LOG, [], "acknowledged but not there"),
        (told("failed 2 Refused"), LOG, [], "said not to be applied"),
        (told(), [*LOG, record(4, 5)], [], "twice"),
        (told(), [record(1, 0), record(0, 1)], [], "order"),
        (told(), [record(0), record(1, payload=b"other")], [], "not itself"),
        (told(), [record(0), record(2)], [], "sequence"),
        (told(), LOG, [LOG[1]], "reader"),
        (told(), LOG, [*LOG, record(5)], "reader"),
    ],
)
def test_a_log_that_is_wrong_fails(outcomes: Outcomes, log: list[LogRecord], seen: list[LogRecord], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_round(outcomes, log, seen)
