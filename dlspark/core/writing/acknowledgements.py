"""Entries on their way to storage nodes: which records they hold, how their outcome reaches these records' futures, and
when an acknowledgement is believed.

`SentEntry` and `SentBatch` know the futures. `LateAcknowledgements` stands between them and the storage nodes' answers:
it believes an acknowledgement that comes late only once it is known that the log has no other owner.

A process may stand still (SIGSTOP, a suspended machine) while answers of storage nodes wait in its sockets. When it
goes on, its session may have expired, and another process may own the log. The answers are true, for the records are
in the log. But this process would take itself for the owner after the other owner's first acknowledgement. So an answer
is late if it comes longer after its entry than a session lives without its owner. A late answer is held back, with all
that follow, until the ledger's metadata was read. As long as they say OPEN no other client has recovered the segment,
and no other owner has a segment to write to (I5, I7). If they say anything else, or cannot be read, the records'
outcome is unknown.

This needs no timer and costs a look at the clock for each entry and answer. The clock is `Clock.elapsed_s`, not the
event loop's, which stops while the machine is suspended: by that clock every answer that was received before
would be in time. A pause that stops every clock of the machine is not noticed: a virtual machine that its host has
paused, or taken back to a snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import EncodedEntry
from dlspark.core.metrics.meter import Moments
from dlspark.errors import WriterDeposedError
from metadata.bookkeeper.ledger_metadata import LedgerState
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.retry import repeat
from storage_node.edge import Clock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """One acknowledged entry of a batch: its first record's DLSN (the k-th record has slot + k) and how many follow."""

    dlsn: DLSN
    record_count: int
    first_txid: int
    last_txid: int


@dataclass(slots=True)
class SentBatch:
    """A batch of which some entries wait for acknowledgement. Its future ends with the last of them, or the first
    failure."""

    future: asyncio.Future[tuple[WrittenEntry, ...]]
    waiting: int = 0
    written: list[WrittenEntry] = field(default_factory=list)

    @property
    def is_sent_in_part(self) -> bool:
        """True while its newest entry is being sent, if others were before it."""
        return self.waiting > 1 or bool(self.written)

    def acknowledged(self, entry: WrittenEntry) -> None:
        """Note one entry as stored; with the last of them the batch's future gets all, in order."""
        self.written.append(entry)
        self.waiting -= 1
        if not self.waiting and not self.future.done():
            self.future.set_result(tuple(self.written))


class Appended(NamedTuple):
    """The answer to an append that is stored: where its first record is, and how many lie there side by side.

    `first` is None for a producer's request that was written long ago: its position is forgotten.
    """

    first: DLSN | None
    records: int
    repeated: bool = False
    """True if it was written before; nothing was written now."""


class Group(NamedTuple):
    """Records of an entry that are answered together: so many from `slot` on."""

    slot: int
    records: int


class Waiting(Protocol):
    """One that waits for the outcome of records: a future, an `OutcomeCallback`, a `RequestOutcome`."""

    def done(self) -> bool:
        """Return whether it has its outcome, or wants none."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Note that the records are stored."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Note that they are not, or perhaps not."""
        ...


class Nobody:
    """Waits for nothing: in the place of a record's future where the outcome of another one says all."""

    __slots__ = ()

    def done(self) -> bool:
        """Return True: it wants no outcome."""
        return True

    def set_result(self, result: Any, /) -> None:
        """Drop it: nothing waits."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Drop it: nothing waits."""


NOBODY: Final = Nobody()


class OutcomeCallback:
    """Calls a function with the outcome of records, in the turn of the loop in which that is known.

    A future would have it called a turn later, behind records that were acknowledged after these (I4).
    """

    __slots__ = ("_done", "_ended")

    def __init__(self, ended: Callable[[Appended | BaseException], None]) -> None:
        """Have `ended` called once. What it raises is logged: other records' outcomes must not be lost with it."""
        self._ended = ended
        self._done = False

    def done(self) -> bool:
        """Return whether it was called."""
        return self._done

    def set_result(self, result: Appended, /) -> None:
        """Note that the records are stored."""
        self._end(result)

    def set_exception(self, exception: BaseException, /) -> None:
        """Note that they are not, or perhaps not."""
        self._end(exception)

    def _end(self, outcome: Appended | BaseException) -> None:
        self._done = True
        try:
            self._ended(outcome)
        except Exception:
            _log.exception("the outcome of a write was not taken")


RunEnded: TypeAlias = "Callable[[int, int, Appended | BaseException], None]"
"""Called for records of a run that lie in one entry: the number of the first of them, how many they are, and their
outcome."""


class RequestOutcome:
    """The outcome of a request that may come again while it is under way: all its copies have it, at the same time.

    A future would tell them a turn of the loop later, behind records that were acknowledged after it (I4).
    """

    __slots__ = ("_done", "_ended", "_futures")

    def __init__(self, ended: Callable[[bool], None]) -> None:
        """Have `ended` called first, with whether the request is stored."""
        self._ended = ended
        self._done = False
        self._futures: list[tuple[Waiting, bool]] = []

    def attach(self, future: Waiting, *, repeated: bool) -> None:
        """Give the outcome to `future`, too: the first one's, or that of a copy."""
        self._futures.append((future, repeated))

    def done(self) -> bool:
        """Return whether it has its outcome."""
        return self._done

    def set_result(self, result: Appended, /) -> None:
        """Note that the request is stored."""
        self._done = True
        self._ended(True)
        for future, repeated in self._futures:
            if not future.done():
                future.set_result(result._replace(repeated=True) if repeated else result)

    def set_exception(self, exception: BaseException, /) -> None:
        """Note that the request was not stored, or perhaps not."""
        self._done = True
        self._ended(False)
        for future, _ in self._futures:
            if not future.done():
                future.set_exception(exception)


