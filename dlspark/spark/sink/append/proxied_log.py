"""A log that a write proxy owns, and into which this process appends batches of sinks: each once, whole (I20).

A batch is one request of an idempotent producer, whose name is the sink's id, and lies in one entry. The proxy's
answer, and nothing else, says that it is stored. This process does not own the log, so it cannot read what the log's
producers know (`owned_log`). In its place **the sink's mark names each batch before it is sent**:

| | conditional on | afterwards the mark |
|---|---|---|
| *name* | the mark as read or set last, which says everything or names one batch | names the batch: epoch and number |
| send | nothing; any proxy, any number of times | the same |
| *fold* | the mark as this process set or read it, and a success answered to that request | says everything |

Why no batch is written twice, and none is left out:

* Only what a mark named is ever sent, and a mark names one batch at a time. So all that the log may have is what the
  mark says, and perhaps the one batch that it names.
* The number of a request is given to one batch only. A process that finds a batch named, and has that batch, sends it
  under the same epoch and number; the log writes it once (I19). So drivers that run one batch at the same time, and a
  driver that was started again, get the same answer. Another number of records is refused by the log: it is another
  batch.
* A process that finds another batch named goes on in a new epoch, if its own batch is later: once a request of that is
  written, the log refuses what is still on its way. Whether the named batch is there stays unknown, and so the mark
  goes past it: it takes no rows any more, and a replay of it is refused. An earlier batch than the named one is
  refused.
* A driver that publishes segments, or becomes the log's owner, has the mark settled first. The log's owner reads
  whether the named batch is there; if not, it begins a later epoch before it moves the mark, so that the request is
  refused whenever it arrives. To a process that does not know that yet, ProducerFencedError says that its batch is not
  there, nor will be, unless the mark has moved. Then the batch is named anew, at the version of the mark, in a later
  epoch.
* ProducerForgottenError says that the log has forgotten the producer, and SequenceGapError that an older proxy has. A
  batch that was never sent is named anew then, above what was forgotten. One that may have been sent before is refused:
  nothing is known of it any more.
* A mark of another process that appends as the log's owner says that any later batch may be there. It is settled by the
  log's owner: this process waits for the lock, and asks the proxy to give the log up.
* Of two processes that move a mark one fails, and reads again. A process that was stopped and wakes up can neither move
  the mark nor have anything written but the batch that it had named, in the epoch of then: that is known, or refused.

The proxies of a log must be set alike (`server_producer_gaps_allowed`). A named batch that was left for half of
`producerExpirySeconds` is refused: an older proxy may have forgotten it, and would not say so.

Fault model: that of `owned_log`; and proxies die, hand the log over, answer late or not at all. What is not known after
`outageTimeout` is said as such, and the batch stays named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from dlspark.core.writing.write_kinds import highest_of
from dlspark.errors import (
    EndOfStreamError,
    InvalidRecordError,
    ProducerFencedError,
    ProducerForgottenError,
    RecordTooLongError,
    SequenceGapError,
    TransactionIdOutOfOrderError,
)
from dlspark.serving.protocol.operations import ProducerStamp, WriteReceipt, WriteRecords
from dlspark.spark.errors import BatchRefusedError, PublishUnknownError, ReplayDiffersError, TransactionOrderError
from dlspark.spark.sink.append.marks import HISTORY, AppendTools, KeptMark
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.inline_rows import records
from dlspark.spark.sink.messages import InlineRows, JobId
from dlspark.spark.sink.write_proxies import WriteProxies
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.distributedlog.sink_marks import NamedBatch
from metadata.foundation import fault_points
from metadata.foundation.errors import BadVersionError, DistributedLogError, InvariantViolation, NoNodeError
from metadata.foundation.plurals import counted
from storage_node.errors import ProtocolError

MAX_EPOCHS: Final = 4
"""Epochs in which one batch is named in one try."""
MAX_RAISES: Final = 20
"""Times that a batch is sent again because another writer took the log past its times meanwhile."""
READ_AGAIN_S: Final = 600.0
"""After so long without a batch the mark is read again, and a new epoch begun: the log may have forgotten the sink."""

_ADVICE: Final = (
    "Go on from the newest checkpoint; or start with an empty one, or with another txnAppId, after looking at the "
    "log's end"
)

Settle = Callable[[str, str], Awaitable[None]]


@dataclass(slots=True)
class _Sender:
    """A sink that may be sent for. `number`: the next request's, None where an epoch is to be begun first."""

    kept: KeptMark
    number: int | None = None
    unfolded: bool = False
    used_at: float = 0.0


