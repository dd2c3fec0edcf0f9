"""How many partitions of one group a proxy has: what it counts against its partition limits. No I/O.

A converter makes a group and a number of a stream's name (`core.settings.operations`). A proxy *caches* a partition as
long as it has its stream in any state, and has it *acquired* as long as it owns its log.
"""

from __future__ import annotations

from dlspark.core.settings.operations import StreamConverter, StreamPartition
from dlspark.errors import StreamUnavailableError


class PartitionCounts:
    """The partitions that a proxy has in one of the two ways, by group."""

    def __init__(self, converter: StreamConverter) -> None:
        self._converter = converter
        self._groups: dict[str, set[StreamPartition]] = {}

    def add(self, stream: str) -> None:
        """It has this stream now."""
        partition = self._converter(stream)
        self._groups.setdefault(partition.stream, set()).add(partition)

    def discard(self, stream: str) -> None:
        """It has it no more."""
        partition = self._converter(stream)
        group = self._groups.get(partition.stream)
        if group is not None:
            group.discard(partition)
            if not group:
                del self._groups[partition.stream]

    def check(self, stream: str, limit: int, done: str) -> None:
        """Raise StreamUnavailableError where `stream` would be one partition too many; 0 or less: never. `done` says
        what is done with partitions: "cached" or "acquired"."""
        if limit <= 0:
            return
        partition = self._converter(stream)
        group = self._groups.get(partition.stream, set())
        if partition not in group and len(group) >= limit:
            raise StreamUnavailableError(
                f"{len(group)} partitions of {partition.stream} are {done} here, the most that this proxy has",
                log=stream,
                advice="Ask another proxy",
            )

    def count(self, group: str) -> int:
        """How many partitions of a group there are."""
        return len(self._groups.get(group, ()))
