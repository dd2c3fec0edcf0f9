"""The matrix of whole logs: written by one library, read by the other, in every state a log can be in.

Each row is one state of a log. Its writer brings it there; then both libraries have to tell the same of it: segments,
records from every interesting position, first and last record, counts, and where readers by transaction id begin.
Without --rounds the logs are compressed, and Java is the newest one, but for a log that the older one, or we beside it,
left in progress, which is not compressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from helpers.interop.clusters import NEWEST, VERSIONS
from helpers.interop.log_sides import FIRST_TXID, OurSide, Pair, SideWriter, expected, pair_of

from dlspark.testing.java_process import JavaTool


@dataclass
class Written:
    """What a state's writer has left behind."""

    dlsns: list[str]
    """Of all records ever written."""
    truncated: int = 0
    """How many of them are hidden."""
    sealed: bool = False
    open_writer: SideWriter | None = None


State = Callable[[Pair], Written]


def three_segments(pair: Pair) -> list[str]:
    return pair.writer.write(0, 40) + pair.writer.write(40, 30) + pair.writer.write(70, 20)


def completed(pair: Pair) -> Written:
    return Written(three_segments(pair))


def in_progress(pair: Pair) -> Written:
    dlsns = pair.writer.write(0, 40)
    writer = pair.writer.open_writer()
    for first in (40, 50, 60):  # each batch is followed by a control record
        dlsns += writer.write_numbered(first, 10)
    return Written(dlsns, open_writer=writer)


def left_in_progress(pair: Pair) -> Written:
    dlsns = pair.writer.write(0, 40)
    writer = pair.writer.open_writer()
    dlsns += writer.write_numbered(40, 30)
    writer.abort()
    return Written(dlsns)


def truncated_by_its_writer(pair: Pair) -> Written:
    dlsns = three_segments(pair)
    pair.writer.truncate(dlsns[70])
    return Written(dlsns, truncated=70)


def partially_truncated_by_its_writer(pair: Pair) -> Written:
    dlsns = three_segments(pair)
    pair.writer.truncate(dlsns[60])
    return Written(dlsns, truncated=60)


def truncated_by_the_other(pair: Pair) -> Written:
    dlsns = three_segments(pair)
    pair.reader.truncate(dlsns[70])
    return Written(dlsns, truncated=70)


def partially_truncated_by_the_other(pair: Pair) -> Written:
    dlsns = three_segments(pair)
    pair.reader.truncate(dlsns[60])
    return Written(dlsns, truncated=60)


def truncated_by_both(pair: Pair) -> Written:
    dlsns = three_segments(pair)
    pair.writer.truncate(dlsns[10])
    pair.reader.truncate(dlsns[50])
    pair.writer.truncate(dlsns[60])
    return Written(dlsns, truncated=60)


def truncated_and_written_on(pair: Pair) -> Written:
    dlsns = three_segments(pair)
    pair.writer.truncate(dlsns[60])
    return Written(dlsns + pair.reader.write(90, 25), truncated=60)


def sealed(pair: Pair) -> Written:
    dlsns = pair.writer.write(0, 40)
    writer = pair.writer.open_writer()
    dlsns += writer.write_numbered(40, 30)
    writer.mark_end_of_stream()
    writer.close()
    return Written(dlsns, sealed=True)


def written_in_turns(pair: Pair) -> Written:
    dlsns: list[str] = []
    for turn in range(4):
        dlsns += (pair.writer if turn % 2 else pair.reader).write(20 * turn, 20)
    return Written(dlsns)


STATES: dict[str, State] = {
    state.__name__.replace("_", " "): state
    for state in (
        completed,
        in_progress,
        left_in_progress,
        truncated_by_its_writer,
        partially_truncated_by_its_writer,
        truncated_by_the_other,
        partially_truncated_by_the_other,
        truncated_by_both,
        truncated_and_written_on,
        sealed,
        written_in_turns,
    )
}


@pytest.fixture
def pair(java: JavaTool, uri: str, log_name: str, way: str, compression: str) -> Iterator[Pair]:
    with pair_of(java, uri, log_name, way, compressionType=compression) as opened:
        yield opened


def rows() -> list[object]:
    """Every state with the newest version, some with the older one, too; each with both compressions."""
    older = ("completed", "left in progress", "partially truncated by the other", "sealed")
    return [
        pytest.param(
            version,
            state,
            compression,
            id=f"{state}-{version}-{compression}",
            marks=() if in_ci(version, state, compression) else pytest.mark.long,
        )
        for version in VERSIONS
        for state in STATES
        if version == NEWEST or state in older
        for compression in ("lz4", "none")
    ]


def in_ci(version: str, state: str, compression: str) -> bool:
    """Return whether a row is tried without --rounds; `test_logs_across` has records of both compressions."""
    if version == NEWEST:
        return compression == "lz4"
    return (state, compression) == ("left in progress", "none")


@pytest.mark.parametrize(("version", "state", "compression"), rows())
def test_a_log_is_the_same_from_both_sides(pair: Pair, state: str) -> None:
    written = STATES[state](pair)
    with ExitStack() as stack:
        if written.open_writer is not None:
            stack.callback(written.open_writer.close)
        records = expected(written.dlsns)
        left = records[written.truncated :]
        partly_truncated = any(segment["truncation"] == "PARTIALLY_TRUNCATED" for segment in pair.writer.segments())
        for side in (pair.reader, pair.writer):
            assert side.read(len(left)) == left
            assert side.read(len(left), dlsn=left[0]["dlsn"]) == left
            assert side.read(5, dlsn=left[-7]["dlsn"]) == left[-7:-2]
            assert side.read(5, txid=left[3]["txid"]) == left[3:8]
            facts = side.facts()
            assert (facts["last"], facts["sealed"]) == (left[-1], written.sealed)
            if isinstance(side, OurSide) or not partly_truncated:  # Java's first record ignores the minimum position
                assert facts["first"] == left[0]
            assert side.count(left[4]["dlsn"]) == len(left) - 4
        txids = range(FIRST_TXID + written.truncated, FIRST_TXID + len(records), 3)
        assert pair.reader.find(txids) == pair.writer.find(txids)
        assert pair.reader.segments() == pair.writer.segments()
