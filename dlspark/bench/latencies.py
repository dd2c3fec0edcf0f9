"""`Latencies`: how long records took, counted in buckets whose width is in proportion to the time (HDR).

Its memory does not depend on the number of records: 128 buckets for each doubling, so a percentile is at most 0.8 % too
high, and never too low. Counting is by whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

_SUB_BITS: Final = 7
_SUB: Final = 1 << _SUB_BITS
_TOP_BITS: Final = 40
"""Times are counted up to 2^40 us, 12 days; longer ones as that."""
_BUCKETS: Final = (_TOP_BITS - _SUB_BITS + 1) * _SUB
PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


def _bucket_of(micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    # frexp: exponents of whole numbers below 2^53, exactly.
    exponents = np.maximum(np.frexp(micros.astype(np.float64))[1] - _SUB_BITS - 1, 0).astype(np.int64)
    return np.asarray((exponents << _SUB_BITS) + (micros >> exponents), np.int64)


def _highest_in(bucket: int) -> int:
    """Return the longest time that is counted in a bucket, microseconds."""
    exponent = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (exponent << _SUB_BITS) + 1) << exponent) - 1


class Latencies:
    """Which part of the records took how long?"""

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, np.int64)
        self.max_us = 0

    @property
    def count(self) -> int:
        """How many records were counted."""
        return int(self._counts.sum())

    def add(self, nanos: npt.NDArray[np.int64]) -> None:
        """Count records that took so long, nanoseconds; below 0 (clocks of processors differ by little) as 0."""
        if not len(nanos):
            return
        micros = np.clip(nanos // 1000, 0, (1 << _TOP_BITS) - 1)
        self.max_us = max(self.max_us, int(micros.max()))
        self._counts += np.bincount(_bucket_of(micros), minlength=_BUCKETS)

    def percentile_us(self, share: float) -> int:
        """Return how long this share of the records took at most, microseconds; 0 where none was counted."""
        total = self.count
        if not total:
            return 0
        rank = max(1, ceil(share * total))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_highest_in(bucket), self.max_us)

    def as_ms(self) -> dict[str, float]:
        """Return the usual percentiles, and the maximum, in milliseconds."""
        found = {name: self.percentile_us(share) / 1e3 for name, share in PERCENTILES.items()}
        return {**found, "max": self.max_us / 1e3}
