"""What keeps a batch from being published: rows out of order, a sealed log, ledgers that were swept. Pure checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dlspark.spark.sink.errors import (
    BatchRefusedError,
    BatchSweptError,
    TransactionOrderError,
)
from dlspark.spark.sink.messages import JobId, StagedSegment
from dlspark.spark.sink.schema import MAX_TXID


def order_segments(log: str, segments: Sequence[StagedSegment]) -> list[StagedSegment]:
    """`segments` of one log in the order in which they continue it. Raises TransactionOrderError if two overlap."""
    ordered = sorted(segments, key=lambda s: (s.first_txid, s.last_txid, s.partition, s.ordinal))
    for before, after in pairwise(ordered):
        if after.first_txid < before.last_txid:
            raise TransactionOrderError(
                f"Transaction ids of two tasks overlap: task {before.partition} wrote {before.first_txid} to "
                f"{before.last_txid}, task {after.partition} wrote {after.first_txid} to {after.last_txid}; "
                "nothing of the batch is visible",
                log=log,
                advice='Write df.repartitionByRange("transaction_id").sortWithinPartitions("transaction_id"), '
                "or one task: df.coalesce(1) of sorted rows",
            )
    return ordered


def check_above(log: str, highest_txid: int, first: StagedSegment) -> None:
    """Raise unless the batch's first id may follow the log's highest (equal is fine)."""
    if highest_txid == MAX_TXID:
        raise sealed(log)
    if first.first_txid < highest_txid:
        raise TransactionOrderError(
            f"The batch begins at transaction id {first.first_txid}, below the log's highest, {highest_txid}; "
            "nothing of the batch is visible",
            log=log,
            advice="Write rows in the order of their ids, drop those below the log's highest, "
            "or leave transaction_id out: the batch then carries its own timestamp",
        )


def sealed(log: str) -> BatchRefusedError:
    """The error for a log that takes no more records."""
    return BatchRefusedError(
        "The log has been sealed by an end-of-stream record and takes no more records; nothing of the batch is visible",
        log=log,
        advice="Write to another log",
    )


def swept(job: JobId) -> BatchSweptError:
    """The error for a job whose ledgers, or whose sink, a sweep has taken for abandoned."""
    return BatchSweptError(
        f"What attempt {job.attempt} had staged for {job} was swept as abandoned; nothing of the batch is visible",
        advice="Run the write again",
    )
