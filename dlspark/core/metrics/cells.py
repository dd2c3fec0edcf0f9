"""Cells that metrics are counted in: plain numbers, written by one event loop and read, now and then, by a collector.

A namespace has cells of its own, so that counting takes no lock: what a registry shows is their sum (`collection`).
Another thread that reads them sees each number whole, but perhaps not all numbers of the same moment.

Cells that only grow are *kept* when their namespace or log ends, so that sums never go back; a gauge ends with its
owner.
"""

from __future__ import annotations

import asyncio
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias, TypeVar

_T = TypeVar("_T")
_C = TypeVar("_C")  # a cell; only two of one kind are added
Sample: TypeAlias = tuple[str, dict[str, str], float]
"""The suffix of the metric's name, labels, value: as prometheus_client wants samples."""

LATENCY_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)
SIZE_BOUNDS = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
"""In bytes; the last one is the largest entry."""
SCAN_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""In entries."""


class Cell(Protocol):
    """One metric's numbers."""

    def add(self: _C, other: _C) -> None:
        """Add what `other` has counted."""
        ...

    def keep(self: _C, other: _C) -> None:
        """Add what must not be lost of `other`, which ends: what only grows."""
        ...

    def samples(self) -> Iterator[Sample]:
        """Return the samples that Prometheus is shown."""
        ...


class Histogram:
    """Counts of the values that were at most each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Number of values that were observed."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, in the unit of the bounds, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: Histogram) -> None:
        """Add the counts and the sum of a histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    keep = add

    def samples(self) -> Iterator[Sample]:
        """Yield cumulative buckets, as Prometheus has them, with `+Inf`; then count and sum."""
        below = 0
        for bound, count in zip((*map(_written, self.bounds), "+Inf"), list(self.counts), strict=True):
            below += count
            yield "_bucket", {"le": bound}, below
        yield "_count", {}, below
        yield "_sum", {}, self.total


def _written(bound: float) -> str:
    return str(float(bound))


class Timing:
    """Latencies in milliseconds: of operations that succeeded and, apart from them, of those that failed."""

    __slots__ = ("done", "failed")

    def __init__(self) -> None:
        self.done = Histogram(LATENCY_BOUNDS_MS)
        self.failed = Histogram(LATENCY_BOUNDS_MS)

    def record(self, seconds: float, success: bool = True, times: int = 1) -> None:
        """Count `times` operations that took `seconds` each."""
        histogram, milliseconds = self.done if success else self.failed, seconds * 1000
        # `observe`, written out: this is what is called most.
        histogram.counts[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += times
        histogram.total += milliseconds * times

    def measured(self) -> Measured:
        """Return a block whose time is recorded: as a failure where it raises, not at all where it is cancelled."""
        return Measured(self)

    def add(self, other: Timing) -> None:
        """Add the latencies of `other`, successes and failures apart."""
        self.done.add(other.done)
        self.failed.add(other.failed)

    keep = add

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of both histograms, in milliseconds, with the label `success`."""
        for success, histogram in (("true", self.done), ("false", self.failed)):
            for suffix, labels, value in histogram.samples():
                yield suffix, {"success": success, **labels}, value


class Measured:
    """A block that is timed by the event loop's clock."""

    __slots__ = ("_began", "_timing")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self._timing.record(asyncio.get_running_loop().time() - self._began, kind is None)


class Count:
    """A number that grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, by: int = 1) -> None:
        """Add `by`, which is 0 or more."""
        self.value += by

    def add(self, other: Count) -> None:
        """Add the value of `other`."""
        self.value += other.value

    keep = add

    def samples(self) -> Iterator[Sample]:
        """Yield one sample, with the suffix `_total`."""
        yield "_total", {}, self.value


class Counts:
    """Numbers that grow, by a label's values, of which there are few."""

    __slots__ = ("label", "values")

    def __init__(self, label: str) -> None:
        self.label = label
        self.values: Counter[str] = Counter()

    def add(self, other: Counts) -> None:
        """Add the values of `other`, label value by label value."""
        self.values.update(dict(other.values))

    keep = add

    def samples(self) -> Iterator[Sample]:
        """Yield one sample for each value of the label, sorted."""
        for value, count in sorted(dict(self.values).items()):
            yield "_total", {self.label: value}, count


class Timings:
    """Latencies by a label's values, of which there are few."""

    __slots__ = ("label", "values")

    def __init__(self, label: str) -> None:
        self.label = label
        self.values: dict[str, Timing] = {}

    def of(self, value: str) -> Timing:
        """Return the latencies under one value of the label."""
        timing = self.values.get(value)
        if timing is None:
            timing = self.values[value] = Timing()
        return timing

    def add(self, other: Timings) -> None:
        """Add the latencies of `other`, label value by label value."""
        for value, timing in dict(other.values).items():
            self.of(value).add(timing)

    keep = add

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of each value's latencies, in milliseconds, sorted by the label's value."""
        for value, timing in sorted(dict(self.values).items()):
            for suffix, labels, number in timing.samples():
                yield suffix, {self.label: value, **labels}, number


class Gauge:
    """An amount as it is now. It is not counted: its owners are asked when metrics are collected."""

    __slots__ = ("_added", "_followed")

    def __init__(self) -> None:
        self._added = 0.0
        self._followed: tuple[_Followed, ...] = ()

    def follow(self, owner: _T, ask: Callable[[_T], float]) -> Callable[[], None]:
        """Have `ask(owner)` called, from any thread, for a part of the value, as long as the owner lives.

        Returns a function that ends that earlier. Nothing here keeps the owner alive.
        """
        reference = weakref.ref(owner)

        def part() -> float:
            living = reference()
            return 0.0 if living is None else ask(living)

        followed = _Followed(reference, part)
        self._followed = (*(one for one in self._followed if one.owner() is not None), followed)

        def forget() -> None:
            self._followed = tuple(one for one in self._followed if one is not followed)

        return forget

    @property
    def value(self) -> float:
        """The sum over all owners that live, asked now. May be called from any thread."""
        return self._added + sum(one.part() for one in self._followed)

    def add(self, other: Gauge) -> None:
        """Add what the owners of `other` report now; later changes of theirs do not show."""
        self._added += other.value

    def keep(self, other: Gauge) -> None:
        """Keep nothing: an owner that has ended has nothing any more."""

    def samples(self) -> Iterator[Sample]:
        """Yield one sample: the sum over all owners, asked now."""
        yield "", {}, self.value


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    owner: Callable[[], object]
    part: Callable[[], float]
