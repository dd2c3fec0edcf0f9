"""One log in two hands: the Java DistributedLog core's and ours, with the same words for both.

A `Side` creates, writes, reads, truncates and describes a log through one of the two libraries; records and segments
come as the same dictionaries from either, so that a test says once what both have to do, and compares.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.core.sync.readers import LogReader
from dlspark.core.sync.writer import LogWriter
from dlspark.errors import status_code
from dlspark.testing.java_process import JavaError, JavaTool
from helpers.interop.java_tool import described, make_payload
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import DistributedLogError

RECORD_BYTES = 150
ENTRY_RECORDS = 10
FIRST_TXID = 1000
Facts: TypeAlias = dict[str, Any]
BothErrors = (JavaError, DistributedLogError)

READ_ATTEMPTS = 3

OWNERSHIP_FAILED = 302
TOO_LONG = 413
ALREADY_TRUNCATED = 511
END_OF_STREAM = 512
TXID_OUT_OF_ORDER = 513
READ_CANCELLED = 1002
TRUNCATION_WORDS = {
    TruncationStatus.ACTIVE: "ACTIVE",
    TruncationStatus.PARTIALLY_TRUNCATED: "PARTIALLY_TRUNCATED",
    TruncationStatus.TRUNCATED: "TRUNCATED",
}


def code_of(error: BaseException) -> int | None:
    """Return the library's status code of an error of either side."""
    return error.code if isinstance(error, JavaError) else status_code(error)


def owner_of(error: BaseException) -> str | None:
    """Return the owner that an OwnershipAcquireFailed of either side names."""
    owner: str | None = getattr(error, "owner", None)
    return owner


# ---------------------------------------------------------------------- records, the same from both sides


def expected(dlsns: Sequence[str], first: int = 0) -> list[Facts]:
    """Return what a reader gets for records first.. with these DLSNs; sequence ids run on over segments."""
    return [
        {
            "dlsn": dlsn,
            "txid": FIRST_TXID + index,
            "sequence_id": index,
            **described(make_payload(0, index, RECORD_BYTES)),
        }
        for index, dlsn in enumerate(dlsns, first)
    ]


def java_view(records: list[Facts]) -> list[Facts]:
    assert not any(record["control"] for record in records)
    return [
        {key: value for key, value in record.items() if key not in ("position", "control", "set")} for record in records
    ]


def our_view(records: list[LogRecord]) -> list[Facts]:
    return [
        {
            "dlsn": str(record.dlsn),
            "txid": record.txid,
            "sequence_id": record.sequence_id,
            **described(bytes(record.payload)),
        }
        for record in records
    ]


def our_segment(segment: SegmentMetadata) -> Facts:
    """Return a segment of ours in the words of the Java side."""
    return {
        "lssn": segment.lssn,
        "ledger": segment.ledger_id,
        "in_progress": segment.in_progress,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "completed_ms": segment.completion_time_ms,
        "count": segment.record_count,
        "last_entry": segment.last_entry,
        "last_slot": segment.last_slot,
        "start_sequence_id": None if segment.in_progress else segment.effective_start_sequence_id,
        "version": segment.version,
        "region": segment.region,
        "truncation": TRUNCATION_WORDS[segment.truncation],
        "min_entry": segment.min_entry,
        "min_slot": segment.min_slot,
    }


# ---------------------------------------------------------------------- our library


@contextmanager
def our_log(uri: str, name: str, **settings: int | float | str) -> Iterator[Log]:
    with Namespace.open(uri, {"lockTimeoutSeconds": 0, **settings}) as namespace:
        if not namespace.log_exists(name):
            namespace.create_log(name)
        with namespace.open_log(name) as log:
            yield log


def we_write(log: Log, first: int, number: int) -> list[str]:
    """Write records first.. through a writer that is closed in the end; their DLSNs."""
    with log.open_writer() as writer:
        return write_records(writer, first, number)


def write_records(writer: LogWriter, first: int, number: int) -> list[str]:
    futures = [
        writer.write(FIRST_TXID + index, make_payload(0, index, RECORD_BYTES)) for index in range(first, first + number)
    ]
    writer.flush()
    return [str(future.result(60)) for future in futures]


