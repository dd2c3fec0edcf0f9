"""`Records`: what a synchronous reader returns: a list of records that a notebook shows as a table."""

from __future__ import annotations

from typing import SupportsIndex, overload

from dlspark.core.codec.records import LogRecord


class Records(list[LogRecord]):
    """A list like any other, with a table for notebooks."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> LogRecord: ...

    @overload
    def __getitem__(self, index: slice, /) -> Records: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> LogRecord | Records:
        if isinstance(index, slice):
            return Records(super().__getitem__(index))
        return super().__getitem__(index)

    def _repr_html_(self) -> str:
        from dlspark.core.display.objects import records_html

        return records_html(self)
