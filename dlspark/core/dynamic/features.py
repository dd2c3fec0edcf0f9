"""Feature switches: parts of the library that an operator turns on and off while it runs.

A provider has scopes, a scope has features, and a feature is available or not: `is_available()` is asked at each
decision and answers from memory. The names, `<scope>.<key>`, are Apache DistributedLog's (`KNOWN_FEATURES`).

Availability is a number as upstream's; above 0 is on. `NO_FEATURES` has everything off; `SettableFeatures` is switched
by a program. An application may use a provider for features of its own, in scopes of its own.

`FileFeatures` reads files: a base file, and an overlay whose switches take the place of the base file's.

    fileFeatureProviderBaseConfigPath       has to exist
    fileFeatureProviderOverlayConfigPath    may appear and disappear: for what is switched in a hurry

Both are properties files of full names and availability, `dl.disable_write_limit=100`. They are checked regularly
(`OperatorFiles`); a file that cannot be used leaves the switches as they were.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from dlspark.core.dynamic.watched_file import ReadFile, WatchedFile, read_in_thread
from dlspark.core.settings.settings import Settings
from dlspark.errors import SettingsError
from metadata.foundation.properties import local_path

_log = logging.getLogger(__name__)

DL_SCOPE: Final = "dl"
BKC_SCOPE: Final = "bkc"
DISABLE_LOGSEGMENT_ROLLING: Final = "disable_logsegment_rolling"
DISABLE_WRITE_LIMIT: Final = "disable_write_limit"
DISABLE_ENSEMBLE_CHANGE: Final = "disable_ensemble_change"
_IN_REGION: Final = re.compile(rf"{BKC_SCOPE}\.[^./;\s]+\.disallow_bookie_placement")
"""The switches of regions, one for each."""

KNOWN_FEATURES: Final[Mapping[str, str]] = {
    f"{DL_SCOPE}.{DISABLE_LOGSEGMENT_ROLLING}": "Writers go on with their segment, whatever its age and size",
    f"{DL_SCOPE}.{DISABLE_WRITE_LIMIT}": "Outstanding-write limits refuse nothing",
    f"{BKC_SCOPE}.{DISABLE_ENSEMBLE_CHANGE}": (
        "Writers keep their storage nodes though some have failed, and send these again what they failed"
    ),
    f"{BKC_SCOPE}.repp_disable_durability_enforcement": "Placement over regions demands no number of regions",
    f"{BKC_SCOPE}.<region>.disallow_bookie_placement": "The region gets no new copies",
}
"""The features that this library looks at, by full name."""


class Feature(Protocol):
    """One switch."""

    @property
    def name(self) -> str:
        """The full name: scopes and key, joined by dots."""
        ...

    @property
    def availability(self) -> int:
        """How far it is switched on; 0: off."""
        ...

    def is_available(self) -> bool:
        """Return whether it is on now. Costs a lookup; ask again at the next decision."""
        ...


class FeatureProvider(Protocol):
    """Switches by their names."""

    def scope(self, name: str) -> FeatureProvider:
        """Return the switches whose names begin with this provider's scope and `name`."""
        ...

    def feature(self, key: str) -> Feature:
        """Return the switch `key` of this scope. A switch that was never set is off."""
        ...


class SettableFeatures:
    """Switches held in memory, set by full name: `features.set("dl.disable_write_limit", 100)`."""

    def __init__(self, availability: Mapping[str, int] | None = None) -> None:
        self._availability = dict(availability or {})

    def set(self, name: str, availability: int) -> None:
        """Switch `name` on (above 0) or off, for every decision from now on."""
        self._availability[name] = availability

    def replace(self, availability: Mapping[str, int]) -> None:
        """Switch everything at once: what is not named is off."""
        self._availability = dict(availability)

    def switched(self) -> Mapping[str, int]:
        """Return everything that was set, by full name."""
        return dict(self._availability)

    def availability(self, name: str) -> int:
        """Return how far the feature of this full name is switched on."""
        return self._availability.get(name, 0)

    def scope(self, name: str) -> FeatureProvider:
        """Return the switches whose full names begin with `name` and a dot; they follow later changes."""
        return _Scope(self, name)

    def feature(self, key: str) -> Feature:
        """Return the switch of this full name, which follows later changes; off if it was never set."""
        return _Switch(self, key)


