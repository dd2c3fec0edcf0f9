"""`LogSetting`: what the core knows of a setting in addition: whether one log may override it, and when it changes.

A group of settings is a frozen dataclass whose docstring is the group's title; `Settings` is made of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from metadata.foundation.settings import MAX_INT, Kind, Setting, declared

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogSetting(Setting):
    """One setting of the core."""

    per_log: bool = True
    """True if one log may have another value than its namespace."""
    dynamic: bool = False
    """True if a writer or reader that is open takes a new value."""


def setting(
    kind: Kind[T],
    default: T,
    key: str,
    meaning: str,
    *,
    minimum: float = -MAX_INT - 1,
    maximum: float = MAX_INT,
    choices: tuple[str, ...] = (),
    other_keys: tuple[str, ...] = (),
    per_log: bool = True,
    dynamic: bool = False,
    own: bool = False,
    secret: bool = False,
) -> T:
    """Return a field with its setting. Upstream's numbers are Java's ints, where nothing else is said."""
    info = LogSetting(
        kind,  # type: ignore[arg-type]
        key,
        meaning,
        minimum,
        maximum,
        choices=choices,
        other_keys=other_keys,
        own=own,
        secret=secret,
        per_log=per_log,
        dynamic=dynamic,
    )
    return declared(info, default)  # type: ignore[return-value]
