"""A node's place in the cluster: its cookie, the ledgers whose metadata names it, and taking it out for good.

A cookie protects its ledgers: without one, an empty node of the same name would be let in and would say "no such entry"
of entries that it had acknowledged (D3). So a cookie is removed only when no ledger refers to the node any more, or
when an operator insists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from metadata.bookkeeper.bookies import BookieRegistry, Cookie
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import CallerError, NoNodeError, NotAppliedError
from metadata.foundation.plurals import counted
from metadata.store import MetadataStore

POLL_S = 1.0


def _some(ledgers: Sequence[int]) -> str:
    return ", ".join(map(str, ledgers[:5])) + (" ..." if ledgers[5:] else "")


class StillReferredToError(NotAppliedError):
    """Ledgers refer to the bookie; its cookie was left."""


class Cluster:
    """One cluster's metadata below `root`."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root
        self.registry = BookieRegistry(store, root)
        self._ledgers = LedgerStore(store, root)
        self._replication = ReplicationStore(store, root)
        self._topology = TopologyStore(store, root)

    async def read_cookie(self, bookie_id: str) -> Cookie:
        """Return a bookie's cookie. Raises CallerError where it has none."""
        found = await self.registry.read_cookie(bookie_id)
        if found is None:
            raise CallerError(
                "the bookie has no cookie", node=bookie_id, advice="List those that have: dlspark bookie cookie list"
            )
        return found.value

    async def cookies(self) -> list[str]:
        """Return the bookies that have a cookie."""
        return await self.registry.cookies()

    async def ledgers_of(self, bookie_id: str) -> list[int]:
        """Return the ledgers of which some ensemble names the bookie, without those that are deleted meanwhile."""
        await self._store.sync(self._root)
        found: list[int] = []
        async for ledger_id in self._ledgers.ids():
            try:
                metadata = (await self._ledgers.read(ledger_id)).value
            except NoNodeError:
                continue
            if any(bookie_id in ensemble.bookies for ensemble in metadata.ensembles):
                found.append(ledger_id)
        return found

    async def read_ledger(self, ledger_id: int) -> LedgerMetadata:
        """Return a ledger's metadata. Raises NoNodeError where it was deleted."""
        return (await self._ledgers.read(ledger_id)).value

    async def mark(self, ledgers: Iterable[int], bookie_id: str, now_ms: Callable[[], int]) -> None:
        """Mark these ledgers for auto-recovery: the bookie's copies of them are missing."""
        await self._replication.prepare()
        for ledger_id in ledgers:
            await self._replication.mark(ledger_id, [bookie_id], now_ms())

    async def is_registered(self, bookie_id: str) -> bool:
        """Return whether the bookie runs, writable or read-only. A crashed one counts as running until its session
        ends."""
        addresses = [*await self.registry.writable(), *await self.registry.readonly()]
        return any(address.bookie_id == bookie_id for address in addresses)

    async def check_stopped(self, bookie_id: str) -> None:
        """Raise CallerError while the bookie is registered."""
        if await self.is_registered(bookie_id):
            raise CallerError(
                "the bookie is registered: it runs, or ran until just now",
                node=bookie_id,
                advice="Stop it, and wait for its session to end; nothing was done",
            )

    async def delete_cookie(self, bookie_id: str, *, force: bool = False) -> bool:
        """Delete the bookie's cookie, and its location unless ledgers name it; returns False where a location is kept
        for that. Once they do not, it can be called again: without a cookie it then removes the location.

        Raises CallerError while it runs, and where there is nothing to delete; StillReferredToError while it is needed,
        CorruptDataError where the locations cannot be read.
        """
        found = await self.registry.read_cookie(bookie_id)
        location = (await self._topology.read()).location_of(bookie_id)
        if found is None and location is None:
            raise CallerError("the bookie has no cookie", node=bookie_id)
        await self.check_stopped(bookie_id)
        try:
            await self.check_unused(bookie_id)
        except StillReferredToError:
            if found is None or not force:
                raise
            # Where its copies lie is needed most when it does not come back: without it a recovery of an open ledger
            # whose entries count by regions is refused, and nobody could announce it any more.
            await self.registry.delete_cookie(bookie_id, found.version)
            return location is None
        await self._forget(bookie_id, None if found is None else found.version)
        return True

    async def _forget(self, bookie_id: str, version: int | None) -> None:
        # The location first: after a crash in between, the cookie that is still there lets the operator do it again.
        await self._topology.announce(bookie_id, None)
        if version is not None:
            await self.registry.delete_cookie(bookie_id, version)

    async def check_unused(self, bookie_id: str) -> None:
        """Raise StillReferredToError if a ledger names the bookie."""
        ledgers = await self.ledgers_of(bookie_id)
        if ledgers:
            naming = counted(len(ledgers), "ledger still names", "ledgers still name")
            raise StillReferredToError(
                f"{naming} the bookie ({_some(ledgers)})",
                node=bookie_id,
                advice="Have its ledgers replicated elsewhere first: dlspark bookie decommission; nothing was done",
            )

    async def decommission(
        self,
        bookie_id: str,
        *,
        now_ms: Callable[[], int],
        timeout_s: float,
        progress: Callable[[int], None],
    ) -> int:
        """Have everything that the bookie holds replicated elsewhere, then remove its location and its cookie.

        Marks its ledgers as under-replicated, for auto-recovery, and waits until no ledger names it. Returns how many
        did at first. Stopping in between loses nothing: the marks stay, and it can be done again. Raises CallerError
        (it runs, or has no cookie), StillReferredToError (not done within `timeout_s`).
        """
        found = await self.registry.read_cookie(bookie_id)
        if found is None:
            raise CallerError("the bookie has no cookie: it is decommissioned, or never was here", node=bookie_id)
        await self.check_stopped(bookie_id)
        deadline = asyncio.get_running_loop().time() + timeout_s
        ledgers = first = await self.ledgers_of(bookie_id)
        while ledgers:
            progress(len(ledgers))
            await self.mark(ledgers, bookie_id, now_ms)  # again: a mark may go while an ensemble still names the bookie
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                naming = counted(len(ledgers), "ledger still names", "ledgers still name")
                raise StillReferredToError(
                    f"after {timeout_s:g} s {naming} the bookie ({_some(ledgers)}): its cookie is kept",
                    node=bookie_id,
                    advice="They stay marked, and auto-recovery goes on where it runs: dlspark autorecovery status "
                    "shows it. Then decommission again",
                )
            await asyncio.sleep(min(POLL_S, max(left, 0)))
            ledgers = await self.ledgers_of(bookie_id)
        await self.check_stopped(bookie_id)
        await self._forget(bookie_id, found.version)
        return len(first)
