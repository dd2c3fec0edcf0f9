"""`RegionAwarePlacement` spreads the copies of each entry over regions, and inside each region over racks.

What it asks of an ensemble is in `regions`; here are the bookies, the switches and the words. A bookie whose region is
not known is placed around, and said, once two regions are known or a number of them is demanded. Where fewer are known
and none is demanded, this policy is the rack-aware one.

The rules are decided anew for each ensemble, by the settings and the switches of that moment alone. Nothing is kept of
where bookies were but in the `RackMap`, so that a bookie which comes back elsewhere counts where it is.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metadata.bookkeeper.bookies import BookieAddress
from metadata.foundation.errors import CallerError
from metadata.foundation.pacing import run_in_slices
from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.candidates import Candidates, Stages
from storage_node.client.placement.ledger_rules import LedgerRule, rule_of_settings
from storage_node.client.placement.mending import BrokenEnsemble, search_moves
from storage_node.client.placement.policies import (
    Disallowed,
    PlacementPolicy,
    RackAwarePlacement,
    addresses_of,
    made,
    none_disallowed,
    refuse_unlocated,
)
from storage_node.client.placement.racks import RackMap, is_default, region_of
from storage_node.client.placement.regions import (
    PlacementRefusal,
    RegionRules,
    adherence_over_regions,
    broken_parts,
    keeps_regions,
    new_ensemble,
    quorum_fault,
    replacement,
)
from storage_node.errors import NotEnoughBookiesError
from storage_node.protocol.writing_model import PickReplacements
from storage_node.settings.placement import PlacementSettings

_LOG: Final = logging.getLogger(__name__)

_MAX_NAMED: Final = 10


def _all_off(region: str | None, feature: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class RegionSwitches:
    """What do operators switch while clients run? By default everything is off."""

    disallowed: Disallowed = none_disallowed
    is_on: Callable[[str | None, str], bool] = _all_off
    """Whether a feature is on: of a region's scope, or of the ledger client's own (None). Never waits."""
    by_racks_too: bool = False
    """Whether placement by racks leaves out the regions that are disallowed, too."""


class RegionAwarePlacement(PlacementPolicy):
    """Spreads the copies of each entry over regions."""

    def __init__(
        self,
        candidates: Candidates,
        racks: RackMap,
        settings: PlacementSettings,
        switches: RegionSwitches,
        rng: random.Random,
        rule: LedgerRule | None = None,
        *,
        memory_ms: int,
        replacement_pause_ms: int,
        replacement_timeout_ms: int,
    ) -> None:
        times = {
            "memory_ms": memory_ms,
            "replacement_pause_ms": replacement_pause_ms,
            "replacement_timeout_ms": replacement_timeout_ms,
        }
        super().__init__(candidates, **times)
        self.racks = racks
        self._settings = settings
        self._rule = rule
        self._switches = switches
        self._rng = rng
        self._by_racks = RackAwarePlacement(candidates, racks, settings, none_disallowed, **times)
        self._turn: int | None = None
        self._rules = RegionRules()  # as they were read last: a replacement is picked by the newest there are
        self._said: frozenset[str] = frozenset()
        self.unlocated_copies = 0
        """Replacements, for copies that were lost, by bookies whose regions this process has no way to know."""
        self.anomalous_ensembles = 0
        """Replacements made in ensembles that were against the rule before; upstream's region_aware_anomalous_ensemble.
        """

    async def new_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        """Return an ensemble that keeps the rule of `regions`. Raises NotEnoughBookiesError, and CallerError for sizes
        that cannot keep it."""
        allowed, rules = await self._allowed()
        fault = quorum_fault(size, write_quorum, ack_quorum, rules)
        if fault is not None:
            raise CallerError(fault, advice="Change the quorums, or the settings that it names")
        regions = {self.racks.region_of(address.bookie_id) for address in allowed} - {None}
        if not rules.enforced and len(regions) < 2:
            return await self._by_racks.ensemble_among(allowed, size, write_quorum)
        located = [a.bookie_id for a in allowed if self.racks.region_of(a.bookie_id) is not None]
        self._say_unlocated([a.bookie_id for a in allowed], located)
        own = first_rack = None
        if not self._settings.ignore_local_node_in_placement_policy:
            own, first_rack = await self.racks.own_region(), await self.racks.own_rack()
        if self._turn is None:  # at random: clients that make one ledger each must not all begin with the same regions
            self._turn = self._rng.randrange(1 << 16)
        refusal = PlacementRefusal("no storage node of a known region is writable")
        for group in await self._candidates.stages(located, self._memory_ms):
            for stage in group:
                found = new_ensemble(
                    stage,
                    self.racks.rack_of,
                    size,
                    write_quorum,
                    ack_quorum,
                    rules,
                    own=own,
                    first_rack=first_rack,
                    turn=self._turn,
                )
                if not isinstance(found, PlacementRefusal):
                    self._turn += 1
                    return found
                refusal = found
        if not rules.enforced and not rules.enforce_racks:  # then a bookie of unknown region is better than none
            return await self._by_racks.ensemble_among(allowed, size, write_quorum)
        raise self._impossible_error((size, write_quorum, ack_quorum), refusal, rules, len(allowed) - len(located))

    async def judge(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        """Return how far an existing ensemble keeps the rule of `regions`."""
        writable = await self._candidates.writable()
        await self.racks.see(writable, addresses_of(ensemble))
        rules = self._over_all(await self._read_rules([a.bookie_id for a in writable]), writable)
        return adherence_over_regions(ensemble, self.racks.rack_of, write_quorum, ack_quorum, rules)

    def _over_all(self, rules: RegionRules, writable: Sequence[BookieAddress]) -> RegionRules:
        """Return the rules with the regions over which copies are to be spread evenly, where none are listed."""
        if rules.regions:
            return rules
        seen = {self.racks.region_of(address.bookie_id) for address in writable}
        return replace(rules, regions=tuple(sorted(region for region in seen if region is not None)))

    async def moves(
        self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int, but: Collection[str] = ()
    ) -> Mapping[int, str]:
        """Return the moves after which the rule of `regions` is kept; into no region that is disallowed."""
        refuse_unlocated(await self.unlocated(ensemble), self._settings)
        allowed, rules = await self._allowed(ensemble)
        rules = self._over_all(rules, allowed)
        located = [a.bookie_id for a in allowed if self.racks.region_of(a.bookie_id) is not None]
        order = await self.targets(set(located).difference(but))
        rack_of = self.racks.rack_of

        def verdict(bookies: Sequence[str]) -> Adherence:
            return adherence_over_regions(bookies, rack_of, write_quorum, ack_quorum, rules)

        def failing(bookies: Sequence[str]) -> Sequence[Sequence[int]]:
            return broken_parts(bookies, rack_of, write_quorum, ack_quorum, rules)

        # Where no number of regions is demanded it is by racks that an ensemble fails, and another rack of the same
        # region may do; where one is, racks within a region may be what is wrong only if they are enforced.
        over_regions = BrokenEnsemble(ensemble, order, rack_of, self.racks.region_of, str, verdict, failing)
        over_racks = replace(over_regions, domain_of=rack_of, alike=region_of)
        ways = [over_regions]
        if rules.enforce_racks or not rules.enforced:
            ways.insert(len(ways) if rules.enforced else 0, over_racks)
        for way in ways:
            found = await run_in_slices(search_moves(way))
            if not isinstance(found, PlacementRefusal):
                return found
        return made(found)

    async def allows(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> bool:
        """Return whether an ensemble keeps the rule as it is now, in no region that is disallowed: it may have been
        made when switches were others, or its bookies elsewhere."""
        await self.racks.see(await self._candidates.writable(), addresses_of(ensemble))
        rules = await self._read_rules(ensemble)
        if rules.disallowed.intersection(map(self.racks.region_of, ensemble)):
            return False
        regions = [self.racks.region_of(bookie) for bookie in ensemble]
        return keeps_regions(regions, write_quorum, ack_quorum, rules)

    async def unlocated(self, bookies: Sequence[str]) -> frozenset[str]:
        """Return those of the bookies whose region is not known, having asked for it again."""
        await self._by_racks.look_again(bookies)
        return self.unknown_places(bookies)

    def unknown_places(self, bookies: Collection[str]) -> frozenset[str]:
        """Return those of the bookies whose region was not known at the last look."""
        return frozenset(bookie for bookie in bookies if self.racks.region_of(bookie) is None)

    def spans_fault_domains(self, bookies: Collection[str], write_quorum: int) -> bool:
        """Return whether the bookies are in as many regions as an acknowledged entry must be in. One of unknown region
        proves nothing; where no number is demanded nothing is to be proved."""
        minimum = min(write_quorum, self._minimum())
        regions = set(map(self.racks.region_of, bookies)) - {None}
        return minimum <= 1 or len(regions) >= minimum

    # ------------------------------------------------------------------------------------ inside

    def _minimum(self) -> int:
        """Return m, as the switch has it; 0 where no number of regions is demanded."""
        settings = self._settings
        asked = rule_of_settings(settings)
        # Of the settings and the ledger's own rule the stronger one: a process that knows less must not weaken it.
        minimum = max(asked.minimum if asked else 0, self._rule.minimum if self._rule else 0)
        name = settings.repp_disable_durability_feature_name
        return 1 if minimum and name and self._switches.is_on(None, name) else minimum

    async def _read_rules(self, bookies: Collection[str]) -> RegionRules:
        """Return what is asked of ensembles now; `bookies` are those of whose regions switches are asked."""
        settings = self._settings
        disallowed = await self._switches.disallowed()
        feature = settings.repp_disallow_bookie_placement_in_region_feature_name
        if feature:
            regions = {*map(self.racks.region_of, bookies), *settings.regions_to_write} - {None}
            disallowed |= {r for r in regions if r is not None and self._switches.is_on(r, feature)}
        rule = self._rule or rule_of_settings(settings)
        in_replace = settings.repp_enable_durability_enforcement_in_replace
        return RegionRules(
            regions=settings.regions_to_write or (rule.regions if rule else ()),
            minimum=self._minimum(),
            enforce_in_replace=in_replace or (rule is not None and rule.enforce_in_replace),
            disallowed=disallowed,
            acknowledged_from_regions=rule is not None and rule.by_acknowledgements,
            racks=settings.min_num_racks_per_write_quorum,
            enforce_racks=settings.enforces_racks,
        )

    async def _allowed(self, ensemble: Sequence[str] = ()) -> tuple[list[BookieAddress], RegionRules]:
        """Learn where the bookies are; return those that may get copies, and the rules. Raises NotEnoughBookiesError
        where every region is disallowed: to place at random, as upstream does then, is what nobody asked for."""
        writable = await self._candidates.writable()
        await self.racks.see(writable, addresses_of(ensemble))
        rules = await self._read_rules([*(a.bookie_id for a in writable), *ensemble])
        regions = {self.racks.region_of(address.bookie_id) for address in writable} - {None}
        if regions and regions <= rules.disallowed:
            raise NotEnoughBookiesError(
                f"no region may be placed on: {', '.join(sorted(filter(None, regions)))} "
                f"{'is' if len(regions) == 1 else 'are all'} disallowed",
                advice="Allow one of them again",
            )
        self._rules = rules
        return [a for a in writable if self.racks.region_of(a.bookie_id) not in rules.disallowed], rules

    async def _usable(self, ensemble: Sequence[str] = (), *, restoring: bool = False) -> list[str]:
        allowed, rules = await self._allowed(ensemble)
        names = [address.bookie_id for address in allowed]
        return [b for b in names if not is_default(self.racks.rack_of(b))] if rules.enforce_racks else names

    def pick(self, wanted: PickReplacements, index: int, picked: Mapping[int, str], stages: Stages) -> str | None:
        """Return the bookie that takes this index by the rules of `regions`; None where none may."""
        rules = self._rules
        present = [*wanted.bookies, *(bookie for group in stages for stage in group for bookie in stage)]
        if not rules.enforced and len(set(map(self.racks.region_of, present)) - {None}) < 2:
            return self._by_racks.pick(wanted, index, picked, stages)
        # By the names that the metadata will have: a failed bookie that nobody can replace stays, and may come back.
        others = {i: b for i, b in enumerate(wanted.bookies) if i != index} | dict(picked)
        refusal = PlacementRefusal("no storage node can take its place")
        for group in stages:
            for stage in group:
                found = replacement(
                    stage,
                    self.racks.rack_of,
                    wanted.bookies[index],
                    index,
                    others,
                    len(wanted.bookies),
                    wanted.write_quorum,
                    wanted.ack_quorum,
                    rules,
                )
                if not isinstance(found, PlacementRefusal):
                    if found.anomalous:
                        self._note_anomaly(wanted)
                    return found.bookie
                refusal = found
        if wanted.restoring and self._knows_no_region(present):
            found_by_racks = self._by_racks.pick(wanted, index, picked, stages)
            if found_by_racks is not None:
                self._note_unlocated(wanted.bookies[index], found_by_racks)
                return found_by_racks
        _LOG.warning("%s keeps its place in an ensemble: %s", wanted.bookies[index], refusal.reason)
        return None

    def _knows_no_region(self, bookies: Sequence[str]) -> bool:
        """Return whether this process has no source of regions for a rule that is only the ledger's.

        Then it could never restore a copy, and a second loss would lose what one more copy anywhere would have saved;
        the copy that it replaces is lost, none is taken away for it. Not so where a look-up has failed, or where the
        regions of some are known (it is refused, and tried again), nor where these settings demand regions themselves.
        """
        located = any(self.racks.region_of(bookie) is not None for bookie in bookies)
        return not located and self.racks.error is None and rule_of_settings(self._settings) is None

    def _note_unlocated(self, lost: str, bookie: str) -> None:
        self.unlocated_copies += 1
        _LOG.warning(
            "%s takes the place of %s, though a rule over regions holds for that ledger and this process knows the "
            "region of no storage node: its copies may lie in too few regions. Have nodes announce where they are "
            "(networkLocation), or set %s here; a check of placement finds such ledgers then",
            bookie,
            lost,
            self._settings.named("reppDnsResolverClass"),
        )

    def _note_anomaly(self, wanted: PickReplacements) -> None:
        self.anomalous_ensembles += 1
        _LOG.warning(
            "the ensemble %s was in too few regions before a storage node of it was replaced", ", ".join(wanted.bookies)
        )

    def _say_unlocated(self, allowed: Sequence[str], located: Sequence[str]) -> None:
        unlocated = frozenset(allowed) - frozenset(located)
        if unlocated and unlocated != self._said:
            places = [f"{bookie} ({self.racks.rack_of(bookie)})" for bookie in sorted(unlocated)[:_MAX_NAMED]]
            _LOG.warning(
                "%d storage nodes get no copies, because their locations name no region: %s",
                len(unlocated),
                ", ".join(places) + (", ..." if len(unlocated) > _MAX_NAMED else ""),
            )
        self._said = unlocated

    def _impossible_error(
        self, sizes: tuple[int, int, int], refusal: PlacementRefusal, rules: RegionRules, unlocated: int
    ) -> NotEnoughBookiesError:
        also = f"; disallowed: {', '.join(sorted(rules.disallowed))}" if rules.disallowed else ""
        if unlocated:
            also += f"; {unlocated} writable storage nodes have no known region"
        named = self._settings.named
        error = NotEnoughBookiesError(
            f"there is no ensemble {'/'.join(map(str, sizes))} over regions: {refusal.reason}{also}",
            advice=f"Start storage nodes in more regions, see where they are ({named('reppDnsResolverClass')}), allow "
            f"a region that is disallowed (dlspark regions allow REGION), or lower "
            f"{named('reppMinimumRegionsForDurability')}",
        )
        error.__cause__ = self.racks.error
        return error
