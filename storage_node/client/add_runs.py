"""`AddsUnderWay`: which adds of one connection wait for their answers? Finds them by the answers' bytes.

An EOK says nothing but what the request said, so its bytes are known when the request is sent (`protocol.adds`). Adds
that were sent together are one run: of a run only the next answer is looked for, by its bytes, and those that follow it
are compared with what was read, all in one comparison. A bookie answers the adds of one ledger in their order, so a run
is rarely looked at more than once a read. Where an answer is anything else (an error, another order, another layout of
its fields), the runs are taken apart into single adds, each run once, and each add is found by itself.

An add is in this table from before it is sent until it is taken out, once, to be acknowledged or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias, cast

from metadata.foundation.errors import DistributedLogError
from storage_node.protocol.encoding import encode_add_response
from storage_node.protocol.frames import LENGTH, LENGTH_BYTES
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse, Response
from storage_node.protocol.writing_model import Seat

MAX_ACKNOWLEDGEMENT_BYTES = 64
"""No canonical EOK answer to an add is longer, its length prefix included."""
RECOGNISED_AT_ONCE_BYTES = 64 * 1024
"""So much of what was read is looked at in one go; some 2,500 answers."""


class AddOwner(Protocol):
    """The sender of an add; called back once for each add and seat."""

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        """Note that the seat's bookie has answered EOK for these entries, in this order."""
        ...

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None:
        """Note that the bookie answered otherwise, or not in time, or its connection was lost: it may have stored the
        entry."""
        ...


SentAdd: TypeAlias = tuple[AddOwner, Seat, int, float, int]
"""Owner, seat, entry id, deadline, transaction id."""


class SentRun:
    """Adds of one owner that were sent to one seat together, under consecutive transaction ids."""

    __slots__ = ("answer_bytes", "answers", "deadline", "done", "entry_ids", "first_txn_id", "owner", "seat")

    def __init__(
        self,
        owner: AddOwner,
        seat: Seat,
        entry_ids: Sequence[int],
        deadline: float,
        first_txn_id: int,
        answers: bytes,
        answer_bytes: int,
    ) -> None:
        self.owner = owner
        self.seat = seat
        self.entry_ids = entry_ids
        self.deadline = deadline
        self.first_txn_id = first_txn_id
        self.answers = answers
        """The EOKs to come, one behind the other, with their length prefixes."""
        self.answer_bytes = answer_bytes
        """The length of each of them; 0 where they differ."""
        self.done = 0
        """So many were answered."""

    def next_answer(self) -> bytes:
        """Return the next EOK."""
        at = self.done * self.answer_bytes
        return self.answers[at : at + self.answer_bytes]

    def singles(self) -> list[tuple[bytes, SentAdd]]:
        """Return the adds that were not answered yet, each with its EOK."""
        found: list[tuple[bytes, SentAdd]] = []
        at = self.done * self.answer_bytes
        for n in range(self.done, len(self.entry_ids)):
            (length,) = LENGTH.unpack_from(self.answers, at)
            end = at + LENGTH_BYTES + length
            add = (self.owner, self.seat, self.entry_ids[n], self.deadline, self.first_txn_id + n)
            found.append((self.answers[at:end], add))
            at = end
        return found


def _deadline(found: SentAdd | SentRun) -> float:
    return found.deadline if isinstance(found, SentRun) else found[3]


