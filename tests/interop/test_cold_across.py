"""A log whose past lies in files, in the hands of the Java core, which knows of none: it reads what is on the log's
list, hears of the rest what its own retention would have told it, and takes nothing away from our readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cold.moved import HandMover
from helpers.cold.places import folder_place
from helpers.interop.clusters import InteropCluster
from helpers.interop.log_sides import (
    READ_CANCELLED,
    UNCACHED,
    Facts,
    JavaLog,
    JavaSide,
    Pair,
    expected,
    java_view,
    our_log,
    our_view,
    pair_of,
    read_records,
    we_read,
)
from helpers.interop.retention import age_segments, ledger_exists, wait_until_purged

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.testing.java_process import JavaError, JavaTool
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_units import ColdUnit

LOCKED = 504
OVER = {603: "its segment has left the list", 600: "its ledger is gone", READ_CANCELLED: "its reader is closed"}
"""What ends a reader of Java's whose segment goes, by the code; which of them it hears first is a race."""
SEGMENT_RECORDS = 40
SEGMENTS = 4
ALL = SEGMENTS * SEGMENT_RECORDS
APART = 5
"""Records an entry: Java reads ten entries ahead, and is inside a segment for long."""


class Mover:
    """Moves segments of one log into a folder, step by step, as a worker of ours in a process of its own would."""

    def __init__(self, uri: str, log: str, folder: Path) -> None:
        self._log = log
        self._runtime = Runtime("cold-across")
        self._namespace = self._runtime.run(AsyncNamespace.open(uri, {"lockTimeoutSeconds": 0}))
        self._hand = self._runtime.run(self._opened(folder_place(folder).root))

    async def _opened(self, root: str) -> HandMover:
        return HandMover(self._namespace, root, row_group_bytes=2_000)

    def copy(self, first: int, last: int) -> Versioned[ColdUnit]:
        """Copy segments into one file: both exist then."""
        return self._runtime.run(self._hand.copy(self._log, first, last))

    def delete_hot(self, unit: Versioned[ColdUnit]) -> None:
        """Take the segments off the log's list, and delete their ledgers."""
        self._runtime.run(self._hand.delete_hot(self._log, unit))

    def move(self, first: int, last: int) -> None:
        """Do both."""
        self._runtime.run(self._hand.move(self._log, first, last))

    def follow_truncation(self) -> None:
        """Do what the first step of a worker's pass is."""
        self._runtime.run(self._hand.cold.follow_truncation(self._log))

    def close(self) -> None:
        """Close what is open."""
        self._runtime.run(self._hand.files.close())
        self._runtime.run(self._namespace.close())
        self._runtime.close()


@pytest.fixture
def mover(uri: str, log_name: str, tmp_path: Path) -> Iterator[Mover]:
    opened = Mover(uri, log_name, tmp_path / "cold")
    yield opened
    opened.close()


def write_segments(pair: Pair) -> list[Facts]:
    """Write the segments, in many entries each; return their records."""
    dlsns: list[str] = []
    for first in range(0, ALL, SEGMENT_RECORDS):
        writer = pair.writer.open_writer()
        for entry in range(first, first + SEGMENT_RECORDS, APART):
            dlsns += writer.write_numbered(entry, APART)
        writer.close()
    return expected(dlsns)


