"""`Producers`: which requests of a log's idempotent producers were written, and which of them may follow. No I/O.

A producer is a name and an epoch; its requests are numbered from 0 in each epoch. Any of them may come again, after an
answer that was lost or from another process, and is written once (I19). The table is the log's: what it says is said by
control records before the requests (`codec.producer_records`), so every owner of the log comes to the same one.

It is ahead of what is acknowledged: a request is in it from the moment at which its records have their place in the
segment. `under_way` tells those that are not answered yet. When an entry is not acknowledged, the table is not that of
the log any more; the next owner, or this one after its recovery, reads it again.

    a request comes                      it is
    of an older epoch                    refused: ProducerFencedError
    of a newer epoch                     the first of it, so its number is 0
    with the number after the last one   new
    with one of the last KEPT numbers    a repetition: its first position is known, or will be (it is under way)
    below them                           a repetition whose position is forgotten
    above the next number                refused: SequenceGapError
    of a producer that is not known      new, in an epoch in which none was forgotten; else ProducerForgottenError

**What is not known was not always never written.** Silent producers are forgotten, and so are those in segments that
were deleted. So the table says up to which epoch something was `forgotten`: no producer that is not in it has begun a
later one. Whoever begins one that is later is new, beyond doubt; any other request of an unknown producer is refused.
Of a silent producer its epoch is known. Where segments are gone nothing is: so a log takes no epoch above a limit, and
after such a loss all up to that limit counts as forgotten, and the limit is raised. `losses` says how often; it is
stored apart from the segments (`producer_segments`). The last epochs below the limit are begun one after the
other only, so that no producer leaves the others without.

Where gaps are allowed (a sink numbers its batches, and not every batch has rows), any higher number is new, and a lower
one that is not among those kept may have been left out: SequencePassedError says that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Final, NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import (
    KEPT,
    MAX_NUMBER,
    FencingToken,
    Kept,
    ProducerRequest,
    ProducerState,
    SnapshotPart,
    encode_snapshot,
    epoch_of,
    seen_ms,
)
from dlspark.errors import (
    InvalidRecordError,
    ProducerFencedError,
    ProducerForgottenError,
    SequenceGapError,
    SequencePassedError,
    TooManyProducersError,
)
from storage_node.edge import Clock

SNAPSHOT_PART_BYTES: Final = 256 * 1024
FORGOTTEN_AT_ONCE: Final = 8_192
"""Silent producers that a snapshot leaves out; a millisecond is a thousand."""
RECENT: Final = 32
"""Producers of a log that are kept as they are worked with; the others are bytes. One takes 1.4 KB so, and a proxy may
have thousands of busy logs; most have fewer that write in turn, and one that left costs 6 us when it comes back."""
FIRST_EPOCHS: Final = 2**62
"""So many epochs there are before a loss: enough for any clock's time as an epoch."""
MORE_EPOCHS: Final = 2**48
"""So many come with each loss: a client that takes an epoch far above the last one finds room for 100,000 times."""
LAST_EPOCHS: Final = 2**47
"""So many below the limit are begun one after the other only. A producer that took the last one would leave none:
not for its own name, and once it is forgotten, which the log says by its epoch, not for any that is new."""
ADVICE_EPOCH: Final = "Begin a new epoch: it starts at 0, and fences whoever writes with an older one"


class Written(NamedTuple):
    """The answer to a repetition: where the request's first record is, None where that is forgotten."""

    first: DLSN | None
    records: int


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The answer to a repetition of a request that is not answered yet: it has that one's outcome."""

    request: ProducerRequest


