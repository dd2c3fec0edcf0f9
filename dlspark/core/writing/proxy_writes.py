"""Appending on behalf of others, as a proxy does: many records at a time, in the order in which requests came, without
a future for each record, and without waiting.

What is written, and when it is refused, is as with `AsyncLogWriter`'s own methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import ProducerRequest
from dlspark.core.writing.acknowledgements import Appended, OutcomeCallback, RunEnded
from dlspark.core.writing.conditional_appends import Condition
from dlspark.core.writing.record_runs import NO_RECORDS, Columns, run_of
from dlspark.core.writing.write_kinds import UNNUMBERED, RecordWrite, RunWrite
from dlspark.core.writing.writer import AsyncLogWriter
from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer


def write_run(
    writer: AsyncLogWriter, txids: Sequence[int] | None, payloads: Sequence[Buffer], ended: RunEnded, *, bulk: bool
) -> None:
    """Write each record as `write` does, or with `bulk` all as `write_bulk`. Not sent before the writer is asked to.

    `txids`: None for the time at which the records get their place, or the log's highest id where that is above it.

    In place of a future for each record, `ended` is called for those that lie in one entry, in the turn of the loop in
    which their outcome is known. Never raises.
    """
    if bulk:
        ended = writer._measured_run(ended, len(payloads))
    try:
        run = run_of(txids, payloads)
    except CallerError:
        run = NO_RECORDS
    if not run or not writer._settings.durable_writes or not writer._issuer.takes_all(run):
        _write_each(writer, (txids, payloads), ended, bulk=bulk)
        return
    write = RunWrite(run, ended, bulk=bulk)
    write.accepted = writer._accept(write)


def _write_each(writer: AsyncLogWriter, columns: Columns, ended: RunEnded, *, bulk: bool) -> None:
    """Do the same one by one: some are refused, or none is waited for."""
    txids, payloads = columns
    if txids is None:
        txids = [UNNUMBERED] * len(payloads)
    writes = [
        RecordWrite(txid, payload, writer._loop.create_future(), may_transmit=not bulk)
        for txid, payload in zip(txids, payloads, strict=True)
    ]
    writer._accept_each(writes, cancel_behind=bulk)
    for number, future in enumerate(writer._promised([write.future for write in writes])):
        future.add_done_callback(partial(_ended_alone, ended, number))


def append_run(
    writer: AsyncLogWriter,
    txids: Sequence[int] | None,
    payloads: Sequence[Buffer],
    ended: RunEnded,
    *,
    producer: ProducerRequest | None = None,
    condition: Condition | None = None,
) -> None:
    """Append as `AsyncLogWriter.append`, without sending it; `ended` and `txids` as in `write_run`. Never raises."""
    count = len(payloads)
    outcome = OutcomeCallback(partial(writer._measured_run(ended, count), 0, count))
    writer._append((txids, payloads), outcome, producer, condition)


def append_epoch(
    writer: AsyncLogWriter, producer: str, epoch: int | None = None
) -> tuple[int, asyncio.Future[Appended]]:
    """Begin an epoch as `begin_epoch` does, in line with what was appended before, and without sending it. Return the
    epoch, and its answer.

    Where no `epoch` was given and the answer is a repetition, another call has begun this one: try again. Raises
    CallerError for a writer that was opened without producers.
    """
    return writer._append_epoch(producer, epoch)


def append_token(writer: AsyncLogWriter, token: bytes, expected: bytes | None = None) -> asyncio.Future[Appended]:
    """Set the token as `set_fencing_token` does, in line with what was appended before, and without sending it. Never
    raises."""
    return writer._append_token(token, expected)


def _ended_alone(ended: RunEnded, number: int, future: asyncio.Future[DLSN]) -> None:
    error = future.exception()
    ended(number, 1, Appended(future.result(), 1) if error is None else error)
