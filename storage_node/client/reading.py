"""Reading committed entries from their replicas: what `LedgerReader` and the executor-side `ReplicaReader` share.

Every entry is verified before anybody sees it (I12). Replicas are asked in write-set order, those that failed or were
slow lately last; after a silence the next one is asked beside.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from metadata.bookies import UnknownBookieError
from metadata.errors import CallerError, DistributedLogError, check
from metadata.ledger_metadata import DigestType, LedgerMetadata
from storage_node.client.answers import answer_error
from storage_node.client.connections import Answer, ConnectionPool
from storage_node.client.settings import ClientSettings
from storage_node.edge import Network
from storage_node.errors import ProtocolError
from storage_node.protocol.digests import Entry, EntryDigest
from storage_node.protocol.messages import Operation, ReadResponse, Status, encode_read_request
from storage_node.protocol.reading import EntryRead
from storage_node.protocol.striping import write_set
from storage_node.transport import TcpNetwork

WINDOW_BYTES = 8 << 20
WINDOW_ENTRIES = 32


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """All that is needed to read a ledger without metadata store: it travels to Spark's executors by pickle.

    `addresses` gives (host, port) by bookie id; a bookie that is missing there counts as unreachable.
    """

    ledger_id: int
    metadata: LedgerMetadata
    addresses: Mapping[str, tuple[str, int]]


class _Fetch:
    """One entry on its way."""

    __slots__ = ("asked", "bookies", "entry_id", "future", "machine", "metadata", "since")

    def __init__(
        self, machine: EntryRead, entry_id: int, metadata: LedgerMetadata, bookies: tuple[str, ...], now: float
    ) -> None:
        self.machine = machine
        self.entry_id = entry_id
        self.metadata = metadata
        self.bookies = bookies
        self.since = now
        self.asked: list[tuple[str, int]] = []  # bookies and transaction ids
        self.future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()


class EntryFetcher:
    """Fetches entries of one ledger."""

    def __init__(self, pool: ConnectionPool, ledger_id: int, *, on_lac: Callable[[int], None] | None = None) -> None:
        self._pool = pool
        self._ledger_id = ledger_id
        self._on_lac = on_lac
        self._digest: EntryDigest | None = None
        self._open: set[_Fetch] = set()

    def fetch(self, metadata: LedgerMetadata, entry_id: int) -> asyncio.Future[Entry]:
        """Ask for an entry; cancel the future if it is no longer wanted.

        Fails with the error that says most of why none of its replicas gave it, with its place.
        """
        if self._digest is None:
            self._digest = EntryDigest(metadata.digest_type or DigestType.CRC32, metadata.password or b"")
        bookies = metadata.ensemble_for(entry_id).bookies
        indices = write_set(entry_id, len(bookies), metadata.write_quorum)
        machine = EntryRead(self._pool.health.reading_order(indices, bookies))
        fetch = _Fetch(machine, entry_id, metadata, bookies, self._pool.loop.time())
        fetch.future.add_done_callback(lambda future: self._settled(fetch, future))
        if not self._open:
            self._pool.sweeper.join(self._speculate)
        self._open.add(fetch)
        self._ask(fetch, machine.ask_next())
        return fetch.future

    def _ask(self, fetch: _Fetch, index: int | None) -> None:
        if index is None:
            return
        bookie = fetch.bookies[index]
        pool = self._pool
        txn_id = pool.next_txn_id()
        fetch.asked.append((bookie, txn_id))
        pool.to(bookie).request(
            txn_id,
            Operation.READ,
            encode_read_request(txn_id, self._ledger_id, fetch.entry_id),
            pool.settings.read_entry_timeout_ms,
            lambda answer: self._answered(fetch, bookie, answer),
        )

    def _answered(self, fetch: _Fetch, bookie: str, answer: Answer) -> None:
        if fetch.future.done():
            return
        entry = self._verified(fetch, bookie, answer)
        if isinstance(entry, Entry):
            self._pool.health.answered(bookie)
            if fetch.machine.succeeded():
                fetch.future.set_result(entry)
            return
        following = fetch.machine.failed(entry)
        self._ask(fetch, following)
        if fetch.machine.exhausted:
            fetch.future.set_exception(self._unreadable(fetch))

    def _verified(self, fetch: _Fetch, bookie: str, answer: Answer) -> Entry | DistributedLogError:
        """The entry in an answer, or why there is none; a failed digest is a failed replica (I12)."""
        if isinstance(answer, DistributedLogError):
            return answer
        if answer.status is not Status.EOK:
            return answer_error(answer.status, bookie, self._ledger_id, fetch.entry_id)
        if not isinstance(answer, ReadResponse) or answer.body is None or self._digest is None:
            return ProtocolError("an EOK without an entry", node=bookie)
        try:
            entry = self._digest.verify(self._ledger_id, fetch.entry_id, answer.body)
        except DistributedLogError as error:
            error.node = bookie
            self._pool.health.failed(bookie)
            return error
        if answer.max_lac is not None and self._on_lac is not None:
            self._on_lac(answer.max_lac)
        return entry

    def _unreadable(self, fetch: _Fetch) -> DistributedLogError:
        first = fetch.machine.error
        check(first is not None, "a read ended without a reason")
        cause = first or ProtocolError("no reason")
        count = len(fetch.asked)
        error = type(cause)(
            f"none of {count} replicas gave the entry; the most telling answer: {cause.message}",
            advice=cause.advice or "See that the ledger's storage nodes are up",
            ledger_id=self._ledger_id,
            entry_id=fetch.entry_id,
            node=cause.node,
        )
        error.__cause__ = cause
        return error

    def _settled(self, fetch: _Fetch, _future: asyncio.Future[Entry]) -> None:
        """Done, failed or cancelled: nobody waits for the other replicas' answers."""
        self._open.discard(fetch)
        for bookie, txn_id in fetch.asked:
            self._pool.to(bookie).forget(txn_id)

    def _speculate(self, now: float) -> bool:
        """Ask the next replica beside, for entries that have waited long."""
        patience = self._pool.settings.speculative_read_ms / 1000
        for fetch in list(self._open):
            if now - fetch.since >= patience and not fetch.future.done():
                index = fetch.machine.ask_next()
                if index is not None:
                    self._pool.health.slow(fetch.asked[-1][0])
                    fetch.since = now
                    self._ask(fetch, index)
        return bool(self._open)


