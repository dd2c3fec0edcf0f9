"""`AppenderServer`: takes a driver's batches at a socket in a private folder, and hands them to an appender.

It is at its end when no batch has come for `appendIdleRelease` and no log is held any more, when the driver has ended,
or when it is stopped. Batches that are under way are finished first.

What comes from the socket is bounded and checked, though only this user's processes reach it; nothing of it is
executed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.append.appender import AppendedLog, BatchToAppend, SinkAppender
from dlspark.spark.sink.append.clients import LENGTHS, MAX_BODY_BYTES, check_lengths, find_peer, framed
from dlspark.spark.sink.append.folders import AppenderFolder, ProcessName, ShortPath
from dlspark.spark.sink.append.log_opening import LogOpener
from dlspark.spark.sink.append.marks import AppendTools
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import InlineRows, JobId
from dlspark.spark.sink.session import HAND_OVER_S, open_session
from metadata.foundation.errors import CorruptDataError, DistributedLogError, InvariantViolation
from metadata.foundation.tasks import end_tasks
from metadata.store import MetadataStore, SessionState

LOOK_EVERY_S: Final = 0.5
"""How often it looks whether the driver runs, and whether anything is left to do."""
FIRST_BATCH_S: Final = 60.0
"""How long it waits for its first batch."""
MAX_CONNECTIONS: Final = 64
END_S: Final = 30.0
"""How long giving up the logs may take at the end."""

_log = logging.getLogger(__name__)


class AppenderServer:
    """Takes batches at one socket. Made on the event loop, as all coroutines run there.

    Args:
        appender: appends the batches.
        folder: where it listens.
        noting: knows the session by which logs are held.
    """

    def __init__(self, appender: SinkAppender, folder: AppenderFolder, noting: SessionNote) -> None:
        self._appender = appender
        self._folder = folder
        self._noting = noting
        self._secret = secrets.token_hex(32)
        self._listening: asyncio.AbstractServer | None = None
        self._address: ShortPath | None = None
        self._closing = False
        self._serving: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._idle_s = FIRST_BATCH_S
        self._used_at = asyncio.get_running_loop().time()

    async def listen(self) -> None:
        """Begin to take batches."""
        self._folder.write_private(self._folder.secret, self._secret)
        self._folder.socket.unlink(missing_ok=True)
        self._address = self._folder.address()
        self._listening = await asyncio.start_unix_server(self._accept, self._address.text, limit=MAX_BODY_BYTES)

    async def until_done(self, stop: asyncio.Event, driver: ProcessName) -> None:
        """Return when there is nothing left to do, the driver has ended, or `stop` is set."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stopping.done() and driver.runs:
                busy = self._under_way or self._appender.held
                if not busy and loop.time() - self._used_at > self._idle_s:
                    return
                await asyncio.wait([stopping], timeout=LOOK_EVERY_S)
        finally:
            await end_tasks([stopping])

    async def close(self) -> None:
        """Take no more batches, and wait for those that are under way."""
        self._closing = True
        # First of all: a commit that finds no socket starts another process, whose writer waits for this one's lock.
        self._folder.socket.unlink(missing_ok=True)
        if self._listening is not None:
            self._listening.close()
        if self._address is not None:
            self._address.close()
        while self._under_way:
            await asyncio.wait(self._serving, timeout=LOOK_EVERY_S)
        await end_tasks(self._serving, drop_errors=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lengths = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
                check_lengths(*lengths)
                head, body = [await reader.readexactly(length) for length in lengths]
                writer.write(await self._answer(*decode_request(self._secret, head, body)))
                await writer.drain()
        except (OSError, EOFError):
            pass  # The commit has ended. A batch of it has been appended or not; it comes again if that was not known.
        except DistributedLogError as error:
            _log.warning("a connection is closed: %s", error)
        finally:
            writer.close()

    async def _answer(self, batch: BatchToAppend, session: int | None) -> bytes:
        """Return the answer to a batch. `session`: as whose owner this process is asked by another one; None: by its
        own driver."""
        self._under_way += 1
        try:
            if session is None:
                return encode_outcome(await self._appender.append(batch))
            asked = session == self._noting.session_id and not self._closing
            return encode_outcome(await self._appender.append_as_owner(batch) if asked else None)
        except DistributedLogError as error:
            return encode_error(error)
        except Exception as error:
            _log.exception("a batch failed")
            return encode_error(InvariantViolation(f"appending {batch.job} failed: {error!r}"))
        finally:
            self._under_way -= 1
            self._used_at = asyncio.get_running_loop().time()
            self._idle_s = batch.idle_ms / 1000


async def serve(
    options: Options,
    folder: AppenderFolder,
    driver: ProcessName,
    left_session: bytes,
    stop: asyncio.Event,
    listens: Callable[[], None],
) -> None:
    """Append what comes, until there is nothing left to do; `listens` is called once batches are taken.

    `left_session`: of a process that was killed, in whose place this one is; it is ended before a log is opened.
    """
    noting = SessionNote(folder, left_session)
    idle_ms = options.duration_ms("appendIdleRelease") or 0
    opener: LogOpener | None = None

    async def open_one(log: str) -> AppendedLog:
        nonlocal opener
        session = await open_session(options, appending=True)
        if await noting.take(session.namespace.store) or opener is None:
            always = options.proxies is not None
            tools = AppendTools.of(session)
            opener = LogOpener(tools, session.proxies, always=always, find=find_peer, idle_ms=idle_ms)
        return await opener.open(log)

    appender = SinkAppender(open_one, deadline_s=max(options.outage_ms / 1000, HAND_OVER_S))
    server = AppenderServer(appender, folder, noting)
    try:
        await server.listen()
        listens()
        await server.until_done(stop, driver)
    finally:
        await server.close()
        # Where ZooKeeper does not come back, it cannot be done, nor be cut off: the process ends all the same, and the
        # next owner recovers the logs.
        await asyncio.wait([asyncio.ensure_future(appender.close())], timeout=END_S)


class SessionNote:
    """Writes down by which session this process holds its logs, and ends that of its predecessor."""

    def __init__(self, folder: AppenderFolder, left: bytes) -> None:
        self._folder = folder
        self._left = left
        self._store: MetadataStore | None = None

    @property
    def session_id(self) -> int | None:
        """The session by which it holds them now."""
        return self._store.session_id if self._store is not None else None

    async def take(self, store: MetadataStore) -> bool:
        """Note the session of `store`, before a log is opened, and each one that follows it; returns whether the store
        is another one than before. Never raises."""
        other = self._store is not store
        if other:
            self._store = store
            store.on_session(self._changed)
            self._changed(store.state)
        left, self._left = self._left, b""
        if left:
            try:
                await store.end_session(left)
            except DistributedLogError as error:
                _log.warning(
                    "the session of the process before was not ended, its logs are locked for a while: %s", error
                )
        return other

    def _changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED and self._store is not None:
            with suppress(OSError):  # the folder has been removed: the process is at its end
                self._folder.write_private(self._folder.session, self._store.session_token.hex())


# ---------------------------------------------------------------------- this end of what is said (see `clients`)


def decode_request(secret: str, head: bytes, body: bytes) -> tuple[BatchToAppend, int | None]:
    """Return the batch of a request, and as whose owner it is asked (`encode_request`). Raises CorruptDataError for
    anything else, and for another secret."""
    try:
        found = json.loads(head)
        if not hmac.compare_digest(str(found["secret"]).encode(), secret.encode()):
            raise CorruptDataError("a request came with another secret; nothing was done")
        sink_id, batch, attempt = found["job"]
        log, partition, first, last, count, size, stamp = found["part"]
        if not all(isinstance(number, int) for number in (batch, partition, first, last, count, size, found["idle"])):
            raise ValueError(found)
        job = JobId(str(sink_id), batch, str(attempt))
        rows = InlineRows(str(log), partition, first, last, count, size, stamp, body, found.get("raisable") is True)
        session = found["session"]
        if session is not None and not isinstance(session, int):
            raise ValueError(found)
        return BatchToAppend(job, rows, found["idle"]), session
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"a request cannot be read, nothing was done: {error!r}") from None


def encode_outcome(outcome: CommitOutcome | None) -> bytes:
    """Return the answer to a batch that is in the log; None: to one without rows, or another process's, for which
    nothing was done."""
    return framed({"outcome": outcome.value if outcome is not None else None}, b"")


def encode_error(error: DistributedLogError) -> bytes:
    """Return the answer to any other batch."""
    said = {name: value for name, value in vars(error).items() if isinstance(value, str | int)}
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DistributedLogError)]
    return framed({"error": {"kinds": kinds, "said": said}}, b"")
