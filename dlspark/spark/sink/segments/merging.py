"""Merging segments of a batch, so that the multi that publishes it fits into ZooKeeper: which ones, and how.

Each task makes one segment a log, so many tasks over many logs make more segments than one multi can publish. Then the
driver writes neighbouring ones of a log again as one, the smallest first, until the multi fits. That costs the driver
time, so it is bounded: a batch whose segments are too many and too large is refused with what to do.

The records themselves are written by `rewriting`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlspark.spark.errors import TransactionOrderError
from dlspark.spark.sink.messages import IdOrigin, StagedSegment, order_segments

MAX_MERGED_BYTES = 256 * 1024 * 1024
"""Most bytes of records that the driver writes again for one batch."""
MAX_MERGED_RECORDS = 2**31 - 2**24
"""A segment's positions have 31 bits."""


@dataclass(slots=True)
class _MergeRun:
    """Neighbouring segments of one log that become one; None: they belong to their neighbour on the left by now."""

    segments: list[StagedSegment] | None
    bytes: int
    records: int
    left: int
    right: int


def plan_merges(
    by_log: Sequence[Sequence[StagedSegment]], excess_bytes: int, cost: Callable[[StagedSegment], int]
) -> list[list[StagedSegment]] | None:
    """Choose runs of neighbours to be merged, each of two segments or more, that save `excess_bytes` of the multi.

    `by_log` has the segments of each log in their order; `cost` is what a segment takes in the multi. None: it cannot
    be done within the bounds.
    """
    nodes: list[_MergeRun] = []
    pairs: list[tuple[int, int, int]] = []
    for segments in by_log:
        first = len(nodes)
        for number, segment in enumerate(segments, first):
            right = number + 1 if number + 1 < first + len(segments) else -1
            nodes.append(_MergeRun([segment], segment.user_bytes, segment.record_count, number - 1, right))
            if right != -1:
                pairs.append((segment.user_bytes + segments[number - first + 1].user_bytes, number, right))
        if first < len(nodes):
            nodes[first].left = -1
    heapq.heapify(pairs)
    saved = 0
    while saved < excess_bytes and pairs:
        size, left, right = heapq.heappop(pairs)
        saved += _join(nodes, pairs, left, right, size, cost)
    runs = [node.segments for node in nodes if node.segments is not None and len(node.segments) > 1]
    written = sum(segment.user_bytes for run in runs for segment in run)
    return runs if saved >= excess_bytes and written <= MAX_MERGED_BYTES else None


def _join(
    nodes: list[_MergeRun],
    pairs: list[tuple[int, int, int]],
    left: int,
    right: int,
    size: int,
    cost: Callable[[StagedSegment], int],
) -> int:
    """Join two neighbours, unless the pair is out of date or too long. Returns the bytes of the multi that it saves."""
    one, other = nodes[left], nodes[right]
    if one.segments is None or other.segments is None or one.right != right or one.bytes + other.bytes != size:
        return 0
    if one.records + other.records > MAX_MERGED_RECORDS:
        return 0
    # The joined segment keeps the place of the left one in the multi, so the right run's place is what is saved.
    saved = cost(other.segments[0])
    one.segments += other.segments
    one.bytes, one.records, one.right = size, one.records + other.records, other.right
    other.segments = None
    if one.right != -1:
        nodes[one.right].left = left
        heapq.heappush(pairs, (size + nodes[one.right].bytes, left, one.right))
    if one.left != -1:
        heapq.heappush(pairs, (nodes[one.left].bytes + size, one.left, left))
    return saved


def plan_raises(segments: Sequence[StagedSegment], highest_txid: int) -> list[tuple[StagedSegment, int]]:
    """Return the segments of one log whose ids would take it back, each with the id below which none of its may be.

    A batch's own timestamp is one in each log; times of rows are raised segment by segment, in the order in which they
    continue the log. Ids that a user gave are never raised.
    """
    stamp = max([highest_txid, *(one.first_txid for one in segments)])
    found: list[tuple[StagedSegment, int]] = []
    last = highest_txid
    for one in order_segments(segments[0].log, segments):
        lowest = stamp if one.origin is IdOrigin.STAMPED else last
        if one.origin is not IdOrigin.GIVEN and one.first_txid < lowest:
            found.append((one, lowest))
        last = max(last, one.last_txid)
    return found


def check_raised_size(raised: Iterable[StagedSegment]) -> None:
    """Raise TransactionOrderError where segments whose ids are times of rows are too large to be written again."""
    times = [one for one in raised if one.raisable]
    size = sum(one.user_bytes for one in times)
    if size > MAX_MERGED_BYTES:
        raise TransactionOrderError(
            f"{size} bytes of the batch are in tasks whose times overlap, or lie below the log's highest by now; up to "
            f"{MAX_MERGED_BYTES} are written again with higher ids; nothing of the batch is visible",
            log=times[0].log,
            advice="Sort the frame by the column that the log takes transaction ids from: "
            'df.repartitionByRange("at").sortWithinPartitions("at"). Where another writer was faster, run it again',
        )