class AddsUnderWay:
    """All adds of one connection that were sent and not answered."""

    def __init__(self) -> None:
        # By the EOK that will answer it, its length prefix included: an add, or a run, of which it is the next one.
        self._waiting: dict[bytes, SentAdd | SentRun] = {}
        # The runs among those, by the first id that each had: what is to be taken apart, so that it is once.
        self._runs: dict[int, SentRun] = {}
        # The EOKs of the single adds among those, by transaction id: some answers name no other id.
        self._answers: dict[int, bytes] = {}
        # EOKs of the read that is being delivered, which were taken out above: in the order in which they came.
        self._acknowledged: list[tuple[AddOwner, Seat, list[int]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def sent(self, answer: bytes, add: SentAdd) -> None:
        """Wait for this add's answer; `answer` is its EOK."""
        self._waiting[answer] = add
        self._answers[add[4]] = answer

    def sent_run(self, run: SentRun) -> None:
        """Wait for these adds' answers."""
        if run.answer_bytes:
            self._waiting[run.next_answer()] = run
            self._runs[run.first_txn_id] = run
        else:
            self._wait_apart(run)  # where ids get a digit more

    def _wait_apart(self, run: SentRun) -> None:
        for answer, add in run.singles():
            self.sent(answer, add)

    # ------------------------------------------------------------------------------------ acknowledgements

    def recognise(self, received: memoryview) -> int:
        """Take the EOKs at the beginning of what was read, and return how many bytes they are; `received` begins with
        a frame, its length prefix included."""
        if not self._waiting or len(received) < LENGTH_BYTES:
            return 0
        # Of an EOK's prefix only the last byte is not 0. That the others are is compared with all the rest.
        size = received[LENGTH_BYTES - 1] + LENGTH_BYTES
        if size > MAX_ACKNOWLEDGEMENT_BYTES or size > len(received):
            return 0  # the usual case of other answers: nothing of them is copied
        data = bytes(received[:RECOGNISED_AT_ONCE_BYTES])
        at, end = 0, len(data)
        while True:
            found = self._waiting.pop(data[at : at + size], None)
            if found is None:
                return at
            at += size
            if type(found) is tuple:
                del self._answers[found[4]]
                self._note(found[0], found[1], (found[2],))
            else:
                at += self._follow(cast(SentRun, found), data, at) * size
            if at + LENGTH_BYTES > end:
                return at
            size = data[at + LENGTH_BYTES - 1] + LENGTH_BYTES

    def _follow(self, run: SentRun, data: bytes, at: int) -> int:
        """Note an EOK of this run, and as many of the next ones as lie at `at`; return how many those are."""
        size, begin = run.answer_bytes, run.done
        most = min((len(data) - at) // size, len(run.entry_ids) - begin - 1)
        first = (begin + 1) * size
        if data[at : at + most * size] != run.answers[first : first + most * size]:
            most = 0  # another order, or something else between them: one by one
        end = run.done = begin + 1 + most
        self._note(run.owner, run.seat, run.entry_ids[begin:end])
        if end < len(run.entry_ids):
            self._waiting[run.next_answer()] = run
        else:
            del self._runs[run.first_txn_id]
        return most

    def acknowledge(self, frame: memoryview) -> bool:
        """Take one EOK that is known by its bytes; False: it is something else."""
        if len(frame) > MAX_ACKNOWLEDGEMENT_BYTES - LENGTH_BYTES:
            return False
        found = self._waiting.pop(b"".join((LENGTH.pack(len(frame)), frame)), None)
        if found is None:
            return False
        if type(found) is tuple:
            del self._answers[found[4]]
            self._note(found[0], found[1], (found[2],))
        else:
            self._follow(cast(SentRun, found), b"", 0)
        return True

    def _note(self, owner: AddOwner, seat: Seat, entry_ids: Sequence[int]) -> None:
        if self._acknowledged:
            before, its_seat, ids = self._acknowledged[-1]
            if its_seat is seat and before is owner:
                ids.extend(entry_ids)
                return
        self._acknowledged.append((owner, seat, list(entry_ids)))

    def pass_on(self) -> None:
        """Notify owners of their EOKs, in order; those in a row of one owner and seat cost one call, and one drain."""
        if self._acknowledged:
            acknowledged, self._acknowledged = self._acknowledged, []
            told = 0
            try:
                for owner, seat, entry_ids in acknowledged:
                    told += 1
                    owner.on_added(seat, entry_ids)
            finally:
                # Where an owner failed, which ends the link: the others' are in no table any more, and are passed on
                # with its end.
                self._acknowledged[:0] = acknowledged[told:]

    # ------------------------------------------------------------------------------------ other ends

    def _singles(self) -> dict[bytes, SentAdd]:
        """Return all adds, after taking the runs apart: from now on each is found by itself. An add is moved once: a
        bookie that refuses thousands costs no more than one that takes them."""
        for run in self._runs.values():
            del self._waiting[run.next_answer()]
            self._wait_apart(run)
        self._runs.clear()
        return cast("dict[bytes, SentAdd]", self._waiting)

    def _take_out(self, answer: bytes) -> SentAdd | None:
        """Take out the single add with this EOK; None: none waits for it."""
        add = cast("SentAdd | None", self._waiting.pop(answer, None))
        if add is not None:
            del self._answers[add[4]]
        return add

    def take(self, response: Response) -> SentAdd | None:
        """Take out the add that an answer other than a canonical EOK is about; None: none waits for it."""
        self._singles()
        if isinstance(response, AddResponse):
            ids = (response.ledger_id, response.entry_id)
            add = self._take_out(encode_add_response(response.txn_id, Status.EOK, *ids))
            if add is not None:
                return add
        answer = self._answers.get(response.txn_id)  # without ids, or with wrong ones
        return None if answer is None else self._take_out(answer)

    def take_late(self, now: float) -> list[SentAdd]:
        """Take out those whose time is over, in the order in which they were sent."""
        if all(_deadline(found) > now for found in self._waiting.values()):
            return []  # nearly always: runs stay runs
        late = sorted((add for add in self._singles().values() if add[3] <= now), key=lambda add: (add[3], add[4]))
        for add in late:
            self._take_out(self._answers[add[4]])
        return late

    def take_all(self) -> list[SentAdd]:
        """Take out every add, in the order in which they were sent."""
        singles = self._singles()
        self._waiting, self._answers = {}, {}
        return sorted(singles.values(), key=lambda add: add[4])

    def keys(self) -> frozenset[bytes]:
        """Return what `waits_for` and `take_these` know the adds by that are under way now."""
        return frozenset(self._singles())

    def waits_for(self, keys: Collection[object]) -> bool:
        """Return whether any of these adds still waits."""
        return any(key in self._waiting for key in keys)

    def take_these(self, keys: Collection[object]) -> list[SentAdd]:
        """Take out those of these adds that still wait."""
        self._singles()
        taken = [self._take_out(key) for key in keys if isinstance(key, bytes)]
        return [add for add in taken if add is not None]
