"""`DLSNRange`: the positions from one DLSN to before another."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import CallerError


@dataclass(frozen=True, slots=True)
class DLSNRange:
    """Positions from `start` to before `end`, as `Log.record_count` and Spark's batches take them."""

    start: DLSN
    end: DLSN

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise CallerError(f"a range cannot end at {self.end}, before its start {self.start}")

    @classmethod
    def parse(cls, text: str) -> DLSNRange:
        """The range written as `1:0:0..3:0:0`. Raises CallerError."""
        start, dots, end = text.partition("..") if isinstance(text, str) else ("", "", "")
        if not dots:
            raise CallerError(f"{text!r} is not a range", advice="A range is written start..end, as 1:0:0..3:0:0")
        return cls(DLSN.parse(start), DLSN.parse(end))

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"

    def __contains__(self, dlsn: object) -> bool:
        return isinstance(dlsn, DLSN) and self.start <= dlsn < self.end

    @property
    def empty(self) -> bool:
        return self.start == self.end

    def _repr_html_(self) -> str:
        from dlspark.core.display.objects import range_html

        return range_html(self)
