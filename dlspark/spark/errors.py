"""Leaves of the error tree that only the Spark connector raises; picklable, as Spark carries them between processes.

CallerError
├── OptionError             an option is unknown, malformed, contradicts another, or belongs to another kind of query
│   └── OffsetError         an offset (option or checkpoint) cannot be read, or speaks of other logs
└── SchemaError             the columns asked for, or written, are not the connector's
NotAppliedError
└── DataLossError           records that the query still needs are gone; nothing was read (`failOnDataLoss`)
"""

from __future__ import annotations

from metadata.errors import CallerError, NotAppliedError


class OptionError(CallerError):
    """An option is unknown, malformed, contradicts another, or belongs to another kind of query; nothing was done."""


class OffsetError(OptionError):
    """An offset in an option or a checkpoint is malformed or does not fit the logs that are read; nothing was done."""


class SchemaError(CallerError):
    """The columns asked for or written are not those of the connector; nothing was done."""


class DataLossError(NotAppliedError):
    """Records that the query still needs are gone (truncated, or the log deleted); nothing was read (I8)."""
