"""Feature switches: parts of the library that an operator turns on and off while it runs.

A provider has scopes, a scope has features, and a feature is available or not: `is_available()` is asked at each
decision and answers from memory. The names, `<scope>.<key>`, are Apache DistributedLog's (`KNOWN_FEATURES`).

Availability is a number as upstream's; above 0 is on. `NO_FEATURES` has everything off; `SettableFeatures` is switched
by a program; `feature_files` reads files. An application may use a provider for features of its own, in scopes of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias

from dlspark.errors import SettingsError

DL_SCOPE: Final = "dl"
BKC_SCOPE: Final = "bkc"
DISABLE_LOGSEGMENT_ROLLING: Final = "disable_logsegment_rolling"
DISABLE_WRITE_LIMIT: Final = "disable_write_limit"
DISABLE_ENSEMBLE_CHANGE: Final = "disable_ensemble_change"

KNOWN_FEATURES: Final[Mapping[str, str]] = {
    f"{DL_SCOPE}.{DISABLE_LOGSEGMENT_ROLLING}": "Writers go on with their segment, whatever its age and size",
    f"{DL_SCOPE}.{DISABLE_WRITE_LIMIT}": "Outstanding-write limits refuse nothing",
    f"{BKC_SCOPE}.{DISABLE_ENSEMBLE_CHANGE}": (
        "Writers keep their storage nodes though some have failed, and send these again what they failed"
    ),
}
"""What this library looks at, by full name."""

ProviderKind: TypeAlias = Literal["none", "files"]
_PROVIDERS: Final[Mapping[str, ProviderKind]] = {
    "DefaultFeatureProvider": "none",
    "DynamicConfigurationFeatureProvider": "files",
}
"""By upstream's class names, without their packages."""


def provider_kind(class_name: str) -> ProviderKind:
    """What one of upstream's provider classes, with or without its package, is here. Raises SettingsError."""
    kind = _PROVIDERS.get(class_name.rpartition(".")[2])
    if kind is None:
        raise SettingsError(
            f"featureProviderClass={class_name} is not known here",
            advice=f"Known are {', '.join(_PROVIDERS)}; a provider of your own is given on opening the namespace",
        )
    return kind


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
        """Whether it is on now. Costs a lookup; ask again at the next decision."""
        ...


class FeatureProvider(Protocol):
    """Where switches are looked up."""

    def scope(self, name: str) -> FeatureProvider:
        """The switches whose names begin with this provider's scope and `name`."""
        ...

    def feature(self, key: str) -> Feature:
        """The switch `key` of this scope. A switch that was never set is off."""
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
        """Everything that was set, by full name."""
        return dict(self._availability)

    def availability(self, name: str) -> int:
        """How far the feature of this full name is switched on."""
        return self._availability.get(name, 0)

    def scope(self, name: str) -> FeatureProvider:
        """The switches whose full names begin with `name` and a dot; they follow later changes."""
        return _Scope(self, name)

    def feature(self, key: str) -> Feature:
        """The switch of this full name, which follows later changes; off if it was never set."""
        return _Switch(self, key)


class _Scope:
    def __init__(self, root: SettableFeatures, name: str) -> None:
        self._root = root
        self._name = name

    def scope(self, name: str) -> FeatureProvider:
        return _Scope(self._root, f"{self._name}.{name}")

    def feature(self, key: str) -> Feature:
        return _Switch(self._root, f"{self._name}.{key}")


class _Switch:
    __slots__ = ("_root", "name")

    def __init__(self, root: SettableFeatures, name: str) -> None:
        self._root = root
        self.name: str = name

    @property
    def availability(self) -> int:
        return self._root.availability(self.name)

    def is_available(self) -> bool:
        return self._root.availability(self.name) > 0


class _NoFeatures:
    """Everything is off."""

    def scope(self, name: str) -> FeatureProvider:
        return _OFF.scope(name)

    def feature(self, key: str) -> Feature:
        return _OFF.feature(key)


_OFF: Final = SettableFeatures()
NO_FEATURES: Final[FeatureProvider] = _NoFeatures()
"""Upstream's default provider: everything is off, and nothing can switch it on."""
