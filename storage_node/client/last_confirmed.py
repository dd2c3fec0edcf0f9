"""The last-add-confirmed of a ledger that grows: its readers ask the bookies for it, its writer makes it known.

`LacQuestion` asks all bookies of the last ensemble at once where the LAC is; `TailRound` is one long poll for the
entry behind it. Over regions it polls the nearest bookie alone, and asks others now and then (`tail_over_regions`).

`ExplicitLac` writes the LAC to bookies where no later add carries it, for readers at the end of a quiet ledger. With an
interval, the LAC is written once no add has carried a later one for that long; what fails is logged and tried again,
later each time. `flush` writes it at once and says whether it worked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import DistributedLogError
from storage_node.client.connections import Answer, ConnectionPool, answer_error, ask_bookies
from storage_node.client.tail_over_regions import TailListening
from storage_node.errors import ProtocolError, UnauthorizedAccessError
from storage_node.protocol.digests import Entry, EntryDigest, master_key
from storage_node.protocol.encoding import encode_read_lac_request, encode_read_request, encode_write_lac_request
from storage_node.protocol.reading import LacRead, LacTry, TailRead
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.striping import write_set
from storage_node.protocol.values import ReadLacResponse, ReadResponse
from storage_node.protocol.writing import WriterMachine

logger = logging.getLogger(__name__)

_LAST_ENTRY = -1

QUESTION_MS = 1
"""The wait of a long poll that is only to say whether there is news. Not 0: upstream's nodes need not take that for a
wait that is over."""


class LacQuestion:
    """One question; `done` is set once `machine` is decided. `forget` it in any case."""

    def __init__(
        self,
        pool: ConnectionPool,
        ledger_id: int,
        metadata: LedgerMetadata,
        digest: EntryDigest,
        known: int | None = None,
    ) -> None:
        """Ask for the LAC. With `known` any LAC above it is enough; else the answers have to cover every write set."""
        self.done: asyncio.Future[None] = pool.loop.create_future()
        self.quorum = LacRead(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self.attempt = LacTry(metadata.ensemble_size, -1 if known is None else known)
        self._pool = pool
        self._ledger_id = ledger_id
        self._digest = digest
        self._best_effort = known is not None
        self._asked = [
            (bookie, self._ask(index, bookie)) for index, bookie in enumerate(metadata.last_ensemble.bookies)
        ]

    def _ask(self, index: int, bookie: str) -> int:
        txn_id = self._pool.next_txn_id()
        operation, frame = Operation.READ_LAC, encode_read_lac_request(txn_id, self._ledger_id)
        if self._best_effort:
            operation, frame = Operation.READ, encode_read_request(txn_id, self._ledger_id, _LAST_ENTRY)

        asked = self._pool.loop.time()
        connection = self._pool.to(bookie, self._ledger_id)

        def answered(answer: Answer) -> None:
            if self._pool.nearness.known and not isinstance(answer, DistributedLogError):
                now = self._pool.loop.time()
                self._pool.nearness.questions.note(bookie, now - max(asked, connection.opened_at), now)
            machine = self.attempt if self._best_effort else self.quorum
            try:
                if self._best_effort:
                    self.attempt.answered(index, self._last(answer, bookie))
                else:
                    self.quorum.answered(index, *self._explicit_or_last(answer, bookie))
            except DistributedLogError as error:
                machine.failed(index, error)
            if self._decided and not self.done.done():
                self.done.set_result(None)

        timeout_ms = self._pool.settings.read_entry_timeout_ms
        connection.request(txn_id, operation, frame, timeout_ms, answered)
        return txn_id

    @property
    def _decided(self) -> bool:
        if self._best_effort:
            return self.attempt.finished
        return self.quorum.settled or self.quorum.failed_for_good

    def _checked(self, answer: Answer, bookie: str) -> ReadLacResponse | ReadResponse:
        """Return an EOK. Raises what makes the bookie unknown (I12)."""
        if isinstance(answer, DistributedLogError):
            raise answer
        if answer.status is not Status.EOK:
            raise answer_error(answer.status, bookie, self._ledger_id, None)
        if not isinstance(answer, ReadLacResponse | ReadResponse):
            raise ProtocolError("an EOK without an answer to the question for the LAC", node=bookie)
        return answer

    def _explicit_or_last(self, answer: Answer, bookie: str) -> tuple[int, int]:
        """Return the greater of the explicit LAC and the last entry's; and that entry (-1: the bookie has none)."""
        response = self._checked(answer, bookie)
        if not isinstance(response, ReadLacResponse):
            raise ProtocolError("an EOK without an answer to the LAC read", node=bookie)
        lac = stored = -1
        if response.lac_body is not None:
            lac = self._digest.verify_lac(self._ledger_id, response.lac_body)
        if response.last_entry_body is not None:
            entry = self._digest.verify(self._ledger_id, None, response.last_entry_body)
            lac, stored = max(lac, entry.last_add_confirmed), entry.entry_id
        return lac, stored

    def _last(self, answer: Answer, bookie: str) -> int:
        """Return the LAC that the last entry carries, or a later one that the bookie knows."""
        response = self._checked(answer, bookie)
        if not isinstance(response, ReadResponse) or response.body is None:
            raise ProtocolError("an EOK without an entry", node=bookie)
        entry = self._digest.verify(self._ledger_id, None, response.body)
        return max(entry.last_add_confirmed, -1 if response.max_lac is None else response.max_lac)

    def forget(self) -> None:
        """End the question: answers that still come are dropped, but for how far their bookies are."""
        if self._pool.nearness.known:
            return
        for bookie, txn_id in self._asked:
            self._pool.to(bookie, self._ledger_id).forget(txn_id)