class _Scope:
    def __init__(self, root: SettableFeatures, name: str) -> None:
        self._root = root
        self._name = name

    def scope(self, name: str) -> FeatureProvider:
        """Return the switches below this scope's."""
        return _Scope(self._root, f"{self._name}.{name}")

    def feature(self, key: str) -> Feature:
        """Return the switch of this name in this scope."""
        return _Switch(self._root, f"{self._name}.{key}")


class _Switch:
    __slots__ = ("_root", "name")

    def __init__(self, root: SettableFeatures, name: str) -> None:
        self._root = root
        self.name: str = name

    @property
    def availability(self) -> int:
        """How far it is switched on."""
        return self._root.availability(self.name)

    def is_available(self) -> bool:
        """Return whether it is switched on at all."""
        return self._root.availability(self.name) > 0


class _NoFeatures:
    """Everything is off."""

    def scope(self, name: str) -> FeatureProvider:
        """Return switches that are off."""
        return _OFF.scope(name)

    def feature(self, key: str) -> Feature:
        """Return a switch that is off."""
        return _OFF.feature(key)


_OFF: Final = SettableFeatures()
NO_FEATURES: Final[FeatureProvider] = _NoFeatures()
"""Upstream's default provider: everything is off, and nothing can switch it on."""

# ------------------------------------------------------------------ switches from files

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class FileFeatures(SettableFeatures):
    """Switches as two files have them. `load` before use."""

    def __init__(self, settings: Settings, counters: Counter[str], read: ReadFile = read_in_thread) -> None:
        super().__init__()
        overlay = settings.feature_overlay_path
        self._base = WatchedFile(local_path(settings.feature_base_path, SettingsError), _availability, counters, read)
        self._overlay = (
            WatchedFile(local_path(overlay, SettingsError), _availability, counters, read) if overlay else None
        )

    async def load(self) -> None:
        """Read the files. Raises SettingsError, also where the base file does not exist."""
        await self._base.load()
        if self._base.meaning is None:
            raise SettingsError(
                f"fileFeatureProviderBaseConfigPath={self._base.path} does not exist",
                advice="Create it, correct the path, or set featureProviderClass=DefaultFeatureProvider",
            )
        if self._overlay is not None:
            await self._overlay.load()
        self._switch()

    async def reload(self) -> None:
        """Look at the files again."""
        changed = await self._base.refresh()
        if self._overlay is not None:
            changed = await self._overlay.refresh() or changed
        if changed:
            self._switch()

    def _switch(self) -> None:
        before = self.switched()
        overlay = self._overlay.meaning if self._overlay is not None else None
        self.replace({**(self._base.meaning or {}), **(overlay or {})})
        after = self.switched()
        for name in sorted(before.keys() | after.keys()):
            if before.get(name, 0) != after.get(name, 0):
                _log.info("feature %s: %d, was %d", name, after.get(name, 0), before.get(name, 0))


def _availability(written: Mapping[str, str]) -> dict[str, int]:
    """Return the switches of a file. Raises SettingsError for an availability that is not a whole number."""
    found: dict[str, int] = {}
    for name, text in written.items():
        if not _NUMBER.fullmatch(text.strip()):
            raise SettingsError(f"{name}={text!r} is not a whole number", advice="Above 0 switches the feature on")
        found[name] = int(text)
        _warn_if_unknown(name)
    return found


def _warn_if_unknown(name: str) -> None:
    """Warn of a switch in a scope of this library that nothing looks at: it is misspelt, or only upstream has it."""
    if name in KNOWN_FEATURES or _IN_REGION.fullmatch(name) or name.partition(".")[0] not in (DL_SCOPE, BKC_SCOPE):
        return
    nearest = difflib.get_close_matches(name, KNOWN_FEATURES, n=1)
    advice = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(KNOWN_FEATURES)}"
    _log.warning("the feature %s is switched in a file, but nothing here looks at it; %s", name, advice)