class Producers:
    """The producers of one log, as this owner knows them."""

    def __init__(self, *, gaps_allowed: bool = False, most: int = 0, losses: int = 0) -> None:
        """Know nobody yet. `most`: how many producers are known at a time, 0 or less: any number. `losses`: how often
        all were lost."""
        self.gaps_allowed = gaps_allowed
        self.most = most
        self.losses = losses
        self.forgotten = epoch_limit(losses - 1) if losses else -1
        """A producer that is not known may have written in this epoch or an older one, but in none that is newer."""
        self.token = b""
        """The log's fencing token, empty for none."""
        self._states: dict[str, bytes] = {}
        """As a snapshot has them, which takes the least memory; the one that was heard of last comes last, as far as
        this owner has heard of it. Those of `_recent` are not in it."""
        self._recent: dict[str, ProducerState] = {}
        """The producers that were heard of last, behind all others: one that writes on is not encoded each time."""
        self._newest_ms: int | None = None
        self._looked_at: tuple[bytes, ProducerState | None] = (b"", None)
        """The state that was looked at last, as it is kept and decoded: a request is judged, and then noted."""
        self._under_way: set[ProducerRequest] = set()

    def __len__(self) -> int:
        return len(self._states) + len(self._recent)

    def state(self, name: str) -> ProducerState | None:
        """Return what is known of a producer; None where it has never written, or was `forgotten`."""
        recent = self._recent.get(name)
        if recent is not None:
            return recent
        encoded = self._states.get(name)
        if encoded is None:
            return None
        if encoded is not self._looked_at[0]:
            self._looked_at = encoded, ProducerState.decode(encoded)
        return self._looked_at[1]

    # ------------------------------------------------------------------ requests

    def judge(self, request: ProducerRequest) -> Written | UnderWay | None:
        """Return None where the request is to be written; else what it was answered with, or will be.

        Raises ProducerFencedError, SequenceGapError, SequencePassedError, ProducerForgottenError or
        TooManyProducersError, and InvalidRecordError where another request was written under the same number.
        """
        known = self.state(request.name)
        if known is None:
            self._check_unknown(request)
        limit = epoch_limit(self.losses)
        # The last epochs are begun one after the other: one jump to the limit would leave none for other producers.
        if request.epoch > limit - LAST_EPOCHS:
            limit = min(limit, max(limit - LAST_EPOCHS, self.next_epoch(request.name)))
        if request.epoch > limit:
            raise InvalidRecordError(
                f"epoch {request.epoch} of producer {request.name!r} is above {limit}, the highest that this log takes",
                advice="Begin an epoch without giving its number",
            )
        if known is not None and request.epoch < known.epoch:
            raise ProducerFencedError(
                f"epoch {request.epoch} of producer {request.name!r} has ended: epoch {known.epoch} has begun",
                epoch=known.epoch,
                advice="Another process writes as this producer; if it should not, begin a new epoch here",
            )
        last = known.last if known is not None and request.epoch == known.epoch else -1
        if request.sequence == -1:  # it only begins its epoch, or did before
            if known is None or request.epoch != known.epoch:
                return None
            return UnderWay(request) if request in self._under_way else Written(None, 0)
        if request.sequence > last:
            self._check_follows(request, last)
            return None
        return self._repetition(request, known.kept if known is not None else ())

    def _check_unknown(self, request: ProducerRequest) -> None:
        """Raise unless a producer that is not known is new, and there is room for it (I19)."""
        if request.epoch <= self.forgotten:
            raise ProducerForgottenError(
                f"the log does not know producer {request.name!r}, and has forgotten producers of epochs up to "
                f"{self.forgotten}: whether request {request.sequence} of epoch {request.epoch} was written before is "
                "not known; it was not written now",
                epoch=self.forgotten,
                advice="If it may have been sent before, look for its records in the log. Then begin a new epoch "
                "without giving its number: what is written in that is new",
            )
        if 0 < self.most <= len(self):
            raise TooManyProducersError(
                f"the log knows {len(self)} producers, and remembers {self.most} at most (maxProducers); "
                f"producer {request.name!r} is new, and nothing of it was written",
                advice="Write with one that exists, or several logs; or raise maxProducers, or lower "
                "producerExpirySeconds so that silent ones are forgotten sooner",
            )

    def next_epoch(self, name: str) -> int:
        """Return one that the producer has not begun, as far as is known or was forgotten."""
        known = self.state(name)
        return (known.epoch if known is not None else self.forgotten) + 1

    def _check_follows(self, request: ProducerRequest, last: int) -> None:
        if request.sequence != last + 1 and not self.gaps_allowed:
            raise SequenceGapError(
                f"request {request.sequence} of producer {request.name!r} came where {last + 1} is next",
                expected=last + 1,
                advice=f"Send the requests before it again. {ADVICE_EPOCH}",
            )

    def _repetition(self, request: ProducerRequest, kept: tuple[Kept, ...]) -> Written | UnderWay:
        for sequence, first, count in kept:
            if sequence == request.sequence:
                if count != request.count:
                    raise InvalidRecordError(
                        f"request {sequence} of producer {request.name!r} was written with {count} records and came "
                        f"again with {request.count}",
                        advice="A number belongs to one request; repeat it unchanged, or take the next number",
                    )
                return UnderWay(request) if request in self._under_way else Written(first, count)
        if self.gaps_allowed:
            raise SequencePassedError(
                f"request {request.sequence} of producer {request.name!r} is below the last ones, and is not among the "
                f"{len(kept)} that are remembered",
                advice="Look for its records in the log before writing them again",
            )
        return Written(None, request.count)

    def begin(self, request: ProducerRequest, first: DLSN, now_ms: int) -> None:
        """Note a new request whose records have their place; its answer is to come."""
        self._note(request, first, now_ms)
        self._under_way.add(request)

    def answered(self, request: ProducerRequest) -> None:
        """Note that a request that was under way is stored."""
        self._under_way.discard(request)

    # ------------------------------------------------------------------ what the log says

    def replay(self, control: ProducerRequest | FencingToken, dlsn: DLSN, now_ms: int) -> None:
        """Take in a control record that was read behind the snapshot; `dlsn` is the control record's own."""
        if isinstance(control, FencingToken):
            self.token = control.token
            return
        self._note(control, DLSN(dlsn.lssn, dlsn.entry_id, dlsn.slot_id + 1), now_ms)

    def restore(self, parts: list[SnapshotPart]) -> None:
        """Take in a whole snapshot, in the place of everything known."""
        self._states, self._recent = {}, {}
        self._newest_ms = max((part.newest_ms for part in parts if part.newest_ms is not None), default=None)
        for part in parts:
            self._states.update(part.states)
            self.token = part.token
            self.forgotten = max(self.forgotten, part.forgotten)

    def lose(self) -> None:
        """Note that what the log said of its producers is gone: of its fencing token as well, so that no condition on
        one holds before it is set anew."""
        self.forgotten = epoch_limit(self.losses)
        self.losses += 1
        self.token = b"lost-%d" % self.losses

    def newest_ms(self) -> int | None:
        """Return when one of them was heard of last, in milliseconds since the epoch; None where none is known."""
        return self._newest_ms

    def snapshot(self, now_ms: int, expiry_ms: int) -> list[bytes]:
        """Return the payloads of a snapshot's control records.

        Producers that were silent for longer than `expiry_ms` are not in it, and are forgotten here too: the snapshot
        says up to which epoch. No more than FORGOTTEN_AT_ONCE are, and none behind one that is not silent: the others
        are remembered for longer.
        """
        while self._recent:
            self._keep_oldest_recent()
        # The table is in the order in which producers were heard of (`_note`): those that are silent come first.
        oldest = islice(self._states.values(), FORGOTTEN_AT_ONCE)
        silent = list(takewhile(lambda state: seen_ms(state) < now_ms - expiry_ms, oldest))
        for name in list(islice(self._states, len(silent))):
            # What is forgotten must never look as if it had not been written (I19).
            self.forgotten = max(self.forgotten, epoch_of(self._states.pop(name)))
        return encode_snapshot(list(self._states.values()), self.token, SNAPSHOT_PART_BYTES, self.forgotten)

    def names(self) -> Iterator[str]:
        """Return all producers that are known."""
        return chain(self._states, self._recent)

    def _note(self, request: ProducerRequest, first: DLSN, now_ms: int) -> None:
        known = self.state(request.name)
        if known is None or request.epoch > known.epoch:
            known = ProducerState(request.epoch, -1, now_ms)
        kept = known.kept
        if request.sequence >= 0:
            kept = (*kept, Kept(request.sequence, first, request.count))[-KEPT:]
        last = max(known.last, request.sequence)
        noted = ProducerState(known.epoch, last, now_ms, kept)
        if self._recent.pop(request.name, None) is None:
            if len(self._recent) >= RECENT:
                self._keep_oldest_recent()
            self._states.pop(request.name, None)
        self._recent[request.name] = noted  # it comes last
        self._newest_ms = now_ms if self._newest_ms is None else max(self._newest_ms, now_ms)

    def _keep_oldest_recent(self) -> None:
        name, state = next(iter(self._recent.items()))
        self._states[name] = state.encode(name)  # first: one that was lost here would look like one that is new (I19)
        del self._recent[name]


def epoch_limit(losses: int) -> int:
    """Return the highest epoch that a log takes which has lost what it knew so many times."""
    return min(FIRST_EPOCHS + losses * MORE_EPOCHS, MAX_NUMBER) - 1


class LogTime:
    """The time by which a log forgets silent producers, as its present owner sees it.

    A host's clock may be a week ahead, for an hour or for ever, and a producer that is forgotten too early is refused
    (I19). So the time of a log goes on where its last owner left it, and then as its present owner measures it, without
    looking at the clock again. While nobody wrote it may have stood still: how long that was only the clock can tell,
    and it is believed up to a limit.
    """

    def __init__(self, clock: Clock, newest_ms: int | None, most_ms: int) -> None:
        """Begin where the last owner left off. `newest_ms`: when a producer of the log was heard of last; None where
        none is known, and no time is needed. `most_ms`: how much later than that it may be now."""
        now_ms = clock.now_ms()
        self._began_ms = now_ms if newest_ms is None else max(newest_ms, min(now_ms, newest_ms + most_ms))
        self._clock = clock
        self._began_s = clock.elapsed_s()

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, or fewer."""
        return self._began_ms + int((self._clock.elapsed_s() - self._began_s) * 1000)