def we_read(log: Log, number: int, start: str | int = "earliest") -> list[LogRecord]:
    with log.open_reader(start) as reader:
        return read_records(reader, number)


def read_records(reader: LogReader, number: int, timeout_s: float = 20) -> list[LogRecord]:
    """Read the next `number` records, fewer if they do not come in time."""
    records: list[LogRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < number and time.monotonic() < deadline:
        records += reader.read_bulk(number - len(records))
    return records


# ---------------------------------------------------------------------- the Java library


UNCACHED = {"logSegmentCacheEnabled": "false"}
"""For a Java namespace that is to see what another process did to segments that it has seen before: its cache goes by
their names, which truncation leaves as they are."""


class JavaLog:
    """A log as the Java library has it open. Namespaces stay open with the process: closing one takes Java seconds."""

    def __init__(self, tool: JavaTool, uri: str, name: str, *, region: int = 0, **settings: object) -> None:
        self.tool = tool
        self._key = f"{uri} {region} {sorted(settings.items())}"
        if self._key not in tool.kept:
            tool.kept[self._key] = tool.call("dl.open", uri=uri, settings=settings, region=region)
        self._namespace = tool.kept[self._key]
        self._name = name

    def close_namespace(self) -> None:
        """Close it all the same, for everybody who has it open."""
        self.tool.call("dl.close", namespace=self.tool.kept.pop(self._key))

    def call(self, do: str, **arguments: object) -> Any:
        return self.tool.call(f"dl.{do}", namespace=self._namespace, log=self._name, **arguments)

    def read(self, number: int, **where: object) -> list[Facts]:
        """Read the next `number` records of a reader that is opened there.

        More tries where it stops short: upstream's segment reader can lose a wake-up (a request that is queued between
        its finding the queue empty and its giving up its turn is forgotten) and then waits for ever; and its read-ahead
        can ask a segment's reader once more that it is closing, at the end of a segment, and then fails.
        """
        return self._tried("read", number, timeout_ms=8000, **where)

    def read_sync(self, number: int) -> list[Facts]:
        """Read the first `number` records, by a synchronous reader."""
        return self._tried("read_sync", number)

    def _tried(self, do: str, number: int, **arguments: object) -> list[Facts]:
        for _ in range(READ_ATTEMPTS - 1):
            try:
                records: list[Facts] = self.call(do, count=number, **arguments)
            except JavaError as error:
                if error.code != READ_CANCELLED:
                    raise
                continue
            if len(records) == number:
                return records
        last: list[Facts] = self.call(do, count=number, **arguments)
        return last


def java_writes(log: JavaLog, first: int, number: int, *, abort: bool = False) -> list[str]:
    """Write records first.. by Java; aborted instead of closed, the segment stays in progress."""
    writer = log.call("writer")
    dlsns: list[str] = log.call(
        "write", writer=writer, txid=FIRST_TXID + first, first=first, count=number, size=RECORD_BYTES
    )
    log.call("abort_writer" if abort else "close_writer", writer=writer)
    return dlsns


# ---------------------------------------------------------------------- either


class SideWriter(ABC):
    """A writer. `close` completes its segment, `abort` leaves it in progress."""

    @abstractmethod
    def write(self, txids: Sequence[int], *, first: int = 0, size: int = RECORD_BYTES) -> list[str]:
        """Write records of these ids with the made payloads number `first`.., acknowledged and visible; their DLSNs."""

    def write_numbered(self, first: int, number: int) -> list[str]:
        """Write records first.. as `expected` wants them."""
        return self.write(range(FIRST_TXID + first, FIRST_TXID + first + number), first=first)

    @abstractmethod
    def write_set(self, txid: int, first: int, number: int, codec: str) -> list[str]:
        """Write one record set of the made payloads number `first`..; the DLSNs of its members."""

    @abstractmethod
    def mark_end_of_stream(self) -> None: ...

    @abstractmethod
    def truncate(self, dlsn: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...


class Side(ABC):
    """One log in the hands of one library."""

    name: str

    @abstractmethod
    def open_writer(self) -> SideWriter: ...

    def write(self, first: int, number: int) -> list[str]:
        """Write a segment of the records first.., at most ten to an entry; their DLSNs."""
        writer = self.open_writer()
        dlsns: list[str] = []
        try:
            for batch in range(first, first + number, ENTRY_RECORDS):
                dlsns += writer.write_numbered(batch, min(ENTRY_RECORDS, first + number - batch))
        except BothErrors:
            writer.abort()
            raise
        writer.close()
        return dlsns

    def truncate(self, dlsn: str) -> None:
        writer = self.open_writer()
        writer.truncate(dlsn)
        writer.close()

    @abstractmethod
    def read(self, number: int, *, dlsn: str | None = None, txid: int | None = None) -> list[Facts]:
        """Read the next records from a DLSN, a transaction id, or the first one."""

    @abstractmethod
    def following(self) -> AbstractContextManager[Follower]:
        """Open a reader that stays open, from the first record on."""

    @abstractmethod
    def segments(self) -> list[Facts]: ...

    @abstractmethod
    def facts(self) -> Facts:
        """Return first and last record, and whether the log is sealed."""

    @abstractmethod
    def count(self, dlsn: str) -> int:
        """Return the number of records from a DLSN on."""

    @abstractmethod
    def find(self, txids: Sequence[int]) -> list[str]:
        """Return where a reader by each of these transaction ids begins."""

    @abstractmethod
    def purge(self, txid: int) -> None: ...


class Follower(ABC):
    @abstractmethod
    def next(self, number: int) -> list[Facts]: ...


class OurWriter(SideWriter):
    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, txids: Sequence[int], *, first: int = 0, size: int = RECORD_BYTES) -> list[str]:
        futures = [self._writer.write(txid, make_payload(0, index, size)) for index, txid in enumerate(txids, first)]
        self._writer.commit()
        return [str(future.result(60)) for future in futures]

    def write_set(self, txid: int, first: int, number: int, codec: str) -> list[str]:
        payloads = [make_payload(0, index, RECORD_BYTES) for index in range(first, first + number)]
        futures = self._writer.write_record_set(txid, payloads, codec)
        self._writer.commit()
        return [str(future.result(60)) for future in futures]

    def mark_end_of_stream(self) -> None:
        self._writer.mark_end_of_stream()

    def truncate(self, dlsn: str) -> None:
        self._writer.truncate(dlsn)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()


class OurFollower(Follower):
    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def next(self, number: int) -> list[Facts]:
        return our_view(read_records(self._reader, number))


class OurSide(Side):
    name = "ours"

    def __init__(self, log: Log) -> None:
        self.log = log

    def open_writer(self) -> SideWriter:
        return OurWriter(self.log.open_writer())

    def read(self, number: int, *, dlsn: str | None = None, txid: int | None = None) -> list[Facts]:
        return our_view(we_read(self.log, number, dlsn or (txid if txid is not None else "earliest")))

    @contextmanager
    def following(self) -> Iterator[Follower]:
        with self.log.open_reader() as reader:
            yield OurFollower(reader)

    def segments(self) -> list[Facts]:
        return [our_segment(segment) for segment in self.log.segments()]

    def facts(self) -> Facts:
        first, last = our_view([self.log.first_record(), self.log.last_record()])
        return {"first": first, "last": last, "sealed": self.log.is_sealed()}

    def count(self, dlsn: str) -> int:
        return self.log.record_count(DLSN.parse(dlsn))

    def find(self, txids: Sequence[int]) -> list[str]:
        return [str(self.log.find_txid(txid)) for txid in txids]

    def purge(self, txid: int) -> None:
        self.log.purge_older_than(txid)


class JavaWriter(SideWriter):
    def __init__(self, log: JavaLog) -> None:
        self._log = log
        self._writer = log.call("writer")

    def write(self, txids: Sequence[int], *, first: int = 0, size: int = RECORD_BYTES) -> list[str]:
        dlsns: list[str] = self._log.call(
            "write", writer=self._writer, txids=list(txids), first=first, count=len(txids), size=size
        )
        return dlsns

    def write_set(self, txid: int, first: int, number: int, codec: str) -> list[str]:
        dlsns: list[str] = self._log.call(
            "write_set",
            writer=self._writer,
            txid=txid,
            first=first,
            count=number,
            size=RECORD_BYTES,
            codec=codec.upper(),
        )
        return dlsns

    def mark_end_of_stream(self) -> None:
        self._log.call("end_of_stream", writer=self._writer)

    def truncate(self, dlsn: str) -> None:
        self._log.call("truncate", writer=self._writer, dlsn=dlsn)

    def close(self) -> None:
        self._log.call("close_writer", writer=self._writer)

    def abort(self) -> None:
        self._log.call("abort_writer", writer=self._writer)


class JavaFollower(Follower):
    """Where upstream's reader fails at the end of a segment (see `JavaLog.read`) another one goes on, as it says."""

    def __init__(self, log: JavaLog) -> None:
        self._log = log
        self._reader = log.call("reader")
        self._position = "1:0:0"

    def next(self, number: int) -> list[Facts]:
        records: list[Facts] = []
        while len(records) < number:
            try:
                found = self._log.tool.call("dl.next", reader=self._reader, count=number - len(records))
            except JavaError as error:
                if error.code != READ_CANCELLED:
                    raise
                self._reader = self._log.call("reader", dlsn=self._position)
                continue
            if not found:
                break
            records += found
            lssn, entry, slot = found[-1]["dlsn"].split(":")
            self._position = f"{lssn}:{entry}:{int(slot) + 1}"
        return java_view(records)

    def close(self) -> None:
        self._log.tool.call("dl.close_reader", reader=self._reader)


class JavaSide(Side):
    name = "Java"

    def __init__(self, log: JavaLog) -> None:
        self.log = log

    def open_writer(self) -> SideWriter:
        return JavaWriter(self.log)

    def read(self, number: int, *, dlsn: str | None = None, txid: int | None = None) -> list[Facts]:
        where = {"dlsn": dlsn} if dlsn is not None else {"from_txid": txid or 0}
        return java_view(self.log.read(number, **where))

    @contextmanager
    def following(self) -> Iterator[Follower]:
        follower = JavaFollower(self.log)
        yield follower
        follower.close()

    def segments(self) -> list[Facts]:
        segments: list[Facts] = self.log.call("segments")
        for segment in segments:
            del segment["name"]
            if segment["in_progress"]:
                segment["start_sequence_id"] = None  # computed, where ours tells what is stored
        return segments

    def facts(self) -> Facts:
        facts = self.log.call("facts")
        first, last = java_view([facts["first"], facts["last"]])
        return {"first": first, "last": last, "sealed": facts["end_of_stream"]}

    def count(self, dlsn: str) -> int:
        number: int = self.log.call("count", dlsn=dlsn)
        return number

    def find(self, txids: Sequence[int]) -> list[str]:
        dlsns: list[str] = self.log.call("find_txids", txids=list(txids))
        return dlsns

    def purge(self, txid: int) -> None:
        self.log.call("purge", txid=txid)


WAYS = ("ours to Java", "Java to ours")


@dataclass(frozen=True)
class Pair:
    """One log: whoever writes it, and the other."""

    writer: Side
    reader: Side

    @property
    def ours(self) -> OurSide:
        return next(side for side in (self.writer, self.reader) if isinstance(side, OurSide))

    @property
    def javas(self) -> JavaSide:
        return next(side for side in (self.writer, self.reader) if isinstance(side, JavaSide))


@contextmanager
def pair_of(java: JavaTool, uri: str, log: str, way: str, **settings: int | float | str) -> Iterator[Pair]:
    """Make the log `log` by us, with these settings on both sides; `way` says which library writes it."""
    on_both: dict[str, Any] = {**UNCACHED, **settings}
    with our_log(uri, log, **settings) as opened:
        ours, javas = OurSide(opened), JavaSide(JavaLog(java, uri, log, **on_both))
        yield Pair(ours, javas) if way == WAYS[0] else Pair(javas, ours)
