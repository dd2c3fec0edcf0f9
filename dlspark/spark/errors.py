"""Leaves of the error tree that only the Spark connector raises; picklable, as Spark carries them between processes.

CallerError
├── OptionError             an option is unknown, malformed, contradicts another, or belongs to another kind of query
│   └── OffsetError         an offset (option or checkpoint) cannot be read, or names other logs
└── SchemaError             the columns asked for, or written, are not the connector's
NotAppliedError
└── DataLossError           records that the query still needs are gone; nothing was read (`failOnDataLoss`)
    ├── TruncatedDataLossError       the log begins behind the query's position
    ├── DeletedDataLossError         the log does not exist any more
    ├── RecreatedDataLossError       the log of this name is another one, created later
    └── UnreachableEndDataLossError  the log ends before the end of the batch, or of an AvailableNow query
"""

from __future__ import annotations

from metadata.foundation.errors import CallerError, NotAppliedError


class OptionError(CallerError):
    """An option is unknown, malformed, contradicts another, or belongs to another kind of query; nothing was done."""


class OffsetError(OptionError):
    """An offset in an option or a checkpoint is malformed or does not fit the logs that are read; nothing was done."""


class SchemaError(CallerError):
    """The columns asked for or written are not those of the connector; nothing was done."""


class DataLossError(NotAppliedError):
    """Records that the query still needs are gone (truncated, or the log deleted); nothing was read (I8)."""


class TruncatedDataLossError(DataLossError):
    """The log was truncated, or its segments deleted, beyond the query's position."""


class DeletedDataLossError(DataLossError):
    """The log that the query has a position in does not exist any more."""


class RecreatedDataLossError(DataLossError):
    """The log was deleted and created again: the query's position is one of the old log."""


class UnreachableEndDataLossError(DataLossError):
    """The log does not have the records up to the end that was fixed for the batch, or for an AvailableNow query."""
