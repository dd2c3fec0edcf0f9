"""How far a micro-batch goes: up to the logs' ends, or a frozen end, or what limits and a minimum leave of that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OptionError, UnreachableEndDataLossError
from dlspark.spark.source.limits import Limits, byte_shares, shares
from dlspark.spark.source.log_bytes import advance_bytes, bytes_between, next_entry_bytes
from dlspark.spark.source.log_view import LogView
from dlspark.spark.source.losses import Losses
from dlspark.spark.source.offsets import Offsets

Views: TypeAlias = Mapping[str, LogView]
_T = TypeVar("_T")


class BatchEnds:
    """One query's: it knows whose turn it is, and when the last batch was made. `now_s` is a monotonic clock."""

    def __init__(self, losses: Losses, now_s: Callable[[], float]) -> None:
        self._losses = losses
        self._now_s = now_s
        self._turn = 0
        self._last_batch_s: float | None = None
        self.due_in_s: float | None = None
        """If the last answer held back a batch that was too small: how long until it will not be any more."""

    async def end(self, views: Views, start: Offsets, ends: Mapping[str, DLSN], limits: Limits, wait: bool) -> Offsets:
        """The end of the next batch, `start` if there is none: from `start` to `ends`, which `views` have, or less.

        A log that is gone, or not selected any more, keeps its position, so that nothing is lost if it comes back. With
        `wait` a batch of fewer records than `limits` want is put off.
        """
        self.due_in_s = None
        begins = await gathered(
            {log: self._losses.begin(views[log], start.get(log), start.marks.get(log)) for log in ends}
        )
        news = {log: end for log, end in ends.items() if end > begins[log]}
        if news and (limits.max_records is not None or (wait and limits.min_records is not None)):
            news = await self._by_records(views, begins, news, limits, wait)
        if news and limits.max_bytes is not None:
            news = await self._by_bytes(views, begins, news, limits.max_bytes)
        if not news:
            return start
        self._last_batch_s = self._now_s()
        self._turn += 1
        marks = {log: mark for log, end in news.items() if (mark := views[log].mark(end)) is not None}
        kept = {log: mark for log, mark in start.marks.items() if log not in news}
        return Offsets({**start, **news}, {**kept, **marks})

    async def _by_records(
        self, views: Views, begins: Mapping[str, DLSN], ends: Mapping[str, DLSN], limits: Limits, wait: bool
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

    def _too_few(self, count: int, limits: Limits) -> bool:
        """Whether the batch waits for more records. The first batch of a query that starts never does."""
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
        """The ends that an AvailableNow query fixed when it began, verified: each must still be there to be reached."""
        ends: dict[str, DLSN] = {}
        for log, position in target.items():
            view, mark = views.get(log), target.marks.get(log)
            if view is None:
                self._losses.deleted(log, position, "it is left out")
            elif mark is not None and view.differs(mark):
                self._losses.recreated(log, position, mark, "it is left out")
            elif await view.beyond_end(position):
                ends[log] = await view.latest()
                what = f"the log ends at {ends[log]}, before the end that was fixed when the query began"
                self._losses.lost(UnreachableEndDataLossError, log, position, what, f"the query ends at {ends[log]}")
            else:
                ends[log] = position
        return ends


async def _only_control(view: LogView, start: DLSN, end: DLSN) -> bool:
    """Whether no user record lies between two positions; unknown where the writer did not count counts as no."""
    try:
        return await view.count(start, end) == 0
    except OptionError:
        return False


async def gathered(questions: Mapping[str, Awaitable[_T]]) -> dict[str, _T]:
    """The answers to questions that were asked of several logs at the same time."""
    answers = await asyncio.gather(*questions.values())
    return dict(zip(questions, answers, strict=True))
