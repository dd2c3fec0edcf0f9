"""Which segments of a batch are merged, so that the multi that publishes it fits into ZooKeeper.

Each task makes one segment a log, so many tasks over many logs make more segments than one multi can publish. Then the
driver writes neighbouring ones of a log again as one, the smallest first, until the multi fits. That costs the driver
time, so it is bounded: a batch whose segments are too many and too large is refused with what to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlspark.spark.sink.messages import StagedSegment

MAX_MERGED_BYTES = 256 * 1024 * 1024
"""Most bytes of records that the driver writes again for one batch."""
MAX_MERGED_RECORDS = 2**31 - 2**24
"""A segment's positions have 31 bits."""


@dataclass(slots=True)
class _Node:
    """Neighbouring segments of one log that become one; None: they belong to their neighbour on the left by now."""

    segments: list[StagedSegment] | None
    bytes: int
    records: int
    left: int
    right: int


def plan_merges(
    by_log: Sequence[Sequence[StagedSegment]], excess_bytes: int, cost: Callable[[StagedSegment], int]
) -> list[list[StagedSegment]] | None:
    """Runs of neighbours to be merged, each of two segments or more, so that `excess_bytes` of the multi are saved.

    `by_log` has the segments of each log in their order; `cost` is what a segment takes in the multi. None: it cannot
    be done within the bounds.
    """
    nodes: list[_Node] = []
    pairs: list[tuple[int, int, int]] = []
    for segments in by_log:
        first = len(nodes)
        for number, segment in enumerate(segments, first):
            right = number + 1 if number + 1 < first + len(segments) else -1
            nodes.append(_Node([segment], segment.user_bytes, segment.record_count, number - 1, right))
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
    nodes: list[_Node],
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
