"""A program as users write it, for mypy: what public names give has the types that it says. It is checked, not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from dlspark import (
    DLSN,
    AppendReader,
    AsyncLockedReader,
    AsyncLogReader,
    AsyncNamespace,
    DLSNRange,
    LockedReader,
    Log,
    LogReader,
    LogRecord,
    LogWriter,
    Namespace,
    PendingWrite,
    Permissions,
    SettableFeatures,
    Settings,
)
from metadata.foundation.errors import DistributedLogError, OutcomeUnknownError

if TYPE_CHECKING:
    from typing_extensions import assert_type


def synchronous(uri: str) -> None:
    settings = Settings().with_values({"writerOutputBufferSize": 0})
    with Namespace.open(uri, settings, features=SettableFeatures()) as namespace, namespace.open_log("a") as log:
        assert_type(namespace, Namespace)
        assert_type(log, Log)
        assert_type(namespace.logs(), list[str])
        assert_type(namespace.access_control.of("a"), Permissions)
        with log.open_writer() as writer:
            assert_type(writer, LogWriter)
            write = writer.write(1, b"x")
            assert_type(write, PendingWrite[DLSN])
            assert_type(write.result(1.0), DLSN)
            assert_type([one.result() for one in writer.write_bulk([(2, b"y")])], list[DLSN])
            assert_type(writer.flush(), int)
        with log.open_reader(DLSN.INITIAL) as reader:
            assert_type(reader, LogReader)
            assert_type(reader.read_next(), "LogRecord | None")
            assert_type(iter(reader), Iterator[LogRecord])
            payloads: list[bytes] = [record.payload for record in reader.read_bulk(10)]
            print(payloads)
        with log.open_reader(subscriber="s") as locked:
            assert_type(locked, LockedReader)
            assert_type(locked.commit_position(), DLSN)
        assert_type(log.open_reader(exclusive=True), LockedReader)
        assert_type(log.open_append_reader(), AppendReader)
        assert_type(log.subscribers(), dict[str, DLSN])
        assert_type(log.picture("bytes", mark=DLSNRange(log.start(), log.end())).svg, str)
        log.tail(seconds=1.0)


async def asynchronous(uri: str) -> AsyncIterator[LogRecord]:
    async with await AsyncNamespace.open(uri) as namespace, await namespace.open_log("a") as log:
        async with await log.open_writer() as writer:
            assert_type(await writer.write(1, b"x"), DLSN)
        async with await log.open_reader("earliest") as reader:
            assert_type(reader, AsyncLogReader)
            async for record in reader:
                yield record
        assert_type(await log.open_reader(subscriber="s"), AsyncLockedReader)
        async for change in namespace.watch_logs():
            assert_type(change.added, bool)


def what_to_do(error: DistributedLogError) -> str | None:
    if isinstance(error, OutcomeUnknownError):
        return "look"
    return error.advice
