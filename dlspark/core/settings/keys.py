"""What a setting is: a field of a dataclass, and beside it its key, meaning and bounds.

A group of settings is a frozen dataclass whose docstring is the group's title; `Settings` is made of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

Value: TypeAlias = bool | int | float | str

MAX_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """What is known about one setting besides its value. `minimum` and `maximum` are inclusive."""

    key: str
    meaning: str
    per_log: bool = True
    dynamic: bool = False
    """Whether a writer or reader that is open takes a new value."""
    old_key: str | None = None
    minimum: float = -MAX_INT - 1
    maximum: float = MAX_INT
    choices: tuple[str, ...] = ()
    own: bool = False
    """Not one of Apache DistributedLog's keys."""
    secret: bool = False
    """Its value is shown nowhere: not by `repr`, and not in an error. This is the one place that says so."""


def flag(
    default: bool,
    key: str,
    meaning: str,
    *,
    old_key: str | None = None,
    per_log: bool = True,
    dynamic: bool = False,
    own: bool = False,
) -> bool:
    """A setting that is true or false."""
    info = SettingInfo(key, meaning, per_log, dynamic, old_key, own=own)
    value: bool = field(default=default, metadata={"info": info})
    return value


def number(
    default: int,
    key: str,
    meaning: str,
    *,
    minimum: int = -MAX_INT - 1,
    maximum: int = MAX_INT,
    old_key: str | None = None,
    per_log: bool = True,
    dynamic: bool = False,
) -> int:
    """A setting that is a whole number."""
    info = SettingInfo(key, meaning, per_log, dynamic, old_key, minimum, maximum)
    value: int = field(default=default, metadata={"info": info})
    return value


def real(
    default: float,
    key: str,
    meaning: str,
    *,
    minimum: float = -MAX_INT - 1,
    maximum: float = MAX_INT,
    per_log: bool = True,
    dynamic: bool = False,
) -> float:
    """A setting that is a number, perhaps with a fraction."""
    info = SettingInfo(key, meaning, per_log, dynamic, None, minimum, maximum)
    value: float = field(default=default, metadata={"info": info})
    return value


def text(
    default: str,
    key: str,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    per_log: bool = True,
    dynamic: bool = False,
    own: bool = False,
    secret: bool = False,
) -> str:
    """A setting that is a text; one of `choices`, in any case, where there are any."""
    info = SettingInfo(key, meaning, per_log, dynamic, choices=choices, own=own, secret=secret)
    value: str = field(default=default, repr=not secret, metadata={"info": info})
    return value
