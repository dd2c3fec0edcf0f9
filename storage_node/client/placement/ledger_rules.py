"""The rule over regions that a ledger was made with, in its metadata: `LedgerRule`.

Who recovers or repairs a ledger is often another process than its writer, with another file of settings. So a client
whose policy demands a number of regions writes that down in each ledger's custom metadata, which BookKeeper keeps and
hands on as bytes that mean nothing to it:

    dlspark.regions   {"v": 1, "minimum": 2, "by": "copies" or "acknowledgements", "replace": true, "regions": [...]}

A process whose own settings ask for less keeps the ledger's rule; one that asks for more keeps its own. The operators'
switch `repp_disable_durability_enforcement` takes out both. A rule that cannot be read is an error, not the absence of
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import CorruptDataError
from storage_node.settings.placement import PlacementSettings

CUSTOM_KEY: Final = "dlspark.regions"
_VERSION: Final = 1
_WAYS: Final = {"copies": False, "acknowledgements": True}


@dataclass(frozen=True, slots=True)
class LedgerRule:
    """In how many regions must each acknowledged entry of a ledger have copies, and in which way is that kept?"""

    minimum: int
    by_acknowledgements: bool
    """The writer counts the regions of each entry's copies; else the quorums keep it (`regions`)."""
    enforce_in_replace: bool = True
    regions: tuple[str, ...] = ()
    """The regions that were listed to hold copies."""

    def encode(self) -> bytes:
        """Return the value of CUSTOM_KEY."""
        way = next(name for name, counted in _WAYS.items() if counted == self.by_acknowledgements)
        fields = {
            "v": _VERSION,
            "minimum": self.minimum,
            "by": way,
            "replace": self.enforce_in_replace,
            "regions": list(self.regions),
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def rule_of_settings(settings: PlacementSettings) -> LedgerRule | None:
    """Return what is to be written into the metadata of new ledgers; None where no number of regions is demanded."""
    demands = bool(settings.regions_to_write) or settings.enforce_min_num_fault_domains_for_write
    minimum = settings.repp_minimum_regions_for_durability
    if settings.policy != "regionaware" or not demands or minimum < 2:
        return None
    return LedgerRule(
        minimum,
        settings.enforce_min_num_fault_domains_for_write,
        settings.repp_enable_durability_enforcement_in_replace,
        settings.regions_to_write,
    )


def custom_of_settings(settings: PlacementSettings) -> Mapping[str, bytes]:
    """Return the custom metadata that carry the settings' rule: empty, or one pair."""
    rule = rule_of_settings(settings)
    return {} if rule is None else {CUSTOM_KEY: rule.encode()}


def rule_of(metadata: LedgerMetadata) -> LedgerRule | None:
    """Return a ledger's own rule, None where it has none. Raises CorruptDataError."""
    data = metadata.custom.get(CUSTOM_KEY)
    return None if data is None else _decode(data)


def _decode(data: bytes) -> LedgerRule:
    try:
        fields = json.loads(data)
        version = fields["v"]
        if version != _VERSION:
            raise CorruptDataError(
                f"the rule over regions in the ledger's metadata is of version {version!r}, and {_VERSION} is known",
                advice="Use a newer dlspark, so that its copies are placed by that rule",
            )
        minimum, regions, replace = fields["minimum"], fields["regions"], fields["replace"]
        sound = (
            type(minimum) is int
            and minimum >= 1
            and isinstance(replace, bool)
            and all(isinstance(region, str) for region in regions)
        )
        if not sound:
            raise ValueError("a field is of another kind")
        return LedgerRule(minimum, _WAYS[fields["by"]], replace, tuple(regions))
    except (ValueError, KeyError, TypeError) as error:  # a UnicodeDecodeError is a ValueError
        raise CorruptDataError(
            f"the ledger's metadata have a rule over regions that cannot be read ({CUSTOM_KEY}: {data[:80]!r})",
            advice="Nothing is placed for this ledger before that is mended: where its copies must lie is not known",
        ) from error