async def in_order(
    fetcher: EntryFetcher,
    metadata: Callable[[], LedgerMetadata],
    again: Callable[[int, LedgerMetadata, DistributedLogError], Awaitable[Entry]],
    first: int,
    last: int,
    window_bytes: int,
    window_entries: int,
) -> AsyncGenerator[Entry, None]:
    """Entries first..last, in order, with up to the window fetched ahead; `again` decides on failed ones.

    The window counts entries, and bytes by the average size seen so far; one entry is always fetched.
    """
    ahead: deque[tuple[asyncio.Future[Entry], LedgerMetadata]] = deque()
    following = first
    seen_bytes = seen = 0
    try:
        while following <= last or ahead:
            average = max(seen_bytes // seen, 1) if seen else 0
            # Before any size is known, a few at a time; the first answer opens the window.
            room = min(window_entries, window_bytes // average if average else 4)
            while following <= last and (not ahead or len(ahead) < room):
                known = metadata()
                ahead.append((fetcher.fetch(known, following), known))
                following += 1
            future, known = ahead[0]
            try:
                entry = await future
            except DistributedLogError as error:
                entry = await again(following - len(ahead), known, error)
            ahead.popleft()
            seen_bytes += len(entry.payload)
            seen += 1
            yield entry
    finally:
        for future, _ in ahead:
            future.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # the first error was raised; the others say nothing new


def check_range(first: int, last: int, end: int, ledger_id: int) -> None:
    """Raise CallerError unless 0 <= first <= last <= end (I6, I17)."""
    if not 0 <= first <= last <= end:
        raise CallerError(
            f"entries {first} to {last} were asked for; readable are 0 to {end}",
            advice="Entries beyond the last confirmed one are not committed (yet)",
            ledger_id=ledger_id,
        )


class ReplicaReader:
    """Reads entries of any ledgers at given locations: the executors' side, without a metadata store.

    One event loop; `close` ends every connection.
    """

    def __init__(self, *, settings: ClientSettings | None = None, network: Network | None = None) -> None:
        self._settings = settings or ClientSettings()
        self._network = network or TcpNetwork()
        self._addresses: dict[str, tuple[str, int]] = {}
        self._pool: ConnectionPool | None = None

    async def entries(
        self,
        location: LedgerLocation,
        first: int,
        last: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        window_entries: int = WINDOW_ENTRIES,
    ) -> AsyncIterator[Entry]:
        """Verified entries first..last, in order. `last` must be committed: the planner knows, this side cannot.

        Raises CallerError for a range beyond a closed ledger's end; else what kept all replicas from answering.
        """
        metadata = location.metadata
        check_range(first, last, metadata.last_entry if metadata.is_closed else last, location.ledger_id)
        self._addresses.update(location.addresses)
        if self._pool is None:
            self._pool = ConnectionPool(self._resolve, self._settings, self._network, asyncio.get_running_loop())
        fetcher = EntryFetcher(self._pool, location.ledger_id)

        async def no_more(_entry_id: int, _known: LedgerMetadata, error: DistributedLogError) -> Entry:
            raise error

        entries = in_order(fetcher, lambda: metadata, no_more, first, last, window_bytes, window_entries)
        try:
            async for entry in entries:
                yield entry
        finally:
            await entries.aclose()

    async def _resolve(self, bookie: str) -> tuple[str, int]:
        try:
            return self._addresses[bookie]
        except KeyError:
            raise UnknownBookieError("the ledger's location gives no address for the node", node=bookie) from None

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
