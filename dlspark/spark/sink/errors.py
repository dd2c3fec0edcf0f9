"""Errors that only the Spark sink raises; the connector's other leaves are in `dlspark.spark.errors`.

CallerError
└── BatchRefusedError          rows or logs that cannot be published; nothing of the batch is visible
    ├── TransactionOrderError  transaction ids decrease, overlap, or fall below the log's highest
    └── ReplayDiffersError     another batch was published under this number; skipping this one would lose rows
NotAppliedError
├── LogBusyError               another writer holds a log of the batch; nothing of the batch is visible
├── BatchSweptError            what the tasks had staged was swept meanwhile; nothing of the batch is visible
└── PublishContendedError      others were faster every time; nothing of the batch is visible
OutcomeUnknownError
└── PublishUnknownError        the metadata store did not say; a replay of the batch decides by the mark
"""

from __future__ import annotations

from metadata.foundation.errors import CallerError, NotAppliedError, OutcomeUnknownError


class BatchRefusedError(CallerError):
    """The batch cannot be published; nothing of it is visible."""


class TransactionOrderError(BatchRefusedError):
    """Transaction ids decrease in a task, overlap between tasks, or fall below the log's highest."""


class ReplayDiffersError(BatchRefusedError):
    """Another batch was published under this number: skipping this one would lose rows, writing it would copy some."""


class LogBusyError(NotAppliedError):
    """Another writer holds a log of the batch; nothing of the batch is visible."""


class BatchSweptError(NotAppliedError):
    """What the tasks had staged was swept meanwhile; nothing of the batch is visible."""


class PublishContendedError(NotAppliedError):
    """Other writers changed the logs between reading and publishing, every time; nothing of the batch is visible."""


class PublishUnknownError(OutcomeUnknownError):
    """The metadata store did not answer in time: the batch is visible whole or not at all, and a replay decides."""
