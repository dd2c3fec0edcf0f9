"""`FragmentReplicator` stores copies of a fragment's entries on other bookies, and enters those into the metadata.

In this order and no other: choose replacements, copy every entry that they must have, wait until all are on their
disks, and only then swap the names in that one ensemble by compare-and-set. A crash before leaves copies that are not
referred to (their bookies collect them); after it the fragment is whole. State, end and keys of a ledger are never
touched, so that this may run beside a writer, a recovery, or another replicator of the same fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import BadVersionError, NotAppliedError, check
from metadata.foundation.pacing import ByteRate, for_each
from storage_node.autorecovery.checker import BadFragment, Fragment, Inspection
from storage_node.client.client import LedgerClient
from storage_node.client.ledger_copies import LedgerCopies
from storage_node.errors import NotEnoughBookiesError, UnauthorizedAccessError
from storage_node.settings.autorecovery import AutoRecoverySettings

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 20
"""How often the swap is tried while the metadata keeps changing."""


class Swap(NamedTuple):
    """One bookie is replaced by another in an ensemble."""

    old: str
    new: str


class FragmentReplicator:
    """Repairs settled fragments, for one process: the limit of bytes a second is for all of them together."""

    def __init__(self, client: LedgerClient, ledgers: LedgerStore, settings: AutoRecoverySettings) -> None:
        self._client = client
        self._ledgers = ledgers
        self._batch = settings.entry_batch_size
        self._rate = ByteRate(settings.rate_by_bytes)

    async def repair(self, ledger: Inspection, part: BadFragment, still_locked: Callable[[], bool]) -> int:
        """Replace as many of the bad bookies as there are others for; the number of copies stored.

        The names are swapped only while `still_locked`: without the lock a replacement may collect its new copies, as
        those of a ledger that does not name it, right before the metadata would name it (I1).

        Raises NotEnoughBookiesError where there is none at all, else what kept an entry from being read or stored:
        then the metadata is as it was.
        """
        fragment = part.fragment
        check(fragment.settled, "a fragment that may still change was to be repaired", ledger_id=ledger.ledger_id)
        copies = self._client.copies(ledger.ledger_id, ledger.metadata)

        async def choose(strangers: Collection[str]) -> Mapping[int, str]:
            picked = await copies.replacements(fragment.bookies, part.bad, strangers)
            if not picked:
                raise NotEnoughBookiesError(
                    f"no storage node is left to take the place of {', '.join(sorted(part.bookies))}",
                    advice="Start another storage node, bring the lost one back, allow a region that is disallowed "
                    "(dlspark regions list), or see that this process knows where storage nodes lie "
                    "(reppDnsResolverClass): a ledger that must lie in several regions gets no copy at a place that "
                    "is not known",
                    ledger_id=ledger.ledger_id,
                )
            return picked

        picked, stored = await self._copy(ledger, fragment, copies, choose)
        swaps = {index: Swap(fragment.bookies[index], new) for index, new in picked.items()}

        # Every copy is on disk by now: from the swap on readers and recoveries count on them (I1).
        await self._publish(ledger.ledger_id, fragment, swaps, _guard(ledger.ledger_id, still_locked))
        return stored

    async def move(
        self, ledger: Inspection, fragment: Fragment, still_locked: Callable[[], bool]
    ) -> tuple[Mapping[int, str], int]:
        """Put the fewest copies on other bookies that will do for the placement policy, in a ledger that is closed;
        returns what took the place at each index, and the number of copies stored. As `repair`, but the names are
        swapped only while the ensemble is exactly what the moves were chosen for.

        Raises BadVersionError where it is not any more, what kept moves from being chosen, else what kept an entry from
        being read or stored: then the metadata is as it was.
        """
        metadata = ledger.metadata
        check(metadata.is_closed, "copies of an open ledger were to be moved", ledger_id=ledger.ledger_id)

        async def choose(strangers: Collection[str]) -> Mapping[int, str]:
            return await self._client.placement_moves(fragment.bookies, metadata, strangers)

        copies = self._client.copies(ledger.ledger_id, metadata)
        moves, stored = await self._copy(ledger, fragment, copies, choose)
        if moves:  # none where its bookies lie, or what is asked, has changed since it was judged
            swaps = {index: Swap(fragment.bookies[index], new) for index, new in moves.items()}
            guard = _guard(ledger.ledger_id, still_locked)
            await self._publish(ledger.ledger_id, fragment, swaps, guard, unchanged=True)
        return moves, stored

    async def _copy(
        self,
        ledger: Inspection,
        fragment: Fragment,
        copies: LedgerCopies,
        choose: Callable[[Collection[str]], Awaitable[Mapping[int, str]]],
    ) -> tuple[Mapping[int, str], int]:
        """Choose bookies and store copies on them. Returns them by index, and the number of copies.

        A bookie that answers EUA keeps, under this ledger's id, what others wrote: another one is chosen.
        """
        strangers: set[str] = set()
        while True:
            picked = await choose(strangers)
            try:
                return picked, await self._copy_to(picked, copies, ledger, fragment)
            except UnauthorizedAccessError as error:
                if error.node is None or error.node in strangers:
                    raise  # no other choice would help
                strangers.add(error.node)
                logger.warning("%s cannot take copies of ledger %d: %s", error.node, ledger.ledger_id, error.message)

    async def _copy_to(
        self, picked: Mapping[int, str], copies: LedgerCopies, ledger: Inspection, fragment: Fragment
    ) -> int:
        stored = 0

        async def copy(entry_id: int) -> None:
            nonlocal stored
            entry = await copies.fetch(ledger.metadata, entry_id)
            # Only where the entry belongs: with more bookies than copies a replacement need not have all of them.
            targets = [picked[index] for index in fragment.holders(entry_id, picked)]
            await self._rate.take(len(entry.payload) * len(targets))
            # With the LAC of the inspection: an entry that is packaged anew must not claim more than is committed (I6).
            await copies.add(entry, ledger.last_add_confirmed, targets)
            stored += len(targets)

        await for_each(fragment.stored_on_any(picked), self._batch, copy)
        return stored

    async def _publish(
        self,
        ledger_id: int,
        fragment: Fragment,
        swaps: Mapping[int, Swap],
        guard: Callable[[], None],
        *,
        unchanged: bool = False,
    ) -> None:
        """Swap the names of those that are still in their places; what another has swapped meanwhile stays. With
        `unchanged` nothing is swapped in an ensemble of which any other name has changed."""
        for _ in range(MAX_ATTEMPTS):
            current = await self._ledgers.read(ledger_id)
            if unchanged and not _has(current.value, fragment):
                raise BadVersionError(
                    "the ensemble was changed elsewhere while its copies were being moved; the moves were not entered",
                    ledger_id=ledger_id,
                )
            # Computed anew at each attempt: a writer, a recovery or another worker may have changed the ensembles.
            changed = current.value.with_copies_on(fragment.first, swaps)
            if changed is None:
                logger.info("ledger %d: the fragment at %d was repaired elsewhere", ledger_id, fragment.first)
                return
            try:
                await self._ledgers.write(ledger_id, changed, current.version, guard=guard)
                return
            except BadVersionError:
                continue
        raise BadVersionError(
            f"the metadata changed {MAX_ATTEMPTS} times while restored copies were to be entered",
            advice="The copies are stored; the ledger will be looked at again",
            ledger_id=ledger_id,
        )


def _guard(ledger_id: int, still_locked: Callable[[], bool]) -> Callable[[], None]:
    def guard() -> None:
        if not still_locked():
            raise NotAppliedError(
                "the session that held the ledger's lock has ended; its new copies were not entered",
                advice="The mark is still there: the ledger is taken up again",
                ledger_id=ledger_id,
            )

    return guard


def _has(metadata: LedgerMetadata, fragment: Fragment) -> bool:
    return any(part.first_entry == fragment.first and part.bookies == fragment.bookies for part in metadata.ensembles)
