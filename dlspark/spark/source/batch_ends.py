"""How far a micro-batch goes: up to the logs' ends, or a frozen end, or what limits and a minimum leave of that.

`BatchEnds` asks the logs; `shares` and `byte_shares` divide a limit over logs, of which none starves. These are pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OptionError, UnreachableEndDataLossError
from dlspark.spark.source.data_loss import DataLossPolicy
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.extents import advance_bytes, bytes_between, next_entry_bytes
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.selection import BatchLimits
from metadata.foundation.errors import check

Views: TypeAlias = Mapping[str, DriverLogView]
_T = TypeVar("_T")


class BatchEnds:
    """The ends of one query's batches. Keeps which log's turn it is, and when the last batch was made.

    `now_s` is a monotonic clock.
    """

    def __init__(self, data_loss: DataLossPolicy, now_s: Callable[[], float]) -> None:
        self._data_loss = data_loss
        self._now_s = now_s
        self._turn = 0
        self._last_batch_s: float | None = None
        self.due_in_s: float | None = None
        """If the last answer held back a batch that was too small: how long until it will not be any more."""

    async def end(
        self, views: Views, start: Offsets, ends: Mapping[str, DLSN], limits: BatchLimits, wait: bool
    ) -> Offsets:
        """Return the end of the next batch, `start` if there is none: from `start` to `ends`, which `views` have, or
        less.

        A log that is gone, or not selected any more, keeps its position, so that nothing is lost if it comes back. With
        `wait` a batch of fewer records than `limits` want is put off.
        """
        self.due_in_s = None
        begins = await gathered(
            {log: self._data_loss.begin(views[log], start.get(log), start.identities.get(log)) for log in ends}
        )
        news = {log: end for log, end in ends.items() if end > begins[log]}
        if news and (limits.max_records is not None or (wait and limits.min_records is not None)):
            news = await self._by_records(views, begins, news, limits, wait)
        if news and limits.max_bytes is not None:
            news = await self._by_bytes(views, begins, news, limits.max_bytes)
        if not news:
            return start
        self._last_batch_s = self._now_s()
        self._turn += 1  # only with a batch: a poll without one must not pass over the log whose turn it is
        identities = {log: identity for log, end in news.items() if (identity := views[log].identity(end)) is not None}
        kept = {log: identity for log, identity in start.identities.items() if log not in news}
        return Offsets({**start, **news}, {**kept, **identities})

    async def _by_records(
        self, views: Views, begins: Mapping[str, DLSN], ends: Mapping[str, DLSN], limits: BatchLimits, wait: bool
    ) -> dict[str, DLSN]:
        counts = await gathered({log: views[log].count(begins[log], end) for log, end in ends.items()})
        if wait and self._too_few(sum(counts.values()), limits):
            return {}
        if limits.max_records is None:
            return dict(ends)
        given = shares(limits.max_records, counts, self._turn)
        found: dict[str, DLSN] = {}
        for log, end in ends.items():
            taken = given.get(log, 0)
            if taken == counts[log]:
                found[log] = end
            elif taken:
                found[log] = await views[log].advance(begins[log], end, taken)
        return found

    def _too_few(self, count: int, limits: BatchLimits) -> bool:
        """Return whether the batch waits for more records. The first batch of a query that starts never does."""
        if limits.min_records is None or count >= limits.min_records or self._last_batch_s is None:
            return False
        left_s = self._last_batch_s + limits.max_delay_ms / 1000 - self._now_s()
        if left_s <= 0:
            return False
        self.due_in_s = left_s
        return True

    async def _by_bytes(
        self, views: Views, begins: Mapping[str, DLSN], ends: Mapping[str, DLSN], limit: int
    ) -> dict[str, DLSN]:
        sizes = await gathered({log: bytes_between(views[log], begins[log], end) for log, end in ends.items()})
        first = await gathered({log: next_entry_bytes(views[log], begins[log], end) for log, end in ends.items()})
        given = byte_shares(limit, sizes, first, self._turn)
        found = await gathered(
            {log: advance_bytes(views[log], begins[log], ends[log], share) for log, share in given.items()}
        )
        for log, end in found.items():
            if begins[log] < end < ends[log] and await _only_control(views[log], end, ends[log]):
                found[log] = ends[log]  # or they would make a batch without a row
        # What has no bytes has no records either: it costs nothing to pass.
        passed = {log: ends[log] for log, size in sizes.items() if not size}
        return {**passed, **{log: end for log, end in found.items() if end > begins[log]}}

    async def frozen(self, views: Views, target: Offsets) -> dict[str, DLSN]:
        """Return the ends that an AvailableNow query fixed when it began, verified: each must still be there to be
        reached."""
        ends: dict[str, DLSN] = {}
        for log, position in target.items():
            view, identity = views.get(log), target.identities.get(log)
            if view is None:
                self._data_loss.deleted(log, position, "it is left out")
            elif identity is not None and view.differs(identity):
                self._data_loss.recreated(view, position, identity, "it is left out")
            elif await view.beyond_end(position):
                ends[log] = await view.latest()
                what = f"the log ends at {ends[log]}, before the end that was fixed when the query began"
                self._data_loss.lost(UnreachableEndDataLossError, log, position, what, f"the query ends at {ends[log]}")
            else:
                ends[log] = position
        return ends


async def _only_control(view: DriverLogView, start: DLSN, end: DLSN) -> bool:
    """Return whether no user record lies between two positions; false where the writer did not count."""
    try:
        return await view.count(start, end) == 0
    except OptionError:
        return False


async def gathered(questions: Mapping[str, Awaitable[_T]]) -> dict[str, _T]:
    """Return the answers to questions that were asked of several logs at the same time."""
    found = await asyncio.gather(*questions.values())
    return dict(zip(questions, found, strict=True))


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
    # Shares were rounded down: what is left goes to the largest remainders.
    while left > 0:
        for log in by_remainder:
            if left > 0 and given[log] < waiting[log]:
                given[log] += 1
                left -= 1
    # Or small shares were raised to 1: what is too much is taken from the largest.
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
    # Each log's next entry first. Shares in proportion alone could leave a log below the size of its next entry for
    # ever, and it would starve.
    given: dict[str, int] = {}
    left = limit
    for name in (names[(turn + i) % len(names)] for i in range(len(names))):
        if not given or first[name] <= left:
            given[name] = first[name]
            left -= first[name]
    more = shares(max(left, 0), {log: available[log] - size for log, size in given.items()}, turn) if left > 0 else {}
    return {log: size + more.get(log, 0) for log, size in given.items()}