class ProxiedLog:
    """One log, and the sinks whose batches go to its proxy. One call at a time; after any error `abandon` it."""

    def __init__(self, tools: AppendTools, proxies: WriteProxies, log: str, settle: Settle) -> None:
        """Keep what `open` was given."""
        self.log = log
        self._tools = tools
        self._proxies = proxies
        self._settle = settle
        self._sinks: dict[str, _Sender] = {}

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the log, as `AppendedLog.is_owner`: a proxy does."""
        return False

    @classmethod
    async def open(cls, tools: AppendTools, proxies: WriteProxies, log: str, settle: Settle) -> ProxiedLog:
        """Begin to append; the log is created where that is allowed.

        Args:
            tools: what appending works with.
            proxies: the write proxies of the namespace.
            log: its name.
            settle: makes a mark, by log and sink id, say everything that another process has set as the log's owner.

        Raises BatchRefusedError for a log that is missing, and may not be made.
        """
        await tools.logs.prepare(log)
        return cls(tools, proxies, log, settle)

    # ------------------------------------------------------------------ batches

    async def append(self, job: JobId, rows: InlineRows) -> CommitOutcome:
        """Append a batch, unless the log has it. Raises BatchRefusedError and its leaves with nothing visible, and what
        asking proxies and the metadata store raises."""
        try:
            return await self._append(job, rows)
        except NoNodeError:
            self._tools.logs.forget(self.log)  # it was deleted, and is to be made again
            raise

    async def _append(self, job: JobId, rows: InlineRows) -> CommitOutcome:
        sink = await self._sender(job.sink_id)
        known = await sink.kept.known(job, rows)
        sent = sink.kept.mark.sent
        # The mark does not say whether the log has the batch that it names. If so it has it with rows, and an empty
        # batch under the same number is another one: neither a replay nor new for certain (I20).
        if not rows.record_count and sent is not None and sent.batch == job.batch:
            raise self._may_differ_error(job, rows, sent)
        if known is not None:
            return known
        if sent is not None and sent.batch > job.batch:
            raise self._may_differ_error(job, rows, sent)
        found = sent is not None and sent.batch == job.batch
        if not found:
            # Before it is sent: a process that comes after this one, should it die now, looks for what the mark names.
            await self._name(sink, job.batch)
        fault_points.reach("sink.before-publish")
        try:
            receipt = await self._send(sink, job, rows, sent_before=found)
        except (EndOfStreamError, RequestDeniedError) as error:
            if not found:
                raise
            # That this request was refused says nothing of the one that another process has sent before.
            raise PublishUnknownError(
                f"{job} was sent to the log's proxy before, and is visible whole or not at all; now it was refused: "
                f"{error.message}",
                log=self.log,
                advice="Look at the log's end",
            ) from error
        fault_points.reach("sink.applied")
        sink.number = _named(sink).number + 1
        sink.kept.mark = sink.kept.mark.moved(job.batch, job.attempt, rows.record_count, HISTORY)
        sink.unfolded = True
        return CommitOutcome.COVERED if receipt.repeated else CommitOutcome.PUBLISHED

    def _may_differ_error(self, job: JobId, rows: InlineRows, sent: NamedBatch) -> ReplayDiffersError:
        """Return the error for a batch that is, or is not, to be written although a later one, or other rows of it, may
        be in the log."""
        return ReplayDiffersError(
            f"{job} has {counted(rows.record_count, 'row')}, and batch {sent.batch} was sent to the log's proxy before "
            "and may be in the log: this is another batch, or may be; nothing of it was published now",
            log=self.log,
            advice=_ADVICE,
        )

    # ------------------------------------------------------------------ marks

    async def _sender(self, sink_id: str) -> _Sender:
        now = asyncio.get_running_loop().time()
        found = self._sinks.get(sink_id)
        if found is None or now - found.used_at > READ_AGAIN_S:
            kept = await KeptMark.read(self._tools, self.log, sink_id)
            if kept.mark.appending_ms is not None and kept.mark.sent is None:
                await self._settle(self.log, sink_id)
                raise BadVersionError("the mark is read again: another process appended as the log's owner")
            self._sinks[sink_id] = found = _Sender(kept)
            await kept.sweep()
        found.used_at = now
        return found

    async def _name(self, sink: _Sender, batch: int) -> None:
        """Have the mark name a batch that no request was given to so far."""
        mark, number = sink.kept.mark, sink.number
        if mark.sent is not None:
            # A request may be on its way under the number of that batch, so no other batch may have it (I19).
            mark, number = mark.gone_past(mark.sent.batch), None
        if number is None:
            mark, number = replace(mark, epoch=mark.epoch + 1), 0
        await sink.kept.move(replace(mark, appending_ms=sink.kept.now_ms, sent=NamedBatch(number, batch)))
        sink.unfolded = False

    async def _name_anew(self, sink: _Sender, batch: int, epoch: int) -> None:
        """Have the mark name a batch in an epoch behind `epoch`: the log will never take it in the one of before.

        Raises BadVersionError where the mark has moved: then it says what became of the batch.
        """
        mark = sink.kept.mark
        newer = max(mark.epoch, epoch) + 1
        await sink.kept.move(replace(mark, appending_ms=sink.kept.now_ms, epoch=newer, sent=NamedBatch(0, batch)))

    def fold_is_due(self, sink_id: str) -> bool:
        """Return whether the mark is to be moved: as soon as no batch waits for it. It lacks one at most."""
        found = self._sinks.get(sink_id)
        return found is not None and found.unfolded

    async def fold(self, sink_id: str) -> None:
        """Have the mark say that the log has the batch that it named."""
        sink = self._sinks[sink_id]
        await sink.kept.move(sink.kept.mark)
        sink.unfolded = False

    # ------------------------------------------------------------------ requests

    async def _send(self, sink: _Sender, job: JobId, rows: InlineRows, *, sent_before: bool) -> WriteReceipt:
        for _ in range(MAX_EPOCHS):
            sink.kept.check_remembered()
            mark = sink.kept.mark
            try:
                return await self._ask(job, rows, ProducerStamp(job.sink_id, mark.epoch, _named(sink).number))
            except ProducerFencedError as error:
                await self._name_anew(sink, job.batch, error.epoch if error.epoch is not None else mark.epoch)
            except (ProducerForgottenError, SequenceGapError) as error:
                if sent_before:  # nothing is known of it, which is not that nothing was written (I20)
                    raise sink.kept.forgotten_error() from error
                forgotten = error.epoch if isinstance(error, ProducerForgottenError) else None
                await self._name_anew(sink, job.batch, forgotten if forgotten is not None else mark.epoch)
            sent_before = False  # under the name that it has now
        raise BadVersionError(f"{job} was named in {MAX_EPOCHS} epochs, and each had ended; it is tried again later")

    async def _ask(self, job: JobId, rows: InlineRows, stamp: ProducerStamp) -> WriteReceipt:
        """Send a request until its ids, where they are times of rows, are not below the log's highest.

        A request that was refused is not in the log. So the next one may have other ids: it is the same batch under the
        same number, and whichever of them comes first is written, once.
        """
        lowest = -1
        for _ in range(MAX_RAISES if rows.raisable else 0):
            try:
                return await self._ask_once(job, rows, stamp, lowest)
            except TransactionOrderError as error:
                highest = highest_of(error.message)
                if highest is None or highest <= lowest:
                    raise
                lowest = highest
        return await self._ask_once(job, rows, stamp, lowest)

    async def _ask_once(self, job: JobId, rows: InlineRows, stamp: ProducerStamp, lowest_txid: int) -> WriteReceipt:
        given = records(rows, lowest_txid)
        # The batch's own timestamp may be below the log's last id by now: then the proxy's clock is as good (I4).
        ids = tuple(txid for txid, _ in given) if rows.stamp_ms is None else None
        payloads = tuple(payload for _, payload in given)
        try:
            answer = await self._proxies.ask(WriteRecords(self.log, payloads, stamp=stamp, transaction_ids=ids))
        except TransactionIdOutOfOrderError as error:
            raise TransactionOrderError(
                f"The batch begins at transaction id {rows.first_txid}, below the log's highest; nothing of the batch "
                f"is visible ({error.message})",
                log=self.log,
                advice="Write rows in the order of their ids, drop those below the log's highest, or leave "
                "transaction_id out: the batch then carries the time at which the proxy writes it",
            ) from error
        except RecordTooLongError as error:
            raise BatchRefusedError(
                f"{job} is too large for one request to a proxy: {error.message}; nothing of the batch is visible",
                log=self.log,
                advice="Make batches smaller, for example with maxOffsetsPerTrigger of the source; or write without "
                "the option proxy, with commitMode=segments",
            ) from error
        except InvalidRecordError as error:
            raise ReplayDiffersError(
                f"{job} was refused by the log's proxy: {error.message}; nothing of it was published now",
                log=self.log,
                advice=_ADVICE,
            ) from error
        if not isinstance(answer, WriteReceipt):
            raise ProtocolError(f"a proxy answered a batch with {type(answer).__name__}")
        if answer.repeated and answer.dlsn is None:
            # The log has later requests of the epoch: another process has named them, so the mark says more by now.
            raise BadVersionError(f"the log has later batches than {job} of its sink; its mark is read again")
        return answer

    # ------------------------------------------------------------------ the end

    async def wanted(self) -> None:
        """Wait for ever: nothing is held from other writers."""
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Have the marks say what was written. Never raises: what is not done is done with the next batch."""
        for sink_id, sink in self._sinks.items():
            if sink.unfolded:
                with suppress(DistributedLogError):
                    await self.fold(sink_id)
        fault_points.reach("sink.left")
        self._sinks = {}

    async def abandon(self) -> None:
        """Forget what was known; the next batch reads it again. Never raises."""
        self._sinks = {}


def _named(sink: _Sender) -> NamedBatch:
    """Return what the mark names."""
    sent = sink.kept.mark.sent
    if sent is None:
        raise InvariantViolation("a batch is sent that no mark names")
    return sent