class TailRound:
    """Asks bookies in turn, after a silence also the next one, until one has news or the time is over. With `listening`
    it also asks others whether they know more than the one that is polled."""

    def __init__(
        self,
        pool: ConnectionPool,
        ledger_id: int,
        metadata: LedgerMetadata,
        digest: EntryDigest,
        next_entry: int,
        deadline: float,
        listening: TailListening | None = None,
    ) -> None:
        self._pool = pool
        self._loop = pool.loop
        self._settings = pool.settings
        self._ledger_id = ledger_id
        self._bookies = metadata.last_ensemble.bookies
        self._digest = digest
        self._next_entry = next_entry
        self._deadline = deadline
        self._asked: list[tuple[str, int]] = []
        self._outcome: asyncio.Future[Entry | None] = pool.loop.create_future()
        self._silence: asyncio.TimerHandle | None = None
        self._listening = listening
        self._order: Sequence[int] = ()
        self._polled: int | None = None
        self._question_timer: asyncio.TimerHandle | None = None
        enough = None if listening is None else 1
        self.machine = TailRead(next_entry, metadata.ensemble_size, metadata.ack_quorum, enough=enough)
        self.machine.reorder(lambda order: self._arrange(order, metadata.write_quorum))

    def _arrange(self, order: Sequence[int], write_quorum: int) -> Sequence[int]:
        pool, listening = self._pool, self._listening
        if listening is None:
            return pool.reading_order(order, self._bookies)
        listening.begin(self._bookies, self._loop.time())
        # Replicas of the entry behind come before nearer bookies that do not get it: its add is what they hear by.
        replicas, others = order[:write_quorum], order[write_quorum:]
        ordered = [*pool.reading_order(replicas, self._bookies), *pool.reading_order(others, self._bookies)]
        self._order = listening.arrange(ordered)
        return self._order

    async def run(self, changed: asyncio.Future[None]) -> Entry | None:
        """Return the entry; None where there is none yet, the time is over, or `changed` is done. Raises EUA."""
        changed.add_done_callback(self._give_up)
        try:
            self._poll_next(self.machine.ask_next())
            if self._listening is not None and self._polled is not None:
                for index in self._listening.beside(self._polled):
                    self._ask(index, beside=True)
                self._question_later()
            self._expect_news(self._settings.speculative_lac_ms / 1000)
            return await self._outcome
        finally:
            changed.remove_done_callback(self._give_up)
            if self._silence is not None:
                self._silence.cancel()
            if self._question_timer is not None:
                self._question_timer.cancel()
            for bookie, txn_id in self._asked:
                self._pool.to(bookie, self._ledger_id).forget(txn_id)

    def _give_up(self, _changed: asyncio.Future[None]) -> None:
        self._end(None)

    def _expect_news(self, patience_s: float) -> None:
        """Ask another bookie as well if no answer comes for this long (0: never), and so on, each time later."""
        if patience_s:
            self._silence = self._loop.call_later(patience_s, self._ask_beside, patience_s)

    def _ask_beside(self, patience_s: float) -> None:
        self._silence = None
        if not self._outcome.done():
            self._ask(self.machine.ask_next())
            settings = self._settings
            self._expect_news(min(patience_s * settings.speculative_lac_factor, settings.max_speculative_lac_ms / 1000))

    def _poll_next(self, index: int | None) -> None:
        if index is not None:
            self._polled = index
            self._ask(index)

    def _ask(self, index: int | None, *, beside: bool = False) -> None:
        if index is None:
            return
        settings = self._settings
        left_ms = int((self._deadline - self._loop.time()) * 1000)
        if left_ms <= 0:
            self._end(None)
            return
        bookie = self._bookies[index]
        wait_ms = min(left_ms, settings.long_poll_ms)
        txn_id = self._pool.next_txn_id()
        self._asked.append((bookie, txn_id))
        frame = encode_read_request(
            txn_id, self._ledger_id, -1, previous_lac=self._next_entry - 1, timeout_ms=wait_ms, piggyback=True
        )
        # The bookie's wait is shorter than the read timeout, or every poll would end as a timeout:
        # docs/reference/wire.md#polling-for-the-next-entry
        slack_ms = settings.speculative_read_ms or settings.read_entry_timeout_ms
        timeout_ms = min(wait_ms + slack_ms, settings.read_entry_timeout_ms)
        self._pool.to(bookie, self._ledger_id).request(
            txn_id, Operation.READ, frame, timeout_ms, lambda answer: self._answered(index, bookie, answer, beside)
        )

    def _answered(self, index: int, bookie: str, answer: Answer, beside: bool) -> None:
        if self._outcome.done():
            return
        if beside:
            self._answered_beside(index, bookie, answer)
            return
        machine = self.machine
        try:
            response = self._checked(bookie, answer)
            if response.entry_id == -1 or response.body is None:
                following = machine.empty(response.max_lac)
                if machine.last_add_confirmed >= self._next_entry:
                    self._news_from(index)
            else:
                entry = self._entry_in(response, bookie)
                self._news_from(index)
                self._end(entry)
                return
        except UnauthorizedAccessError as error:
            self._outcome.set_exception(error)
            return
        except DistributedLogError as error:
            following = machine.failed(error)
        if machine.finished:
            self._end(None)
        else:
            self._poll_next(following)

    # ------------------------------------------------------------------------------------ over regions

    def _news_from(self, index: int) -> None:
        listening, now = self._listening, self._loop.time()
        if listening is None or self._polled is None:
            return
        if index == self._polled:
            listening.heard(index, now)
        else:
            listening.missed(self._polled, now)

    def _answered_beside(self, index: int, bookie: str, answer: Answer) -> None:
        """Take the answer of a bookie that was deaf: news end the poll, all else changes nothing."""
        if self._take_news(bookie, answer) and self._listening is not None:
            self._listening.heard(index, self._loop.time())

    def _question_later(self) -> None:
        """Ask another bookie, when it is due, whether it knows more than the one that is polled."""
        if self._listening is not None and self._polled is not None:
            due = self._listening.due(self._polled, self._order)
            if due is not None:
                self._question_timer = self._loop.call_at(due, self._question)

    def _question(self) -> None:
        self._question_timer = None
        if self._outcome.done() or self._listening is None or self._polled is None or self._pool.closed:
            return
        index = self._listening.question(self._polled, self._order, self._loop.time())
        bookie = self._bookies[index]
        txn_id = self._pool.next_txn_id()
        # Not the question for the LAC: its answer always brings the last entry along, however large.
        frame = encode_read_request(
            txn_id, self._ledger_id, -1, previous_lac=self._next_entry - 1, timeout_ms=QUESTION_MS, piggyback=True
        )
        connection = self._pool.to(bookie, self._ledger_id)
        asked = self._loop.time()
        timeout_ms = self._settings.read_entry_timeout_ms
        connection.request(
            txn_id,
            Operation.READ,
            frame,
            timeout_ms,
            lambda answer: self._answered_question(bookie, answer, max(asked, connection.opened_at)),
        )
        self._question_later()

    def _answered_question(self, bookie: str, answer: Answer, asked: float) -> None:
        if isinstance(answer, ReadResponse) and answer.entry_id == -1:
            now = self._loop.time()
            self._pool.nearness.questions.note(bookie, max(now - asked - QUESTION_MS / 1000, 0), now)
        listening, polled = self._listening, self._polled
        if listening is None or polled is None or self._outcome.done() or not self._take_news(bookie, answer):
            return
        listening.missed(polled, self._loop.time())
        logger.info("ledger %d: %s had not heard what %s knew", self._ledger_id, self._bookies[polled], bookie)

    def _take_news(self, bookie: str, answer: Answer) -> bool:
        """End the poll if an answer has news, and return whether it has; what is wrong with it is another's to find."""
        try:
            response = self._checked(bookie, answer)
            if response.entry_id != -1 and response.body is not None:
                self._end(self._entry_in(response, bookie))
                return True
        except DistributedLogError:
            return False
        if response.max_lac is None or response.max_lac < self._next_entry:
            return False
        self.machine.found(response.max_lac)  # it lacks the entry: an ordinary read of all its replicas finds it
        self._end(None)
        return True

    def _checked(self, bookie: str, answer: Answer) -> ReadResponse:
        """Return a long poll's EOK. Raises what makes it a failure."""
        if isinstance(answer, DistributedLogError):
            raise answer
        if answer.status is not Status.EOK:
            raise answer_error(answer.status, bookie, self._ledger_id, self._next_entry)
        if not isinstance(answer, ReadResponse):
            raise ProtocolError("an EOK without an answer to the long poll", node=bookie)
        return answer

    def _entry_in(self, response: ReadResponse, bookie: str) -> Entry:
        if response.body is None:
            raise ProtocolError("an EOK without an entry", node=bookie)
        entry = self._digest.verify(self._ledger_id, self._next_entry, response.body)
        if response.max_lac is None or response.max_lac < self._next_entry:
            raise ProtocolError("a long poll answered with an entry beyond its LAC", node=bookie)  # I6
        self.machine.found(response.max_lac)
        return entry

    def _end(self, entry: Entry | None) -> None:
        if not self._outcome.done():
            self._outcome.set_result(entry)


