"""Delay lines: chunks come out in order, each so much later, and their number is bounded."""

from __future__ import annotations

import random

import pytest

from dlspark.sandbox.delay_line import DelayLine, Way
from metadata.foundation.errors import CallerError


def test_chunks_that_go_in_one_after_the_other_are_under_way_at_the_same_time() -> None:
    line = DelayLine()
    line.put(b"a", 10.0, 0.5)
    line.put(b"b", 10.1, 0.5)
    assert (line.next_due(), line.take()) == (10.5, b"a")
    assert line.next_due() == pytest.approx(10.6)
    assert line.take() == b"b"
    assert line.next_due() is None


def test_a_chunk_that_takes_less_long_overtakes_none() -> None:
    line = DelayLine()
    line.put(b"slow", 1.0, 2.0)
    line.put(b"fast", 1.1, 0.1)
    line.put(None, 1.2, 0.0)
    assert [(line.next_due(), line.take()) for _ in range(3)] == [(3.0, b"slow"), (3.0, b"fast"), (3.0, None)]


def test_a_full_line_has_room_again_once_a_chunk_has_left() -> None:
    line = DelayLine(capacity_bytes=10)
    line.put(bytes(6), 0.0, 1.0)
    assert line.has_room
    line.put(bytes(6), 0.0, 1.0)
    assert (line.has_room, line.held_bytes) == (False, 12)
    line.take()
    assert (line.has_room, line.held_bytes) == (True, 6)


def test_jitter_only_adds() -> None:
    way, rng = Way("r1", "r2", delay_ms=10, jitter_ms=4), random.Random(1)
    taken = [way.passage_s(rng) for _ in range(200)]
    assert min(taken) >= 0.010
    assert max(taken) <= 0.014
    assert max(taken) - min(taken) > 0.002


def test_a_delay_below_zero_is_refused() -> None:
    with pytest.raises(CallerError, match="-1"):
        Way("r1", "r2", delay_ms=-1)