@dataclass(slots=True)
class SentEntry:
    """One entry under way. `futures` are its records' in slot order, or its groups'; a batch has one for all of its
    entries."""

    entry_id: int
    encoded: EncodedEntry
    futures: list[Waiting]
    groups: list[Group]
    batch: SentBatch | None
    has_user_data: bool
    highest_txid: int
    """The highest transaction id of all user records up to this entry's."""
    moments: Moments

    @property
    def records(self) -> int:
        """How many records have a caller that waits for them: none of a control record."""
        return len(self.futures) if self.batch is None and not self.groups else self.encoded.user_count

    def acknowledged(self, lssn: int) -> None:
        """Give each record's future its DLSN, and each group's what it needs to know them."""
        if self.groups:
            for (slot, count), future in zip(self.groups, self.futures, strict=True):
                if not future.done():
                    future.set_result(Appended(DLSN(lssn, self.entry_id, slot), count))
            return
        for slot, future in enumerate(self.futures):
            if not future.done():
                future.set_result(DLSN(lssn, self.entry_id, slot))

    def batch_acknowledged(self, lssn: int) -> None:
        """Note in the batch, if there is one, that this entry of it is stored."""
        if self.batch is not None:
            encoded, dlsn = self.encoded, DLSN(lssn, self.entry_id, 0)
            self.batch.acknowledged(WrittenEntry(dlsn, encoded.record_count, encoded.first_txid, encoded.last_txid))


def fail_records(futures: Sequence[Waiting], batch: SentBatch | None, error: Exception) -> None:
    """Give `error` to every future that has not ended yet."""
    for future in futures:
        if not future.done():
            future.set_exception(error)
    if batch is not None and not batch.future.done():
        batch.future.set_exception(error)


# ------------------------------------------------------------------ late ones

Answer: TypeAlias = "asyncio.Future[int]"

SESSION_SHARE = 1 / 3
"""An answer is late after this part of the session timeout. A client is silent for a third of it at most, so a session
outlives the moment in which its owner stops by two thirds."""


class LateAcknowledgements:
    """The answers to one ledger's entries, in their order."""

    def __init__(
        self,
        ledgers: LedgerStore,
        ledger_id: int,
        session_timeout_s: float,
        clock: Clock,
        counters: Counter[str],
    ) -> None:
        self._ledgers = ledgers
        self.ledger_id = ledger_id
        """The ledger may be replaced by another one until the first answer."""
        self._limit_s = session_timeout_s * SESSION_SHARE
        self.moment = clock.elapsed_s
        """The time by the clock that `watch` takes."""
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[Callable[[Answer], None], Answer]] = deque()
        self._looking: asyncio.Task[None] | None = None

    def watch(self, added: Answer, sent_at: float, answered: Callable[[Answer], None]) -> None:
        """Have `answered` called with the outcome of an entry that is being sent: `added`, or an error instead.

        `sent_at`: a `moment` before it was sent; the process may have been paused since.
        """
        due = sent_at + self._limit_s

        def came(done: Answer) -> None:
            # Once one is held back, all behind it are: acknowledgements keep the order of the writes (I4).
            if not self._held and (self.moment() <= due or not _is_acknowledged(done)):
                answered(done)
                return
            self._held.append((answered, done))
            if self._looking is None:
                self._counters["late-answers-held"] += 1
                self._looking = self._loop.create_task(self._look())

        added.add_done_callback(came)

    async def _look(self) -> None:
        refusal: DistributedLogError | None = self._given_up_error()
        try:
            refusal = await self._fresh_look()
        except DistributedLogError as error:
            refusal = error
        finally:
            self._looking = None
            self._tell(refusal)

    async def _fresh_look(self) -> DistributedLogError | None:
        while True:
            began = self.moment()
            refusal = await repeat(self._ledgers.store, self._ownership)
            # A look during which the process was paused again proves nothing: the state may have changed since.
            if refusal is not None or self.moment() - began < self._limit_s:
                return refusal

    async def _ownership(self) -> WriterDeposedError | None:
        """Return None if this writer still has the log; else the error for the records."""
        # A ZooKeeper server that lags behind could still say OPEN of a ledger that another owner has closed (I5).
        await self._ledgers.store.sync(self._ledgers.path(self.ledger_id))
        state = (await self._ledgers.read(self.ledger_id)).value.state
        if state is LedgerState.OPEN:
            return None
        return WriterDeposedError(
            f"the answer was {self._limit_s:.1f} s late or more, and the ledger is {state.name} meanwhile: "
            "another owner has the log",
            ledger_id=self.ledger_id,
        )

    def _given_up_error(self) -> DistributedLogError:
        return WriterDeposedError(
            "the writer was given up before it was known that it still had the log", ledger_id=self.ledger_id
        )

    def _tell(self, refusal: DistributedLogError | None) -> None:
        while self._held:
            answered, done = self._held.popleft()
            if refusal is not None and _is_acknowledged(done):
                done = self._loop.create_future()
                done.set_exception(refusal)
            answered(done)

    async def close(self) -> None:
        """Let go: what is held back ends as unknown. Idempotent."""
        if self._looking is not None:
            await end_tasks([self._looking], drop_errors=True)
        self._tell(self._given_up_error())  # Where the look had not even begun.


def _is_acknowledged(done: Answer) -> bool:
    return not done.cancelled() and done.exception() is None