# ------------------------------------------------------------------------------------ written without an add


LONGEST_PAUSE_S = 5.0
"""Between tries, while bookies do not take the LAC."""


class ExplicitLac:
    """The explicit LAC of one writer. `carried` gives the LAC that its last add carried; `start` runs a background task
    of it."""

    def __init__(
        self,
        pool: ConnectionPool,
        machine: WriterMachine,
        digest: EntryDigest,
        *,
        carried: Callable[[], int],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._pool = pool
        self._machine = machine
        self._digest = digest
        self._key = master_key(machine.metadata.password or b"")
        self._carried = carried
        self._start = start
        self._interval_s = pool.settings.explicit_lac_interval_ms / 1000
        self._pause_s = self._interval_s
        self._known = -1
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def moved(self) -> None:
        """Write the LAC, which has moved, after the interval, unless an add carries it before."""
        if self._interval_s > 0 and self._timer is None and not self._stopped:
            self._timer = self._pool.loop.call_later(self._pause_s, self._due)

    def _due(self) -> None:
        self._start(self._write_if_due())

    async def _write_if_due(self) -> None:
        carried = self._carried()
        failed_for_s, self._pause_s = self._pause_s, self._interval_s
        if carried > self._known:
            self._known = carried  # adds are coming, and the next one will carry what the last one could not
        elif self._machine.last_add_confirmed > self._known:
            try:
                await self.flush()
            except DistributedLogError as error:
                self._pause_s = min(2 * failed_for_s, max(LONGEST_PAUSE_S, self._interval_s))
                logger.warning("the LAC of ledger %d could not be made known: %s", self._machine.ledger_id, error)
        self._timer = None
        if self._machine.last_add_confirmed > self._known:
            self.moved()

    async def flush(self) -> int:
        """Write the LAC to the bookies that hold its entry; returns it when an ack quorum has it.

        Raises what kept too many of them from it; readers may have seen that LAC even so, which does no harm.
        """
        machine = self._machine
        lac = machine.last_add_confirmed  # once, before the sends: all bookies get the same, and never a later one (I6)
        if lac <= self._known or lac < 0:
            return lac
        metadata: LedgerMetadata = machine.metadata
        body = self._digest.package_lac(machine.ledger_id, lac)
        seats = machine.seats
        await ask_bookies(
            self._pool,
            machine.ledger_id,
            [seats[index].bookie for index in write_set(lac, metadata.ensemble_size, metadata.write_quorum)],
            Operation.WRITE_LAC,
            lambda txn_id: encode_write_lac_request(txn_id, machine.ledger_id, lac, self._key, body),
            needed=metadata.ack_quorum,
        )
        self._known = max(self._known, lac)
        return lac

    def stop(self) -> None:
        """Write no more. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
