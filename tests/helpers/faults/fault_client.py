"""A client process of the fault tests: it carries out commands, and reports each outcome as an event (see `judge`).

Commands are JSON objects, one a line on standard input:

    {"do": "write"}                 write ledgers until told to settle, then say `{"what": "settled"}`
    {"do": "scribe", "stream": l}   the same with a log, in turn with other scribes
    {"do": "settle"}
    {"do": "tail", "stream": n}     follow a ledger or a log without disturbing its writer
    {"do": "recover", "stream": n}  take a ledger from its writer
    {"do": "audit", "streams": []}  recover ledgers and read them whole; read logs whole
    {"step_clock_ms": n}            this process's wall clock is off by so much

What goes wrong is an event with `is` failed or unknown, or a note; a client never gives up.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from helpers.faults.hosts import Route, RoutedNetwork, WallClock
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import DistributedLogError, NotAppliedError
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.securing import open_session
from storage_node.client.client import LedgerClient
from storage_node.client.reader import LedgerReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerClosedError
from storage_node.settings.client import ClientSettings

SESSION_MS = 1500
OUTSTANDING = 24
PAUSE_S = 0.003
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 0.8
POLL_MS = 200
CLIENT = ClientSettings(
    add_entry_timeout_ms=600,
    read_entry_timeout_ms=600,
    speculative_read_ms=150,
    long_poll_ms=300,
    connect_timeout_ms=600,
    failure_memory_ms=1000,
    replacement_pause_ms=500,
    replacement_timeout_ms=500,
    vacancy_retry_ms=100,
)
LOG = {
    "zkSessionTimeoutSeconds": 1,
    "lockTimeoutSeconds": 3,
    "periodicFlushFrequencyMilliSeconds": 5,
    "writerOutputBufferSize": 1024,
}


def payload_of(value: str) -> bytes:
    """Return bytes that tell their value, of any length up to some hundred, and could not be another value's."""
    seed = hashlib.sha256(value.encode()).digest()
    return value.encode() + b"|" + seed * (seed[0] % 20)


def value_of(payload: bytes) -> str | None:
    """Return the value of a payload that is whole, else None."""
    text, mark, _ = bytes(payload).partition(b"|")
    value = text.decode("ascii", "replace")
    return value if mark and payload_of(value) == bytes(payload) else None


