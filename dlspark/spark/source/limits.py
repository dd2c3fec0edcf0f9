"""How much one micro-batch may hold, and how it is divided over logs, of which none starves. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metadata.foundation.errors import check


@dataclass(frozen=True, slots=True)
class Limits:
    """What the options of a streaming query say of its batches; None: no limit. `max_delay_ms` is the minimum's."""

    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_ms: int = 0


NO_LIMITS = Limits()


def shares(limit: int, available: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` records over logs that have `available` ones: in proportion, but at least one each (none starves).

    The shares sum to exactly min(limit, all available). If the limit is below the number of logs with news, that many
    take one record each, beginning with the one at `turn`, so that a caller that counts `turn` up serves all of them.
    """
    waiting = {log: count for log, count in sorted(available.items()) if count > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    if limit <= len(waiting):
        names = list(waiting)
        return {names[(turn + i) % len(names)]: 1 for i in range(limit)}
    given = {log: max(1, limit * count // total) for log, count in waiting.items()}
    left = limit - sum(given.values())
    by_remainder = sorted(waiting, key=lambda log: (-(limit * waiting[log] % total), log))
    by_size = sorted(given, key=lambda log: (-given[log], log))
    while left > 0:
        for log in by_remainder:
            if left > 0 and given[log] < waiting[log]:
                given[log] += 1
                left -= 1
    while left < 0:
        for log in by_size:
            if left < 0 and given[log] > 1:
                given[log] -= 1
                left += 1
    check(sum(given.values()) == limit, "the shares of a trigger do not sum to its limit")
    return given


def byte_shares(limit: int, available: Mapping[str, int], first: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Divide `limit` bytes over logs that have `available` ones, of which only whole entries can be taken.

    `first` is the size of each log's next entry. As many logs as there is room for get that, beginning with the one at
    `turn`, which gets it even if it is larger than the limit: so each log is served in its turn, whatever its entries
    and those of the others are. What is left is divided in proportion. Only a single entry ever exceeds the limit.
    """
    names = sorted(log for log, count in available.items() if count > 0)
    given: dict[str, int] = {}
    left = limit
    for name in (names[(turn + i) % len(names)] for i in range(len(names))):
        if not given or first[name] <= left:
            given[name] = first[name]
            left -= first[name]
    more = shares(max(left, 0), {log: available[log] - size for log, size in given.items()}, turn) if left > 0 else {}
    return {log: size + more.get(log, 0) for log, size in given.items()}
