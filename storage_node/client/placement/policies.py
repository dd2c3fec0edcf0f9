"""Which bookies hold a new ledger, and which one takes the place of a failed one: uniformly at random, or rack by rack.

`PlacementPolicy` is what all policies share; `region_policy` has the one over regions.

`RackAwarePlacement` keeps the rule of `arranging` wherever the racks allow it: every write set spans
R = min(W, minNumRacksPerWriteQuorum) racks. With enforceMinNumRacksPerWriteQuorum bookies of unknown rack are not used,
and an ensemble that cannot keep the rule is an error. With fewer than two racks it draws at random.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from metadata.bookkeeper.bookies import BookieAddress, UnknownBookieError
from metadata.foundation.errors import CorruptDataError, DistributedLogError
from metadata.foundation.pacing import run_in_slices
from storage_node.client.placement.arranging import (
    Adherence,
    adherence,
    arrange,
    arrange_roughly,
    broken_windows,
    replace_alike,
    replace_lawfully,
)
from storage_node.client.placement.candidates import Candidates, Stages
from storage_node.client.placement.mending import BrokenEnsemble, search_moves
from storage_node.client.placement.racks import RackMap, is_default
from storage_node.client.placement.regions import PlacementRefusal
from storage_node.errors import NotEnoughBookiesError, RackResolutionError, RequestTimeoutError
from storage_node.protocol.writing_model import PickReplacements
from storage_node.settings.placement import PlacementSettings

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

Disallowed: TypeAlias = Callable[[], Awaitable[frozenset[str]]]
"""Returns the regions that get no new copies. Raises what kept it from knowing: then nothing is placed."""


async def none_disallowed() -> frozenset[str]:
    """Return no region."""
    return frozenset()


class Placement(Protocol):
    """On which bookies does a ledger go?"""

    async def new_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        """Return `size` distinct writable bookies. Raises NotEnoughBookiesError."""
        ...

    async def replacements(self, wanted: PickReplacements) -> Mapping[int, str]:
        """Return a bookie for as many of the wanted indices as there are. Raises what kept it from looking."""
        ...

    async def judge(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        """Return how well an ensemble keeps this policy's rule."""
        ...

    async def allows(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> bool:
        """Return whether an ensemble that was placed earlier may be written to from now on, as operators have switched
        regions. Raises what kept it from knowing."""
        ...

    async def unlocated(self, bookies: Sequence[str]) -> frozenset[str]:
        """Return those of the bookies whose rack or region is not known, having asked for it again. Raises what kept it
        from asking."""
        ...

    def unknown_places(self, bookies: Collection[str]) -> frozenset[str]:
        """Return those of the bookies whose rack or region was not known at the last look. Never waits."""
        ...

    async def moves(
        self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int, but: Collection[str] = ()
    ) -> Mapping[int, str]:
        """Return where copies of a closed ledger's ensemble are to be moved, so that it keeps this policy's rule: the
        fewest, by index; to none of `but`; none where it does. Raises NotEnoughBookiesError where it cannot be had now,
        RackResolutionError where it is not known where its bookies lie."""
        ...

    def spans_fault_domains(self, bookies: Collection[str], write_quorum: int) -> bool:
        """Return whether entries on these bookies survive the loss of a rack as well as the policy asks for. Never
        waits."""
        ...


class PlacementPolicy:
    """How do all policies keep to limits of time, own seats first, one replacement after the other?"""

    def __init__(
        self, candidates: Candidates, *, memory_ms: int, replacement_pause_ms: int, replacement_timeout_ms: int
    ) -> None:
        self._candidates = candidates
        self._memory_ms = memory_ms
        self._pause_ms = replacement_pause_ms
        self._timeout_ms = replacement_timeout_ms

    async def allows(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> bool:
        """Return True: without regions there is nothing that operators switch."""
        return True

    async def replacements(self, wanted: PickReplacements) -> Mapping[int, str]:
        stages = await self._in_time(self._stages_for(wanted), None if wanted.last_resort else self._timeout_ms)
        usable = {bookie for group in stages for stage in group for bookie in stage} - wanted.excluded
        picked: dict[int, str] = {}
        for index in wanted.indices:
            if wanted.bookies[index] in usable:  # a vacant seat's own bookie is back: nothing is written for it
                picked[index] = wanted.bookies[index]
        for index in wanted.indices:
            if index not in picked:
                taken = wanted.excluded | set(wanted.bookies) | set(picked.values())
                pick = self.pick(wanted, index, picked, _without(stages, taken))
                if pick is not None:
                    picked[index] = pick
        return picked

    async def _in_time(self, looking: Awaitable[T], limit_ms: int | None) -> T:
        if limit_ms is None:
            return await looking
        try:
            return await asyncio.wait_for(looking, limit_ms / 1000)
        except asyncio.TimeoutError:
            raise RequestTimeoutError(f"the list of storage nodes did not come within {limit_ms} ms") from None

    async def _stages_for(self, wanted: PickReplacements) -> Stages:
        """Return the candidates in stages: a bookie that failed a moment ago is taken only where the writer cannot do
        without.
        """
        usable = await self._usable(wanted.bookies, restoring=wanted.restoring)
        return await self._candidates.stages(usable, self._pause_ms, failed_too=wanted.last_resort)

    async def _usable(self, ensemble: Sequence[str] = (), *, restoring: bool = False) -> list[str]:
        return [address.bookie_id for address in await self._candidates.writable()]

    async def targets(self, usable: Collection[str]) -> list[str]:
        """Return those of the usable bookies to which copies may be moved, the best first. None that failed a moment
        ago: a move can wait."""
        stages = await self._candidates.stages(usable, self._pause_ms, failed_too=False)
        return [bookie for stage in stages[0][-1:] for bookie in stage]

    def pick(self, wanted: PickReplacements, index: int, picked: Mapping[int, str], stages: Stages) -> str | None:
        """Return the bookie that takes this index, after those that were `picked` for others; None where none may."""
        return next((bookie for group in stages for stage in group for bookie in stage), None)


def _without(stages: Stages, taken: Collection[str]) -> Stages:
    return [[[bookie for bookie in stage if bookie not in taken] for stage in group] for group in stages]


def too_few_error(
    size: int, found: int, why: str = "", cause: DistributedLogError | None = None
) -> NotEnoughBookiesError:
    """Return the error that says how many bookies there are."""
    error = NotEnoughBookiesError(
        f"the ensemble needs {size} writable storage nodes and {found} are registered{why}",
        advice="Start more storage nodes, or ask for a smaller ensemble",
    )
    error.__cause__ = cause
    return error


def refuse_unlocated(bookies: Collection[str], settings: PlacementSettings) -> None:
    """Raise RackResolutionError if there are any: what lies at places that are not known is not moved."""
    if bookies:
        raise RackResolutionError(
            f"it is not known where {', '.join(sorted(bookies))} lie; no copy is moved",
            advice=f"See why the look-up of locations fails ({settings.named('reppDnsResolverClass')}, "
            f"{settings.named('networkTopologyScriptFileName')})",
        )


def made(moves: Mapping[int, str] | PlacementRefusal) -> Mapping[int, str]:
    """Return the moves. Raises NotEnoughBookiesError where there are none."""
    if isinstance(moves, PlacementRefusal):
        raise NotEnoughBookiesError(moves.reason, advice="Start storage nodes in other regions or racks, or allow one")
    return moves


class UniformPlacement(PlacementPolicy):
    """Every writable bookie is as good as any other."""

    async def new_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        """Return the first `size` bookies in the candidates' order. Raises NotEnoughBookiesError."""
        usable = await self._usable()
        for group in await self._candidates.stages(usable, self._memory_ms):
            for stage in group:
                if len(stage) >= size:
                    return tuple(stage[:size])
        raise too_few_error(size, len(usable))

    async def judge(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        """Return MEETS_STRICT always: this policy has no rule that an ensemble could break."""
        return Adherence.MEETS_STRICT

    async def unlocated(self, bookies: Sequence[str]) -> frozenset[str]:
        """Return none: this policy has no use for locations."""
        return frozenset()

    def unknown_places(self, bookies: Collection[str]) -> frozenset[str]:
        """Return none: this policy has no use for locations."""
        return frozenset()

    async def moves(
        self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int, but: Collection[str] = ()
    ) -> Mapping[int, str]:
        """Return none: this policy has no rule that an ensemble could break."""
        return {}

    def spans_fault_domains(self, bookies: Collection[str], write_quorum: int) -> bool:
        """Return True always: without racks an ack quorum alone decides."""
        return True


class RackAwarePlacement(PlacementPolicy):
    """Spreads the copies of each entry over racks; in no region that is `disallowed`, as far as regions are known."""

    def __init__(
        self,
        candidates: Candidates,
        racks: RackMap,
        settings: PlacementSettings,
        disallowed: Disallowed = none_disallowed,
        *,
        memory_ms: int,
        replacement_pause_ms: int,
        replacement_timeout_ms: int,
    ) -> None:
        super().__init__(
            candidates,
            memory_ms=memory_ms,
            replacement_pause_ms=replacement_pause_ms,
            replacement_timeout_ms=replacement_timeout_ms,
        )
        self.racks = racks
        self._settings = settings
        self._disallowed = disallowed
        self._said_racks = False
        self._said_unreadable = False

    async def new_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        """Return an ensemble whose write sets each span the racks that the settings ask for. Where no arrangement does,
        one that comes close, or under enforcement NotEnoughBookiesError."""
        return await self.ensemble_among(await self._candidates.writable(), size, write_quorum)

    async def ensemble_among(self, writable: Sequence[BookieAddress], size: int, write_quorum: int) -> tuple[str, ...]:
        """Return such an ensemble of some of the writable bookies. Raises as `new_ensemble`."""
        usable = await self._usable_of(writable)
        first_rack = None if self._settings.ignore_local_node_in_placement_policy else await self.racks.own_rack()
        wanted = self._settings.racks_wanted(write_quorum)
        self._say_few_racks(usable, wanted)
        stages = await self._candidates.stages(usable, self._memory_ms)
        rack_of = self.racks.rack_of
        for group in stages:
            for stage in group:
                found = arrange(stage, rack_of, size, write_quorum, wanted, first_rack)
                if found is not None:
                    return found
            if self._settings.enforces_racks:
                continue
            for stage in group:
                if len(stage) >= size:
                    return self._draw(stage, size, write_quorum, wanted, first_rack)
        raise self._impossible_error(size, wanted, len(writable), usable)

    def _say_few_racks(self, usable: Sequence[str], wanted: int) -> None:
        """Warn where no rack may be lost: an entry counts only when so many racks have it (`survive=rack`)."""
        settings = self._settings
        counted = settings.enforce_min_num_fault_domains_for_write and settings.policy == "rackaware" and wanted > 1
        racks = sorted({self.racks.rack_of(bookie) for bookie in usable if self.racks.is_known(bookie)})
        few = counted and 0 < len(racks) <= wanted
        if few and not self._said_racks:
            _LOG.warning(
                "writable storage nodes are in %s alone, and entries count only when nodes of %d racks have them: when "
                "one of these racks goes, writing stops. To survive that, start storage nodes in another rack",
                " and ".join(racks),
                wanted,
            )
        self._said_racks = few

    def _draw(self, stage: list[str], size: int, write_quorum: int, wanted: int, first: str | None) -> tuple[str, ...]:
        """Return an ensemble where the racks do not allow the rule: with a single one at random, else as near to it as
        can be.
        """
        if len({self.racks.rack_of(bookie) for bookie in stage}) < 2:
            return tuple(stage[:size])
        return arrange_roughly(stage, self.racks.rack_of, size, write_quorum, wanted, first)

    def _impossible_error(
        self, size: int, wanted: int, registered: int, usable: Sequence[str]
    ) -> NotEnoughBookiesError:
        if not self._settings.enforces_racks:
            return too_few_error(size, registered)
        racks = {self.racks.rack_of(bookie) for bookie in usable}
        return too_few_error(
            size,
            registered,
            f", {len(usable)} of them in {len(racks)} known racks: so no arrangement puts every write quorum into "
            f"{wanted} racks (enforceMinNumRacksPerWriteQuorum)",
            self.racks.error,
        )

    async def judge(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        """Return how far an existing ensemble keeps the rule. FAIL under enforcement where the rack of a member is not
        known."""
        await self.racks.see(await self._candidates.writable(), addresses_of(ensemble))
        racks = self.racks
        if self._settings.enforces_racks and not all(map(racks.is_known, ensemble)):
            return Adherence.FAIL
        wanted = self._settings.racks_wanted(write_quorum)
        return adherence(ensemble, racks.rack_of, racks.is_known, write_quorum, wanted)

    async def unlocated(self, bookies: Sequence[str]) -> frozenset[str]:
        """Return those of the bookies whose rack is not known, having asked for it again."""
        await self.look_again(bookies)
        return self.unknown_places(bookies)

    def unknown_places(self, bookies: Collection[str]) -> frozenset[str]:
        """Return those of the bookies whose rack was not known at the last look."""
        return frozenset(bookie for bookie in bookies if not self.racks.is_known(bookie))

    async def moves(
        self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int, but: Collection[str] = ()
    ) -> Mapping[int, str]:
        """Return the moves after which every write set spans its racks."""
        refuse_unlocated(await self.unlocated(ensemble), self._settings)
        racks, wanted = self.racks, self._settings.racks_wanted(write_quorum)
        usable = set(await self._usable(ensemble)).difference(but)
        order = [bookie for bookie in await self.targets(usable) if racks.is_known(bookie)]

        def verdict(bookies: Sequence[str]) -> Adherence:
            return adherence(bookies, racks.rack_of, racks.is_known, write_quorum, wanted)

        def failing(bookies: Sequence[str]) -> Sequence[Sequence[int]]:
            return broken_windows([racks.rack_of(bookie) for bookie in bookies], write_quorum, wanted)

        broken = BrokenEnsemble(ensemble, order, racks.rack_of, racks.rack_of, _all_alike, verdict, failing)
        return made(await run_in_slices(search_moves(broken)))

    async def look_again(self, bookies: Sequence[str]) -> None:
        """Ask for the locations of all bookies that have none: also of those that may take a member's place. Raises the
        metadata store's errors."""
        self.racks.ask_again()
        await self.racks.see(await self._candidates.writable(), addresses_of(bookies))

    def spans_fault_domains(self, bookies: Collection[str], write_quorum: int) -> bool:
        """Return whether the bookies are in as many racks as a write set must span."""
        return len(set(map(self.racks.rack_of, bookies))) >= self._settings.racks_wanted(write_quorum)

    # ------------------------------------------------------------------------------------ inside

    async def _usable(self, ensemble: Sequence[str] = (), *, restoring: bool = False) -> list[str]:
        return await self._usable_of(await self._candidates.writable(), ensemble, restoring=restoring)

    async def _usable_of(
        self, writable: Sequence[BookieAddress], ensemble: Sequence[str] = (), *, restoring: bool = False
    ) -> list[str]:
        """Learn where the bookies are, and return the usable ones: those of regions that are allowed; under
        enforcement, those in a known rack."""
        await self.racks.see(writable, addresses_of(ensemble))
        closed = await self._closed([*(address.bookie_id for address in writable), *ensemble], restoring)
        names = [a.bookie_id for a in writable if self.racks.region_of(a.bookie_id) not in closed]
        if not self._settings.enforces_racks:
            return names
        return [bookie for bookie in names if not is_default(self.racks.rack_of(bookie))]

    async def _closed(self, bookies: Collection[str], restoring: bool) -> frozenset[str]:
        """Return the regions that get no new copies. Raises what kept it from knowing.

        Where what says so is damaged, or of a later release, no try will ever do better, and copies that were lost
        would stay lost in a cluster that has no regions. Where the region of none of the bookies is known, none of them
        could be left out for its region either: so lost copies are restored. A copy at a wrong place can be taken away
        later; a second loss, of what was not restored, is for ever. Moves, and new ledgers, are not so urgent.
        """
        try:
            closed = await self._disallowed()
        except CorruptDataError as error:
            if not restoring or any(self.racks.region_of(bookie) is not None for bookie in bookies):
                raise
            if not self._said_unreadable:
                _LOG.warning(
                    "lost copies are restored on any storage node, though it cannot be read which regions are "
                    "disallowed: the region of none of them is known here. Nothing else is placed: %s",
                    error,
                )
            self._said_unreadable = True
            return frozenset()
        self._said_unreadable = False
        return closed

    def pick(self, wanted: PickReplacements, index: int, picked: Mapping[int, str], stages: Stages) -> str | None:
        """Return a bookie that costs the ensemble no rack, else one with which the rule is kept, else, without
        enforcement, any."""
        others = {i: b for i, b in enumerate(wanted.bookies) if i not in wanted.indices} | dict(picked)
        for group in stages:
            for stage in group:
                alike = replace_alike(stage, self.racks.rack_of, wanted.bookies[index], list(others.values()))
                if alike is not None:
                    return alike
            found = self._pick_otherwise(wanted, index, others, group[-1])
            if found is not None:
                return found
        return None

    def _pick_otherwise(
        self, wanted: PickReplacements, index: int, others: Mapping[int, str], order: Sequence[str]
    ) -> str | None:
        """Return a replacement that costs a rack: a bookie with which the rule is kept even so, else, without
        enforcement, any.
        """
        size, write_quorum = len(wanted.bookies), wanted.write_quorum
        racks_wanted = self._settings.racks_wanted(write_quorum)
        lawful = replace_lawfully(order, self.racks.rack_of, index, others, size, write_quorum, racks_wanted)
        if lawful is not None or self._settings.enforces_racks:
            return lawful
        return next(iter(order), None)


def _all_alike(rack: str) -> None:
    """Return the same for every rack: without regions any one without a copy is as good as another."""


def addresses_of(bookies: Sequence[str]) -> list[BookieAddress]:
    """Return the addresses of bookies that may not be registered any more, taken from their ids where these are
    addresses.
    """
    found = []
    for bookie in bookies:
        try:
            found.append(BookieAddress.from_id(bookie))
        except UnknownBookieError:
            continue  # not an address: it stays in the default rack unless it was seen before
    return found
