"""Ledger workloads: writers that fence each other, readers at the tail, recoverers beside them, a deleter.

A *chain* is a sequence of ledgers, as a log's segments are: a client that wants to write recovers the last ledger and
goes on in one of its own. Programs run in client processes and know nothing of each other but the chain; they are
killed and paused like nodes, and started again. All answers that clients get go to the checkers and into the history.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from random import Random

from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.foundation.errors import InvariantViolation, NoNodeError
from simulation.checkers.history import RecordedOperation
from simulation.checkers.ledgers import LedgerTruth, ledger_of
from simulation.cluster import ClientMachine, World
from simulation.workloads.programs import Workload
from storage_node.client.reader import LedgerReader
from storage_node.client.writer import LedgerWriter

PASSWORD = b"secret"
SIZES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3), (2, 2, 2), (3, 3, 1))
"""Ensemble size, write quorum, ack quorum."""
TIGHT_SIZES = ((2, 2, 2), (3, 2, 2), (3, 3, 3))
"""One node that lacks an entry settles that it was never acknowledged: where recoveries and writers race for it.
Nearly all wait for each of their nodes: where one is replaced, entries are on their way."""
MAX_LEDGERS = 8
PAYLOADS = (0, 1, 20, 300, 2_000)
LARGE_PAYLOAD = 70_000
DOUBT_POLL_S = 0.004


@dataclass(slots=True)
class LedgerChain:
    """Ledgers that follow each other, as a log's segments do."""

    name: str
    sizes: tuple[int, int, int]
    digest: DigestType
    ledgers: list[int] = field(default_factory=list)


def draw_chains(rng: Random, *, contested: bool = False, replacing: bool = False) -> list[LedgerChain]:
    """Return one or two chains, with quorums and digests drawn for the kind of run."""
    digests = (DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC)
    sizes = TIGHT_SIZES if replacing or (contested and rng.random() < 0.5) else SIZES
    return [
        LedgerChain(f"chain{index}", rng.choice(sizes), rng.choice(digests)) for index in range(rng.choice((1, 1, 2)))
    ]


def _closed(truth: LedgerTruth) -> bool:
    return truth.metadata is not None and truth.metadata.is_closed


