"""All storage nodes killed at once under load: what was acknowledged is there after the restart, unchanged.

Every round writes ledgers of several shapes through the ledger client, ends all four nodes with SIGKILL at a moment
that its seed decides, starts them again and holds what is there against what was acknowledged:

* each node of an ensemble that acknowledges with all replicas has each acknowledged entry, byte for byte (asked
  directly, before anything could repair it);
* recovery closes each ledger at or behind its last acknowledged entry, and every such entry reads as it was written;
* a ledger that had been closed by a recovery before the kill ends where it ended, and refuses its former writer;
* the ledgers of the rounds before are as they were.

Three rounds in the ordinary run; `--rounds N` for more. Replay one with `--seed N`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers.waiting import until

from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import DistributedLogError
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerClosedError, LedgerFencedError
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_read_request
from storage_node.protocol.schema import Status
from storage_node.protocol.values import ReadResponse
from storage_node.settings.client import ClientSettings

pytestmark = pytest.mark.processes

DEFAULT_ROUNDS = 3
NODE_SETTINGS = {
    "zkTimeout": 20_000,  # a node that starts ends its former session itself
    # Small limits: checkpoints, new journal files and new entry logs fall into every round.
    "flushInterval": 150,
    "journalMaxSizeMB": 16,
    "journalPreAllocSizeMB": 2,
    "logSizeLimit": 16 * 1024 * 1024,
    "skipListSizeLimit": 32 * 1024 * 1024,
}
SHAPES = ((3, 3, 3), (3, 3, 2), (4, 3, 2), (4, 2, 2))
WINDOW = 64
KEPT_ROUNDS = 8
DEADLINE_S = 60.0
READ_BATCH = 200


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """A payload that could not be another entry's; sizes from 40 bytes to 80 KB, mostly small."""
    rng = random.Random(ledger_id * 1_000_003 + entry_id)
    size = rng.randrange(80_000) if rng.random() < 0.02 else rng.randrange(2_000)
    return b"ledger %d entry %d " % (ledger_id, entry_id) + rng.randbytes(20) + bytes(size)


@dataclass
class Written:
    """A ledger of a round, and what its writer was told."""

    ledger_id: int
    shape: tuple[int, int, int]
    acknowledged: set[int] = field(default_factory=set)
    end: int | None = None
    """The last entry, once a recovery has closed the ledger."""


class Arena:
    """The sandbox of all rounds, and the ledgers that it must still hold."""

    def __init__(self, directory: Path) -> None:
        self.sandbox = Sandbox(directory / "sandbox", nodes=4, node_settings=NODE_SETTINGS)
        self.sandbox.start()
        self.kept: list[list[Written]] = []
        self.acknowledged = 0
        self.rounds = 0

    def kill_all(self) -> None:
        pids = [pid for index in range(self.sandbox.node_count) if (pid := self.sandbox.node_pid(index)) is not None]
        assert len(pids) == self.sandbox.node_count, "a node had ended by itself"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for index in range(self.sandbox.node_count):
            self.sandbox.kill_node(index)

    def start_all(self) -> None:
        with ThreadPoolExecutor(self.sandbox.node_count) as threads:
            list(threads.map(self.sandbox.start_node, range(self.sandbox.node_count)))

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[LedgerClient]:
        store = await open_session(self.sandbox.zookeeper_address, SecuritySettings())
        settings = ClientSettings(add_entry_timeout_ms=30_000, replacement_timeout_ms=500)
        client = LedgerClient(LedgerStore(store, LEDGERS_PATH), BookieRegistry(store, LEDGERS_PATH), settings=settings)
        try:
            yield client
        finally:
            await client.close()
            await store.close()


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    opened = Arena(tmp_path_factory.mktemp("kill-all"))
    try:
        yield opened
    finally:
        opened.sandbox.stop()
        print(f"{opened.rounds} rounds, {opened.acknowledged} entries acknowledged")


# ------------------------------------------------------------------------------------------- load


async def write_on(writer: LedgerWriter, written: Written, stop: asyncio.Event) -> None:
    """Keep a window of adds under way until `stop` or an error, and note which are acknowledged."""
    window = asyncio.Semaphore(WINDOW)
    waiting: set[asyncio.Task[None]] = set()

    async def wait(adding: asyncio.Future[int]) -> None:
        try:
            written.acknowledged.add(await adding)
        except DistributedLogError:
            stop_here.set()
        finally:
            window.release()

    stop_here = asyncio.Event()
    while not stop.is_set() and not stop_here.is_set():
        await window.acquire()
        try:
            adding = writer.add(payload_of(writer.ledger_id, writer.last_add_pushed + 1))
        except DistributedLogError:
            break
        task = asyncio.ensure_future(wait(adding))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        await asyncio.sleep(0)
    await writer.abandon()
    while waiting:
        await asyncio.wait(set(waiting))


async def begin(client: LedgerClient, shape: tuple[int, int, int]) -> tuple[LedgerWriter, Written]:
    writer = await client.create(ensemble_size=shape[0], write_quorum=shape[1], ack_quorum=shape[2], password=b"")
    return writer, Written(writer.ledger_id, shape)


