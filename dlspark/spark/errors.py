"""Leaves of the error tree that only the Spark connector raises; picklable, as Spark carries them between processes.

CallerError
├── OptionError                an option is unknown, malformed, contradicts another, or is of another kind of query
│   └── OffsetError            an offset (option or checkpoint) cannot be read, or names other logs
├── OutdatedPlanError          a frame was planned before a log of it was truncated, deleted or made again
├── SchemaError                the columns asked for, or written, are not the connector's
└── BatchRefusedError          rows or logs that cannot be published; nothing of the batch is visible
    ├── TransactionOrderError  transaction ids decrease, overlap, or fall below the log's highest
    └── ReplayDiffersError     another batch was published under this number; skipping this one would lose rows
NotAppliedError
├── DataLossError              records that the query still needs are gone; nothing was read (`failOnDataLoss`)
│   ├── TruncatedDataLossError       the log begins behind the query's position
│   ├── DeletedDataLossError         the log does not exist any more
│   ├── RecreatedDataLossError       the log of this name is another one, created later
│   └── UnreachableEndDataLossError  the log ends before the end of the batch, or of an AvailableNow query
├── LogBusyError               another writer holds a log of the batch; nothing of the batch is visible
├── AppenderStartError         the process that appends to open segments could not be started; nothing is visible
├── BatchSweptError            what the tasks had staged was swept meanwhile; nothing of the batch is visible
└── PublishContendedError      others were faster every time; nothing of the batch is visible
OutcomeUnknownError
└── PublishUnknownError        the metadata store did not say; a replay of the batch decides by the mark
"""

from __future__ import annotations

from metadata.foundation.errors import CallerError, NotAppliedError, OutcomeUnknownError


class OptionError(CallerError):
    """An option is unknown, malformed, contradicts another, or belongs to another kind of query; nothing was done."""


class OffsetError(OptionError):
    """An offset in an option or a checkpoint is malformed or does not fit the logs that are read; nothing was done."""


class OutdatedPlanError(CallerError):
    """A frame's plan, which Spark has kept, has records in it that are not in the log any more; nothing was read."""


class SchemaError(CallerError):
    """The columns asked for or written are not those of the connector; nothing was done."""


class DataLossError(NotAppliedError):
    """Records that the query still needs are gone (truncated, or the log deleted); nothing was read (I8)."""


class TruncatedDataLossError(DataLossError):
    """The log was truncated, or its segments deleted, beyond the query's position."""


class DeletedDataLossError(DataLossError):
    """The log that the query has a position in does not exist any more."""


class RecreatedDataLossError(DataLossError):
    """The log was deleted and created again, or its whole cluster was: the query's position is one of the old log.

    Raised in any case, with failOnDataLoss=false as well, where the cluster is made anew while a query runs.
    """


class UnreachableEndDataLossError(DataLossError):
    """The log does not have the records up to the end that was fixed for the batch, or for an AvailableNow query."""


class BatchRefusedError(CallerError):
    """The batch cannot be published; nothing of it is visible."""


class TransactionOrderError(BatchRefusedError):
    """Transaction ids decrease in a task, overlap between tasks, or fall below the log's highest."""


class ReplayDiffersError(BatchRefusedError):
    """Another batch was published under this number: skipping this one would lose rows, writing it would copy some."""


class LogBusyError(NotAppliedError):
    """Another writer holds a log of the batch; nothing of the batch is visible."""


class AppenderStartError(NotAppliedError):
    """The process that appends batches to open segments could not be started; nothing of the batch is visible."""


class BatchSweptError(NotAppliedError):
    """The ledgers that the tasks had staged were swept meanwhile; nothing of the batch is visible."""


class PublishContendedError(NotAppliedError):
    """Other writers changed the logs between reading and publishing, every time; nothing of the batch is visible."""


class PublishUnknownError(OutcomeUnknownError):
    """The metadata store did not answer in time: the batch is visible whole or not at all, and a replay decides."""
