"""Which stream a log is a partition of: logs of one stream share its dynamic settings file.

A converter splits a log's name into a stream's name and a partition number. Applications number partitions in log names
by themselves; each converter knows one form of such names:

    identity     every log is a stream of its own, in partition 0
    delimiter    `<stream>_<number>`: exactly two parts at the delimiter; other names are streams of their own
    event bus    `eventbus_<stream>_<six digits>`, also with `__dark_` before it; other names are streams of their own
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dlspark.errors import SettingsError


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """One partition of a stream. `str` gives it as people know it: `<stream>_<six digits>`."""

    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}_{self.partition:06d}"


StreamConverter: TypeAlias = Callable[[str], StreamPartition]

_EVENT_BUS: Final = re.compile(r"(?:__dark_)?eventbus_(.+)_([0-9]{6})")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def identity(log: str) -> StreamPartition:
    """The log as a stream of its own, in partition 0."""
    return StreamPartition(log, 0)


def delimited(log: str, delimiter: str = "_") -> StreamPartition:
    """The log as `<stream>_<number>`, the number one of 32 bits; other names as `identity` has them."""
    parts = [part for part in log.split(delimiter) if part]
    if len(parts) == 2 and _NUMBER.fullmatch(parts[1]) and -(2**31) <= int(parts[1]) < 2**31:
        return StreamPartition(parts[0], int(parts[1]))
    return identity(log)


def event_bus(log: str) -> StreamPartition:
    """The log as `eventbus_<stream>_<six digits>`, also behind `__dark_`; other names as `identity` has them."""
    found = _EVENT_BUS.fullmatch(log)
    return StreamPartition(found[1], int(found[2])) if found else identity(log)


_CONVERTERS: Final[Mapping[str, StreamConverter]] = {
    "IdentityConfigRouter": identity,
    "IdentityStreamPartitionConverter": identity,
    "DelimiterStreamPartitionConverter": delimited,
    "EventbusPartitionConfigRouter": event_bus,
    "EventBusStreamPartitionConverter": event_bus,
}
"""By upstream's class names, without their packages."""


def stream_converter(class_name: str, key: str) -> StreamConverter:
    """The converter of one of upstream's class names, with or without its package.

    Raises SettingsError, saying that `key` was wrong.
    """
    converter = _CONVERTERS.get(class_name.rpartition(".")[2])
    if converter is None:
        raise SettingsError(f"{key}={class_name} is not known here", advice=f"Known are {', '.join(_CONVERTERS)}")
    return converter