def all_of_ours(pair: Pair, records: list[Facts]) -> None:
    """Compare what a reader of ours finds, from the first record and from one in each segment."""
    assert pair.ours.read(len(records)) == records
    for at in range(SEGMENT_RECORDS // 2, len(records), SEGMENT_RECORDS):
        assert pair.ours.read(3, dlsn=str(records[at]["dlsn"])) == records[at : at + 3]


def all_of_java(pair: Pair, records: list[Facts], *, start: str = "1:0:0") -> None:
    """Compare what Java's readers find, asynchronous, synchronous, by position and by transaction id; and its facts."""
    javas = pair.javas
    count = len(records)
    assert javas.read(count) == records
    assert javas.read(count, dlsn=start) == records
    assert java_view(javas.log.read_sync(count)) == records
    middle = count // 2
    assert javas.read(10, txid=int(records[middle]["txid"])) == records[middle : middle + 10]
    facts = javas.facts()
    assert (facts["first"], facts["last"]) == (records[0], records[-1])
    assert javas.count(str(records[0]["dlsn"])) == count


def test_java_reads_everything_as_long_as_the_ledgers_are_there(plain_pair: Pair, mover: Mover) -> None:
    """A reader that was open before as well; and what its own library wrote has been copied right."""
    records = write_segments(plain_pair)
    listed = plain_pair.javas.segments()
    with plain_pair.javas.following() as follower:
        assert follower.next(7) == records[:7]
        mover.copy(1, 2)
        mover.copy(3, 3)
        assert follower.next(ALL - 7) == records[7:]
    assert plain_pair.javas.segments() == listed
    all_of_java(plain_pair, records)
    all_of_ours(plain_pair, records)


def test_java_starts_behind_what_lies_in_files_alone(plain_pair: Pair, mover: Mover) -> None:
    records = write_segments(plain_pair)
    with plain_pair.javas.following() as follower:
        assert follower.next(2 * SEGMENT_RECORDS + 7) == records[: 2 * SEGMENT_RECORDS + 7]
        mover.move(1, 2)
        # Whoever is behind what goes hears nothing of it.
        assert follower.next(2 * SEGMENT_RECORDS - 7) == records[2 * SEGMENT_RECORDS + 7 :]
    assert [one["lssn"] for one in plain_pair.javas.segments()] == [3, 4]
    for start in ("1:0:0", str(records[SEGMENT_RECORDS + 3]["dlsn"])):
        all_of_java(plain_pair, records[2 * SEGMENT_RECORDS :], start=start)
    all_of_ours(plain_pair, records)


@pytest.mark.parametrize("by", ["our mover", "its own purge"])
def test_a_java_reader_inside_a_segment_that_goes_hears_what_its_own_retention_tells(
    java: JavaTool, uri: str, log_name: str, mover: Mover, by: str
) -> None:
    """Its library ends any reader whose segment leaves the list, however it left. What it gave before is right, and the
    next reader, at the position of the last, starts behind; ours are not disturbed."""
    with pair_of(java, uri, log_name, "ours to Java") as pair:
        records = write_segments(pair)
        unit = mover.copy(1, 2)
        javas = pair.javas.log
        reader = javas.call("reader")
        found = java_view(java.call("dl.next", reader=reader, count=7))
        with pair.ours.log.open_reader("earliest") as ours:
            seen = our_view(read_records(ours, 7))
            if by == "our mover":
                mover.delete_hot(unit)
            else:
                javas.call("purge", txid=records[2 * SEGMENT_RECORDS]["txid"])
            told = read_to_its_end(java, reader, found)
            seen += our_view(read_records(ours, ALL - 7))
        assert told.code in OVER
        assert found == records[: len(found)]
        java.call("dl.close_reader", reader=reader)
        behind = records[2 * SEGMENT_RECORDS :]
        assert pair.javas.read(len(behind), dlsn=str(found[-1]["dlsn"])) == behind
        assert seen == records
        all_of_ours(pair, records)


def read_to_its_end(java: JavaTool, reader: int, found: list[Facts]) -> JavaError:
    """Read on, record by record, until Java's reader fails; return what it says."""
    while len(found) < ALL:
        try:
            found += java_view(java.call("dl.next", reader=reader, count=1))
        except JavaError as error:
            return error
    raise AssertionError("it read all, of ledgers that are gone")


def test_what_javas_retention_takes_away_is_read_on_in_files(
    java: JavaTool, ours: InteropCluster, zk: str, uri: str, log_name: str, mover: Mover, way: str
) -> None:
    with pair_of(java, uri, log_name, way) as pair:
        records = write_segments(pair)
    age_segments(zk, log_name, count=3, hours=3)
    unit, other = mover.copy(1, 2), mover.copy(3, 3)
    with pair_of(java, uri, log_name, way) as pair, pair.ours.log.open_reader("earliest") as inside:
        seen = our_view(read_records(inside, 7))
        old = [segment["ledger"] for segment in pair.javas.segments()][:3]
        retaining = JavaSide(JavaLog(java, uri, log_name, **UNCACHED, logSegmentRetentionHours=1))
        writer = retaining.open_writer()
        records += expected(writer.write_numbered(ALL, 10), ALL)
        wait_until_purged(retaining, [4, 5], java, ours, old)
        writer.close()
        seen += our_view(read_records(inside, len(records) - 7))
        assert seen == records
        all_of_ours(pair, records)
        all_of_java(pair, records[3 * SEGMENT_RECORDS :])
        # A mover finds no hot copies any more, and takes them for gone.
        mover.delete_hot(unit)
        mover.delete_hot(other)
        all_of_ours(pair, records)
        assert not any(ledger_exists(java, ours, ledger) for ledger in old)


def test_java_writes_on_and_truncates_a_log_whose_past_lies_in_files(plain_pair: Pair, mover: Mover) -> None:
    pair = plain_pair
    records = write_segments(pair)
    mover.move(1, 2)
    records += expected(pair.javas.write(ALL, 20), ALL)
    mover.move(3, 4)
    records += expected(pair.javas.write(ALL + 20, 20), ALL + 20)
    records += expected(pair.ours.write(ALL + 40, 20), ALL + 40)
    all_of_ours(pair, records)
    all_of_java(pair, records[ALL:])
    assert pair.ours.count("1:0:0") == len(records)
    # What Java wrote leaves for a file as well.
    mover.move(5, 5)
    all_of_ours(pair, records)
    pair.javas.truncate(str(records[ALL + 40]["dlsn"]))
    assert pair.ours.read(20) == records[ALL + 40 :], "before a mover has followed it, too"
    mover.follow_truncation()
    for side in (pair.ours, pair.javas):
        assert side.read(20) == records[ALL + 40 :]
    assert pair.ours.facts()["first"] == records[ALL + 40]


def test_java_cannot_rename_a_log_that_has_files_and_we_can(
    java: JavaTool, uri: str, log_name: str, plain_pair: Pair, mover: Mover
) -> None:
    """Its rename moves the znodes that it knows, and deletes their parent: it fails as a whole, and changes nothing."""
    records = write_segments(plain_pair)
    mover.move(1, 2)
    mover.copy(3, 3)
    namespace = java.call("dl.open", uri=uri, settings={})
    with pytest.raises(JavaError) as refused:
        java.call("dl.rename", namespace=namespace, log=log_name, name=f"{log_name}-java")
    java.call("dl.close", namespace=namespace)
    assert refused.value.code == LOCKED
    all_of_ours(plain_pair, records)
    name = f"{log_name}-ours"
    with Namespace.open(uri, {"lockTimeoutSeconds": 0}) as ours:
        ours.rename_log(log_name, name)
        assert (ours.log_exists(f"{log_name}-java"), ours.log_exists(log_name)) == (False, False)
    with our_log(uri, name) as log:
        assert our_view(we_read(log, ALL)) == records
    assert java_view(JavaLog(java, uri, name, **UNCACHED).read(10)) == records[2 * SEGMENT_RECORDS :][:10]


def test_java_deletes_a_log_that_has_files(
    java: JavaTool, uri: str, log_name: str, plain_pair: Pair, mover: Mover, tmp_path: Path
) -> None:
    """It leaves no note that condemns them: they stay, and are nobody's. A new log of the name has none of them."""
    write_segments(plain_pair)
    mover.move(1, 2)
    mover.copy(3, 3)
    files = sorted((tmp_path / "cold").rglob("*.parquet"))
    assert len(files) == 2
    namespace = java.call("dl.open", uri=uri, settings={})
    java.call("dl.delete", namespace=namespace, log=log_name)
    with Namespace.open(uri, {"lockTimeoutSeconds": 0}) as ours:
        assert not ours.log_exists(log_name)
        assert log_name not in java.call("dl.list", namespace=namespace)
        ours.create_log(log_name)
        with ours.open_log(log_name) as log:
            made_anew(log)
        mover.move(1, 1)
        with ours.open_log(log_name) as log:
            assert [one.lssn for one in log.segments()] == [1, 2]
            assert [record.txid for record in we_read(log, 2)] == [1, 2]
        ours.delete_log(log_name)
    java.call("dl.close", namespace=namespace)
    assert set(files) < set((tmp_path / "cold").rglob("*.parquet"))


def made_anew(log: Log) -> None:
    """Write two segments into a log that has none."""
    assert log.segments() == []
    for txid in (1, 2):
        with log.open_writer() as writer:
            writer.write(txid, b"%d" % txid)