class LedgerWorkload(Workload):
    """The programs of one run and what they share."""

    def __init__(self, world: World, chains: list[LedgerChain]) -> None:
        super().__init__(world)
        self.chains = chains
        self.entries_left = 0

    def draw_amount(self, rng: Random) -> None:
        """Draw how many entries the run writes: more where nodes are replaced, so that some are written meanwhile."""
        self.entries_left = rng.randint(300, 400) if self.replacing else rng.randint(60, 200)

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """(E, W, A) of each chain."""
        return [chain.sizes for chain in self.chains]

    @property
    def most_ledgers(self) -> int:
        """So many a chain; in contested runs more and shorter ones: many are recovered while they are written."""
        return 2 * MAX_LEDGERS if self.contested else MAX_LEDGERS

    def start_programs(self, rng: Random) -> None:
        """Add writers and tailing readers of each chain, recoverers, and auto-recovery."""
        for chain in self.chains:
            for index in range(rng.choice((1, 2, 2))):
                self.add_program(f"w{index}-{chain.name}", partial(self.write, chain))
            for index in range(rng.choice((0, 1, 1))):
                self.add_program(f"r{index}-{chain.name}", partial(self.tail, chain))
        for index in range(2 if self.contested else rng.choice((0, 0, 1, 2))):
            self.add_program(f"recoverer{index}", self.recover_some)
        if self.contested:
            self.add_program("rival", self.recover_doubtful)
        for index in range(rng.choice((0, 0, 0, 2))):
            self.add_program(f"auto{index}", self.replicate)
        if rng.random() < 0.3:
            self.add_program("deleter", self.delete_some)

    # ------------------------------------------------------------------------------------ writing

    async def write(self, chain: LedgerChain, client: ClientMachine) -> None:
        """Take the chain over, write for a while, again and again."""
        rng = self.world.rng(f"write/{client.name}/{client.runs}")
        await asyncio.sleep(rng.uniform(0, 0.3))
        while not self.over and self.entries_left > 0 and len(chain.ledgers) < self.most_ledgers:
            writer = await self._take_over(chain, client)
            await self._push(writer, client, rng)
            if rng.random() < 0.6:
                await self._close(writer, client)
            elif rng.random() < 0.5:
                await writer.abandon()
            await asyncio.sleep(rng.uniform(0, 0.5))

    async def _take_over(self, chain: LedgerChain, client: ClientMachine) -> LedgerWriter:
        if chain.ledgers:
            await self.recover(chain.ledgers[-1], client)
        size, write_quorum, ack_quorum = chain.sizes
        with self.world.history.operation(client.name, "create", chain.name):
            writer = await client.ledgers.create(
                ensemble_size=size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest_type=chain.digest,
                password=PASSWORD,
            )
        chain.ledgers.append(writer.ledger_id)
        return writer

    @property
    def _bursts(self) -> tuple[int, int]:
        """Of one writer: at least and at most."""
        return (40, 80) if self.replacing else (1, 8 if self.contested else 50)

    async def _push(self, writer: LedgerWriter, client: ClientMachine, rng: Random) -> None:
        """Write small bursts, one after the other, so that adds are under way most of the time."""
        pace = rng.choice((0.002, 0.01, 0.03)) if not self.replacing else 0.02
        futures = []
        for _ in range(rng.randint(*self._bursts)):
            if self.over or writer.error is not None or self.entries_left <= 0:
                break
            for _ in range(rng.choice((1, 1, 1, 2, 6))):
                futures.append(self._add(writer, client, rng))
                self.entries_left -= 1
            await asyncio.sleep(rng.uniform(0, 2 * pace))
            if rng.random() < 0.05:
                await writer.wait_for_room()
        if futures:
            await asyncio.wait(futures)

    def _add(self, writer: LedgerWriter, client: ClientMachine, rng: Random) -> asyncio.Future[int]:
        ledger_id, entry_id = writer.ledger_id, writer.last_add_pushed + 1
        size = LARGE_PAYLOAD if rng.random() < 0.005 else rng.choice(PAYLOADS)
        payload = b"%d:%d:" % (ledger_id, entry_id) + rng.randbytes(size)
        operation = self.world.history.begin(client.name, "add", f"{ledger_id}/{entry_id}")
        # Before the add: checkers judge its frames by this.
        self.world.ledger_checkers.pushed(ledger_id, entry_id, payload)
        future = writer.add(payload)
        future.add_done_callback(partial(self._added, ledger_id, entry_id, operation))
        return future

    def _added(self, ledger_id: int, entry_id: int, operation: RecordedOperation, future: asyncio.Future[int]) -> None:
        error = future.exception()
        self.world.history.end(operation, error)
        if error is None:
            self.world.ledger_checkers.acknowledged(ledger_id, entry_id)
            return
        if isinstance(error, InvariantViolation):
            self.world.ledger_checkers.fail(f"the writer of ledger {ledger_id} broke an invariant: {error!r}")
        self.world.reached(f"writer.{type(error).__name__}")
        self.world.ledger_checkers.refused(ledger_id, entry_id, error)

    async def _close(self, writer: LedgerWriter, client: ClientMachine) -> None:
        with self.world.history.operation(client.name, "close", str(writer.ledger_id)):
            metadata = await writer.close()
        self.world.ledger_checkers.end_seen(client.name, writer.ledger_id, metadata.last_entry, metadata.length)

    # ------------------------------------------------------------------------------------ recovering and reading

    async def recover(self, ledger_id: int, client: ClientMachine) -> None:
        """Fence and close a ledger, if it still exists."""
        try:
            with self.world.history.operation(client.name, "recover", str(ledger_id)):
                reader = await client.ledgers.open(ledger_id, password=PASSWORD, recover=True)
        except NoNodeError:
            return
        self.world.ledger_checkers.end_seen(client.name, ledger_id, reader.last_add_confirmed, reader.length)
        await reader.close()

    async def recover_some(self, client: ClientMachine) -> None:
        """Recover ledgers at random moments, beside writers and other recoverers."""
        rng = self.world.rng(f"recover/{client.name}/{client.runs}")
        for _ in range(12 if self.contested else rng.randint(1, 3)):
            await asyncio.sleep(rng.uniform(0.02, 0.3) if self.contested else rng.uniform(0.1, 1.0))
            chain = rng.choice(self.chains)
            if self.over:
                return
            if self.contested and rng.random() < 0.8 and await self._under_way(chain):
                await self.recover(chain.ledgers[-1], client)
            elif chain.ledgers:
                await self.recover(rng.choice(chain.ledgers[-2:]), client)

    async def recover_doubtful(self, client: ClientMachine) -> None:
        """Recover each ledger as soon as a change of its metadata was lost: the client that made it is in doubt."""
        rng = self.world.rng(f"doubts/{client.name}/{client.runs}")
        doubts: list[str] = []
        self.world.service.doubted = doubts.append
        while not self.over:
            ledger_id = ledger_of(doubts[-1]) if doubts else None
            doubts.clear()
            if ledger_id is not None and any(ledger_id in chain.ledgers for chain in self.chains):
                self.world.reached("recovery.of-doubtful")
                await self.recover(ledger_id, client)
            await asyncio.sleep(rng.uniform(0, 2 * DOUBT_POLL_S))

    async def _under_way(self, chain: LedgerChain) -> bool:
        """Wait for a bad moment: entries of the newest ledger are on their way. False if there was none for a while."""
        for _ in range(30):
            if chain.ledgers and not self.over:
                truth = self.world.ledger_checkers.truth(chain.ledgers[-1])
                if max(truth.pushed, default=-1) > truth.acknowledged and not _closed(truth):
                    return True
            await asyncio.sleep(0.005)
        return False

    async def tail(self, chain: LedgerChain, client: ClientMachine) -> None:
        """Read the chain from its beginning, ledger by ledger, as it grows."""
        rng = self.world.rng(f"tail/{client.name}/{client.runs}")
        position = 0
        while not self.over:
            if position == len(chain.ledgers):
                await asyncio.sleep(0.1)
                continue
            try:
                await self._tail_ledger(chain.ledgers[position], client, rng)
            except NoNodeError:
                if not self.world.ledger_checkers.truth(chain.ledgers[position]).deleted:
                    raise
            position += 1

    async def _tail_ledger(self, ledger_id: int, client: ClientMachine, rng: Random) -> None:
        reader = await client.ledgers.open(ledger_id, password=PASSWORD, recover=False)
        try:
            await self._follow(reader, client.name, rng)
        finally:
            await reader.close()

    async def _follow(self, reader: LedgerReader, name: str, rng: Random) -> None:
        checkers, ledger_id = self.world.ledger_checkers, reader.ledger_id
        following, lac = 0, -1
        while not self.over:
            entry = await reader.poll(following, rng.choice((50, 400)))
            lac, before = reader.last_add_confirmed, lac
            checkers.lac_seen(name, ledger_id, before, lac)
            if entry is not None:
                self.world.reached("reader.tailed")
                checkers.entry_read(name, ledger_id, following, bytes(entry.payload))
                following += 1
            elif reader.closed and following > reader.last_add_confirmed:
                checkers.end_seen(name, ledger_id, reader.last_add_confirmed, reader.length)
                return
            if rng.random() < 0.05:
                await reader.read_last_confirmed()
            if following > 3 and rng.random() < 0.1:
                first = rng.randrange(following)
                for again in await reader.read(first, following - 1):
                    checkers.entry_read(name, ledger_id, again.entry_id, bytes(again.payload))

    # ------------------------------------------------------------------------------------ deleting

    async def delete_some(self, client: ClientMachine) -> None:
        """Delete a ledger that its chain has left behind."""
        rng = self.world.rng(f"delete/{client.name}/{client.runs}")
        await asyncio.sleep(rng.uniform(0.5, 2.5))
        chain = rng.choice(self.chains)
        if len(chain.ledgers) > 1 and not self.over:
            with self.world.history.operation(client.name, "delete", str(chain.ledgers[0])):
                await client.ledgers.delete(chain.ledgers[0])
            self.world.reached("ledger.deleted")

    # ------------------------------------------------------------------------------------ the end

    async def verify(self, client: ClientMachine) -> None:
        """Verify that every ledger that was not deleted can be recovered and read whole, and a new one written."""
        for chain in self.chains:
            for ledger_id in chain.ledgers:
                if not self.world.ledger_checkers.truth(ledger_id).deleted:
                    await self.patiently(f"reading ledger {ledger_id}", partial(self._read_all, client, ledger_id))
            await self.patiently("writing", partial(self._write_and_read, client, chain))

    async def _read_all(self, client: ClientMachine, ledger_id: int) -> None:
        checkers = self.world.ledger_checkers
        reader = await client.ledgers.open(ledger_id, password=PASSWORD, recover=True)
        try:
            end = reader.last_add_confirmed
            checkers.end_seen(client.name, ledger_id, end, reader.length)
            if end >= 0:
                entries = await reader.read(0, end)
                for entry in entries:
                    checkers.entry_read(client.name, ledger_id, entry.entry_id, bytes(entry.payload))
                if [entry.entry_id for entry in entries] != list(range(end + 1)):
                    checkers.fail(f"reading ledger {ledger_id} gave other entries than 0 to {end} (I4)")
        finally:
            await reader.close()

    async def _write_and_read(self, client: ClientMachine, chain: LedgerChain) -> None:
        writer = await self._take_over(chain, client)
        rng = self.world.rng(f"verify/{chain.name}")
        await asyncio.gather(*(self._add(writer, client, rng) for _ in range(3)))
        await self._close(writer, client)
        await self._read_all(client, writer.ledger_id)