async def close_by_recovery(client: LedgerClient) -> Written:
    """A ledger that loses its writer to a recovery, before the kill."""
    writer, written = await begin(client, (3, 3, 2))
    for future in [writer.add(payload_of(written.ledger_id, number)) for number in range(20)]:
        written.acknowledged.add(await future)
    reader = await client.open(written.ledger_id, recover=True)
    written.end = reader.metadata.last_entry
    await reader.close()
    with pytest.raises((LedgerFencedError, LedgerClosedError)):
        await writer.add(b"too late")
    await writer.abandon()
    return written


async def load_until_killed(arena: Arena, rng: random.Random) -> list[Written]:
    async with arena.client() as client:
        closed = await close_by_recovery(client)
        begun = [await begin(client, shape) for shape in SHAPES]
        stop = asyncio.Event()
        writing = [asyncio.ensure_future(write_on(writer, written, stop)) for writer, written in begun]
        await until(lambda: all(written.acknowledged for _, written in begun))
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await asyncio.to_thread(arena.kill_all)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*writing), DEADLINE_S)
    return [closed, *(written for _, written in begun)]


# ------------------------------------------------------------------------------------------- the check


async def ask_node(bookie: str, ledger_id: int, entry_ids: list[int]) -> dict[int, ReadResponse]:
    """One node's own answers, over a connection of our own."""
    host, _, port = bookie.rpartition(":")
    reader, sender = await asyncio.open_connection(host, int(port))
    answers: dict[int, ReadResponse] = {}
    try:
        for start in range(0, len(entry_ids), READ_BATCH):
            asked = entry_ids[start : start + READ_BATCH]
            sender.write(b"".join(encode_read_request(entry_id + 1, ledger_id, entry_id) for entry_id in asked))
            for _ in asked:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                answer = decode_response(memoryview(frame))
                assert isinstance(answer, ReadResponse)
                answers[answer.txn_id - 1] = answer
    finally:
        sender.close()
        await sender.wait_closed()
    return answers


async def check_nodes(client: LedgerClient, written: Written) -> None:
    """Every node of an entry's ensemble had to have it before it was acknowledged: so every node has it now. A writer
    may have replaced the first that was killed before the last was."""
    reader = await client.open(written.ledger_id, recover=False)
    wanted: dict[str, list[int]] = {}
    for entry_id in sorted(written.acknowledged):
        ensemble = [one for one in reader.metadata.ensembles if one.first_entry <= entry_id][-1]
        for bookie in ensemble.bookies:
            wanted.setdefault(bookie, []).append(entry_id)
    await reader.close()
    for bookie, entry_ids in wanted.items():
        answers = await ask_node(bookie, written.ledger_id, entry_ids)
        for entry_id, answer in answers.items():
            assert answer.status == Status.EOK, (bookie, written.ledger_id, entry_id, answer.status)
            body = bytes(answer.body or b"")
            expected = payload_of(written.ledger_id, entry_id)
            assert body.endswith(expected), (bookie, written.ledger_id, entry_id)


async def check_ledger(client: LedgerClient, written: Written) -> None:
    reader = await client.open(written.ledger_id, recover=True)
    try:
        last = reader.metadata.last_entry
        assert last is not None
        assert last >= max(written.acknowledged, default=-1), (written.ledger_id, last)
        assert written.end is None or last == written.end, "a closed ledger has one end for ever (I2)"
        written.end = last
        for first in range(0, last + 1, READ_BATCH):
            for entry in await reader.read(first, min(first + READ_BATCH - 1, last)):
                expected = payload_of(written.ledger_id, entry.entry_id)
                assert bytes(entry.payload) == expected, (written.ledger_id, entry.entry_id)
    finally:
        await reader.close()


async def check_all(arena: Arena, written: list[Written], rng: random.Random) -> None:
    async with arena.client() as client:
        for one in written:
            if one.shape == (3, 3, 3):
                await check_nodes(client, one)
        for one in written:
            await check_ledger(client, one)
        for one in rng.choice(arena.kept) if arena.kept else []:
            await check_ledger(client, one)
        arena.kept.append(written)
        while len(arena.kept) > KEPT_ROUNDS:
            for old in arena.kept.pop(0):
                await client.delete(old.ledger_id)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" in metafunc.fixturenames:
        one: int | None = metafunc.config.getoption("--seed")
        rounds: int | None = metafunc.config.getoption("--rounds")
        seeds = [one] if one is not None else list(range(DEFAULT_ROUNDS if rounds is None else rounds))
        metafunc.parametrize("round_seed", seeds)


def test_what_was_acknowledged_survives_the_kill_of_all_nodes_at_once(arena: Arena, round_seed: int) -> None:
    rng = random.Random(round_seed)
    written = asyncio.run(load_until_killed(arena, rng))
    arena.start_all()
    asyncio.run(check_all(arena, written, rng))
    acknowledged = [len(one.acknowledged) for one in written]
    arena.acknowledged += sum(acknowledged)
    arena.rounds += 1
    print(f"seed {round_seed}: acknowledged {acknowledged}, ends {[one.end for one in written]}")
