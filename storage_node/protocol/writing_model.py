"""The writer machine's vocabulary: its states, events and table, the seats of an ensemble, and its effects.

`protocol.writing` holds the machine and the theory of operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import DistributedLogError
from storage_node.protocol.tables import parse_table


class WriterState(Enum):
    """What is a ledger's writer about?"""

    WRITING = auto()
    """Adds are taken and acknowledged."""
    PICKING = auto()
    """Frozen; replacements for failed bookies are being picked."""
    CHANGING = auto()
    """Frozen; the ensemble change's conditional write is under way."""
    CHECKING = auto()
    """Frozen; the metadata is being read after a conflict or an unknown outcome."""
    CLOSING = auto()
    """Everything is acknowledged; the closing conditional write is under way."""
    CLOSE_CHECKING = auto()
    """The metadata is being read after the closing write's conflict or unknown outcome."""
    GIVING_UP = auto()
    """The ledger's id is taken; the conditional write that closes it empty is under way. Adds are taken, and wait."""
    GIVE_UP_CHECKING = auto()
    """The metadata is being read after that write's conflict or unknown outcome."""
    REPLACING = auto()
    """It is closed, empty, for ever; another ledger is being made."""
    CLOSED = auto()
    FAILED = auto()


class WriterEvent(Enum):
    """One for each event method of `WriterMachine`."""

    ADD = auto()
    ADDED = auto()
    REFUSED = auto()
    PICKED = auto()
    METADATA_WRITTEN = auto()
    METADATA_DOUBTFUL = auto()
    METADATA_FOUND = auto()
    METADATA_FAILED = auto()
    RETRY_VACANCIES = auto()
    FORCED = auto()
    CLOSE = auto()
    ABORT = auto()
    REPLACED = auto()
    REPLACE_FAILED = auto()
    HEARD_ENOUGH = auto()


REACTIONS = parse_table(
    """
                      add added refused picked metadata_written metadata_doubtful metadata_found metadata_failed retry_vacancies forced close abort replaced replace_failed heard_enough
    WRITING           A   A     A       !      !                !                 !              !               A               A      A     A     !        !              A
    PICKING           A   A     A       A      !                !                 !              !               -               !      A     A     !        !              A
    CHANGING          A   A     A       !      A                A                 !              A               -               !      A     A     !        !              A
    CHECKING          A   A     A       !      !                !                 A              A               -               !      A     A     !        !              A
    CLOSING           R   -     -       !      A                A                 !              A               -               -      -     A     !        !              -
    CLOSE_CHECKING    R   -     -       !      !                !                 A              A               -               -      -     A     !        !              -
    GIVING_UP         A   -     -       !      A                A                 !              A               -               !      A     A     !        !              -
    GIVE_UP_CHECKING  A   -     -       !      !                !                 A              A               -               !      A     A     !        !              -
    REPLACING         A   -     -       !      !                !                 !              !               -               !      A     A     A        A              -
    CLOSED            R   -     -       -      -                -                 -              -               -               -      -     -     -        -              -
    FAILED            R   -     -       -      -                -                 -              -               -               -      A     -     -        -              -
    """,  # noqa: E501
    WriterState,
    WriterEvent,
)
"""The machine as a table. In FAILED, CLOSE acts: it closes at the LAC, or raises what forbids that (see above). While
a close waits for pending adds (`close_requested`), ADD is refused in every state. FORCED belongs to deferred-sync
ledgers alone, whose ensemble never changes."""


class Seat:
    """One bookie's place in the last ensemble. `current` ends for ever when the bookie is replaced (D12)."""

    __slots__ = ("bit", "bookie", "current", "index")

    def __init__(self, index: int, bookie: str) -> None:
        self.index = index
        self.bookie = bookie
        self.bit = 1 << index
        self.current = True

    def __repr__(self) -> str:
        return f"Seat({self.index}, {self.bookie!r}{'' if self.current else ', replaced'})"


@dataclass(slots=True)  # not frozen: one is made for every entry, and frozen ones cost twice as much to make
class Send:
    """Package the new entry, with this LAC and cumulative length, and send it to the seats, in this order."""

    entry_id: int
    last_add_confirmed: int
    length: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Resend:
    """Send a pending entry to seats that were filled anew."""

    entry_id: int
    seats: tuple[Seat, ...]


@dataclass(slots=True)
class Acknowledged:
    """Entries first..last are acknowledged, in this order; `last` is the new LAC."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PickReplacements:
    """Pick other bookies for some indices of `bookies`, none of `excluded`; answer with `picked`.

    `last_resort`: without a replacement the writer fails, so a bookie that failed lately is better than none.
    `write_quorum` is the ledger's: racks are counted over this many consecutive indices.
    """

    bookies: tuple[str, ...]
    indices: tuple[int, ...]
    excluded: frozenset[str]
    last_resort: bool
    write_quorum: int = 1
    strangers: frozenset[str] = frozenset()
    """The ones of `excluded` that can never be picked: they hold what others wrote under the ledger's id."""
    ack_quorum: int = 1
    """The ledger's: as many members of a write set in too few regions could lose an acknowledged entry."""
    restoring: bool = False
    """Copies that were lost are made anew: without a replacement the ledger goes on with fewer."""


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Set the ledger's metadata if its version still is `version`.

    Answer: `metadata_written`; `metadata_doubtful` on a version conflict and on an unknown outcome;
    `metadata_failed` where it definitely cannot be.
    """

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's metadata; answer with `metadata_found` or `metadata_failed`."""


@dataclass(frozen=True, slots=True)
class ForceSync:
    """Have every bookie of the ensemble sync what is acknowledged, up to this entry; then `forced`, or `abort`."""

    entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class ReplaceLedger:
    """The ledger is closed, empty: make another; answer with `replaced` or `replace_failed`.

    `attempt` counts from 1; `error` says whose answer it was that gave it up.
    """

    attempt: int
    error: DistributedLogError


@dataclass(frozen=True, slots=True)
class Moved:
    """The writer goes on in another ledger. A `Send` follows for each entry that waits: package it anew, for that."""


@dataclass(frozen=True, slots=True)
class Cut:
    """All entries still pending lie behind a gap that a close has made final: they fail with `error`."""

    error: DistributedLogError


@dataclass(frozen=True, slots=True)
class Failed:
    """The writer failed: every pending add fails with `error`, in entry order, and so does a close under way."""

    error: DistributedLogError


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed as `metadata` says."""

    metadata: LedgerMetadata


Effect: TypeAlias = (
    Send
    | Resend
    | Acknowledged
    | PickReplacements
    | WriteMetadata
    | ReadMetadata
    | ForceSync
    | ReplaceLedger
    | Moved
    | Cut
    | Failed
    | Closed
)
Effects: TypeAlias = tuple[Effect, ...]