class Client:
    """One process: a ZooKeeper session, a ledger client, and its commands."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(seed)
        self.numbers = 0
        self.readers = 0
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.tails: set[asyncio.Task[None]] = set()
        self.settling = False
        self.retry_s = FIRST_RETRY_S
        self.ended = asyncio.Event()

    def say(self, what: str, is_: str, **more: object) -> None:
        event = {"at": time.monotonic_ns(), "who": self.name, "what": what, "is": is_, **more}
        print(json.dumps(event), flush=True)

    def note(self, error: BaseException, doing: str) -> None:
        self.say("note", "ok", text=f"{doing}: {type(error).__name__}: {error}")

    def value(self) -> str:
        self.numbers += 1
        return f"{self.name}.{self.numbers}"

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.tails.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.say("broken", "ok", text=repr(error))  # not raised on purpose anywhere: the round fails

    def settle(self) -> None:
        """Stop writing and following."""
        self.settling = True
        for task in self.tails:
            task.cancel()

    async def pause(self) -> None:
        """Wait before trying again, longer each time, until something has worked."""
        await asyncio.sleep(self.retry_s * self.rng.uniform(0.7, 1.3))
        self.retry_s = min(self.retry_s * 2, LAST_RETRY_S)

    async def attempt(self, what: str, call: Callable[[], Awaitable[Any]], **more: object) -> Any:
        """Do something, and say that it is begun; None, and how it ended, if it went wrong."""
        self.say(what, "invoke", **more)
        try:
            done = await call()
        except DistributedLogError as error:
            self.say(what, outcome(error), error=f"{type(error).__name__}: {error}", **more)
            await self.pause()
            return None
        self.retry_s = FIRST_RETRY_S
        return done


def outcome(error: BaseException) -> str:
    return "failed" if isinstance(error, NotAppliedError) else "unknown"


class Ledgers:
    """What a client does to ledgers."""

    def __init__(self, client: Client, ledgers: LedgerClient) -> None:
        self.client = client
        self.ledgers = ledgers

    async def write(self) -> None:
        """Write one ledger after the other; close some, and leave some for others to recover."""
        client = self.client
        client.settling = False
        while not client.settling:
            writer: LedgerWriter | None = await client.attempt("create", self.ledgers.create)
            if writer is None:
                continue
            client.say("create", "ok", stream=writer.ledger_id)
            closes, length = client.rng.random() < 0.7, client.rng.randint(20, 400)
            await self._fill(writer, length)
            if closes:
                await self._close(writer)
            await writer.abandon()
        client.say("settled", "ok")

    async def _fill(self, writer: LedgerWriter, length: int) -> None:
        adds: set[asyncio.Future[int]] = set()
        for _ in range(length):
            if writer.error is not None or self.client.settling:
                break
            self._add(writer, adds)
            await asyncio.sleep(PAUSE_S)
            if len(adds) >= OUTSTANDING:
                await asyncio.wait(adds, return_when=asyncio.FIRST_COMPLETED)
        if adds:
            await asyncio.wait(adds)

    def _add(self, writer: LedgerWriter, adds: set[asyncio.Future[int]]) -> None:
        value, stream = self.client.value(), writer.ledger_id
        self.client.say("add", "invoke", value=value, stream=stream)

        def ended(future: asyncio.Future[int]) -> None:
            adds.discard(future)
            error = None if future.cancelled() else future.exception()
            if future.cancelled():
                self.client.say("add", "unknown", value=value, stream=stream, error="cancelled")
            elif error is None:
                self.client.say("add", "ok", value=value, stream=stream, position=future.result())
            else:
                self.client.say("add", outcome(error), value=value, stream=stream, error=f"{error!r}")

        try:
            add = writer.add(payload_of(value))
        except DistributedLogError as error:
            # What made the writer fail says nothing of this one, which was never sent.
            self.client.say("add", "failed", value=value, stream=stream, error=f"{error!r}")
            return
        adds.add(add)
        add.add_done_callback(ended)

    async def _close(self, writer: LedgerWriter) -> None:
        metadata = await self.client.attempt("close", writer.close, stream=writer.ledger_id)
        if metadata is not None:
            self.client.say("close", "ok", stream=writer.ledger_id, last=metadata.last_entry)

    async def tail(self, ledger_id: int) -> None:
        """Follow a ledger to its end, with another reader where one fails."""
        done = False
        while not done:
            try:
                reader = await self.ledgers.open(ledger_id, recover=False)
            except DistributedLogError as error:
                self.client.note(error, f"opening {ledger_id} to follow it")
                await self.client.pause()
                continue
            self.client.readers += 1
            try:
                done = await self._follow(reader, f"{self.client.name}#{self.client.readers}")
            except DistributedLogError as error:
                self.client.note(error, f"following {ledger_id}")
                await self.client.pause()
            finally:
                await reader.close()

    async def _follow(self, reader: LedgerReader, who: str) -> bool:
        following, told = 0, -2
        while True:
            entry = await reader.poll(following, POLL_MS)
            if reader.last_add_confirmed != told:
                told = reader.last_add_confirmed
                self.client.say("lac", "ok", stream=reader.ledger_id, lac=told, who=who)
            if entry is not None:
                value = value_of(bytes(entry.payload))
                self.client.say("read", "ok", stream=reader.ledger_id, position=following, value=value, who=who)
                following += 1
            elif reader.closed and following > reader.last_add_confirmed:
                return True

    async def recover(self, ledger_id: int) -> LedgerReader | None:
        reader: LedgerReader | None = await self.client.attempt(
            "recover", lambda: self.ledgers.open(ledger_id, recover=True), stream=ledger_id
        )
        if reader is not None:
            self.client.say("recover", "ok", stream=ledger_id, last=reader.last_add_confirmed)
        return reader

    async def take(self, ledger_id: int) -> None:
        reader = await self.recover(ledger_id)
        if reader is not None:
            await reader.close()

    async def audit(self, ledger_id: int) -> None:
        while (reader := await self.recover(ledger_id)) is None:
            pass
        try:
            last = reader.last_add_confirmed
            entries = await reader.read(0, last) if last >= 0 else []
            values = [[entry.entry_id, value_of(bytes(entry.payload))] for entry in entries]
            self.client.say("contents", "ok", stream=ledger_id, values=values, last=last)
        finally:
            await reader.close()


class Logs:
    """What a client does to a log."""

    def __init__(self, client: Client, namespace: AsyncNamespace) -> None:
        self.client = client
        self.namespace = namespace

    async def scribe(self, name: str) -> None:
        """Write to the log some records at a time, and let others have it in between."""
        client = self.client
        client.settling = False
        log = await self.namespace.open_log(name)
        while not client.settling:
            writer = await client.attempt("acquire", log.open_writer)
            if writer is None:
                continue
            client.say("acquire", "ok")
            writes: list[asyncio.Future[Any]] = []
            try:
                for _ in range(client.rng.randint(20, 300)):
                    if client.settling:
                        break  # type: ignore[unreachable]
                    self._write(writer, name, writes)
                    await asyncio.sleep(PAUSE_S)
                    if len(writes) > OUTSTANDING:
                        await asyncio.wait({writes[-OUTSTANDING]})
                await writer.close()
            except DistributedLogError as error:
                client.note(error, "writing to the log")
                await self._give_up(writer)
            if writes:
                await asyncio.wait(writes)
        await log.close()
        client.say("settled", "ok")

    async def _give_up(self, writer: Any) -> None:
        try:
            await writer.abort()
        except DistributedLogError as error:
            self.client.note(error, "giving the log up")

    def _write(self, writer: Any, name: str, writes: list[asyncio.Future[Any]]) -> None:
        value = self.client.value()
        self.client.say("add", "invoke", value=value, stream=name)

        def ended(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if future.cancelled():
                self.client.say("add", "unknown", value=value, stream=name, error="cancelled")
            elif error is None:
                self.client.say("add", "ok", value=value, stream=name, position=list(future.result()))
            else:
                self.client.say("add", outcome(error), value=value, stream=name, error=f"{error!r}")

        try:
            write = writer.write(writer.last_txid + 1, payload_of(value))
        except DistributedLogError as error:
            self.client.say("add", "failed", value=value, stream=name, error=f"{error!r}")
            raise
        writes.append(write)
        write.add_done_callback(ended)

    async def tail(self, name: str) -> None:
        """Follow the log for as long as this process lives."""
        while True:
            self.client.readers += 1
            who = f"{self.client.name}#{self.client.readers}"
            try:
                log = await self.namespace.open_log(name)
                reader = await log.open_reader()
                while True:
                    for record in await reader.read_bulk(100):
                        self._say_read(name, who, record)
            except DistributedLogError as error:
                self.client.note(error, f"following {name}")
                await self.client.pause()

    def _say_read(self, name: str, who: str, record: Any) -> None:
        value = value_of(record.payload)
        self.client.say("read", "ok", stream=name, position=list(record.dlsn), value=value, who=who)

    async def audit(self, name: str) -> None:
        """Read the log whole; it is not written to any more."""
        values: list[list[object]] = []
        log = await self.namespace.open_log(name)
        async with await log.open_writer():
            pass  # whatever the last scribe left unfinished is recovered by this
        async with await log.open_reader() as reader:
            while records := await reader.read_available(1000, wait=True):
                values += [[list(record.dlsn), value_of(record.payload)] for record in records]
        await log.close()
        self.client.say("contents", "ok", stream=name, values=values)


def run(name: str, seed: int, zookeeper: str, namespace: str, ledgers: str, routes: Sequence[Route] = ()) -> int:
    """Be a client until standard input ends."""
    clock = WallClock()
    asyncio.run(_run(name, seed, zookeeper, namespace, ledgers, routes, clock))
    return 0


async def _run(
    name: str, seed: int, zookeeper: str, namespace: str, ledgers: str, routes: Sequence[Route], clock: WallClock
) -> None:
    client = Client(name, seed)
    store = await _connect(client, zookeeper)
    network = RoutedNetwork(routes)
    own = LedgerClient(
        LedgerStore(store, ledgers), BookieRegistry(store, ledgers), settings=CLIENT, network=network, rng=client.rng
    )
    logs = await AsyncNamespace.over(
        store, namespace, Settings.from_mapping(LOG), network=network, client_settings=CLIENT, rng=client.rng
    )
    _listen(client, Ledgers(client, own), Logs(client, logs), clock)
    client.say("ready", "ok")
    await client.ended.wait()
    for task in client.tasks:
        task.cancel()
    await asyncio.gather(*client.tasks, return_exceptions=True)
    await logs.close()
    await own.close()
    await store.close()


async def _connect(client: Client, zookeeper: str) -> ZooKeeperStore:
    while True:
        try:
            return await open_session(zookeeper, SecuritySettings(), session_timeout_ms=SESSION_MS)
        except DistributedLogError as error:
            client.note(error, "connecting to ZooKeeper")


def _listen(client: Client, ledgers: Ledgers, logs: Logs, clock: WallClock) -> None:
    def obey(command: dict[str, Any]) -> None:
        if "step_clock_ms" in command:
            clock.offset_ms = command["step_clock_ms"]
            return
        do: str = command["do"]
        stream: Any = command.get("stream")
        if do == "write":
            client.start(ledgers.write())
        elif do == "scribe":
            client.start(logs.scribe(stream))
        elif do == "settle":
            client.settle()
        elif do == "tail":
            client.tails.add(client.start(logs.tail(stream) if isinstance(stream, str) else ledgers.tail(stream)))
        elif do == "recover":
            client.start(ledgers.take(stream))
        elif do == "audit":
            client.start(audit(command["streams"]))
        else:
            client.say("broken", "ok", text=f"unknown command {command}")

    async def audit(streams: list[int | str]) -> None:
        for stream in streams:
            while True:
                try:
                    await (logs.audit(stream) if isinstance(stream, str) else ledgers.audit(stream))
                    break
                except (DistributedLogError, LedgerClosedError) as error:
                    client.note(error, f"auditing {stream}")
                    await client.pause()
        client.say("audited", "ok")

    def listen() -> None:
        for line in sys.stdin:
            client.loop.call_soon_threadsafe(obey, json.loads(line))
        client.loop.call_soon_threadsafe(client.ended.set)

    threading.Thread(target=listen, name="commands", daemon=True).start()
