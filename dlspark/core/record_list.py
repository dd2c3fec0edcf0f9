"""`Records`: what a synchronous reader returns: a list of records that a notebook shows as a table."""

from __future__ import annotations

from dlspark.core.records import LogRecord


class Records(list[LogRecord]):
    """A list like any other, with a table for notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from dlspark.core.display.objects import records_html

        return records_html(self)
