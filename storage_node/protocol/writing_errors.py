"""How a writer's failures read: what happened, what of the entries under way, what to do."""

from __future__ import annotations

from metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from metadata.foundation.errors import DistributedLogError, OutcomeUnknownError
from storage_node.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LedgerTakenError,
    QuorumWriteError,
    certificate_refused,
)
from storage_node.protocol.writing_progress import WriterProgress


def refusal_error(at: WriterProgress) -> DistributedLogError:
    """Return why no add is taken."""
    if at.error is not None:
        return at.error
    return LedgerClosedError("the ledger is closed; the entry was not sent", ledger_id=at.ledger_id)


def taken_over_error(at: WriterProgress, metadata: LedgerMetadata) -> DistributedLogError:
    """Return the error for a ledger that another client has fenced or closed."""
    if metadata.state is LedgerState.CLOSED and metadata.last_entry <= at.last_add_confirmed:
        return LedgerClosedError(
            f"another client closed the ledger at entry {metadata.last_entry}; later ones are not in it",
            ledger_id=at.ledger_id,
        )
    return LedgerFencedError(
        f"another client took the ledger over (it is {metadata.state.name}); "
        f"acknowledged here up to entry {at.last_add_confirmed}, sent up to {at.last_add_pushed}",
        advice="Its recovery decides which of the entries under way are in the ledger: read it",
        ledger_id=at.ledger_id,
    )


def foreign_fragment_error(at: WriterProgress, metadata: LedgerMetadata) -> DistributedLogError:
    """Return the error for metadata with a fragment that only another writer can have put there."""
    return LedgerFencedError(
        f"another client added a fragment at entry {metadata.last_ensemble.first_entry}, beyond what is "
        f"acknowledged here ({at.last_add_confirmed})",
        advice="Two writers share this ledger; open it with recovery",
        ledger_id=at.ledger_id,
    )


def stuck_error(at: WriterProgress, what: str, cause: DistributedLogError | None) -> DistributedLogError:
    """Return the error for pending adds: any reason but a closed ledger leaves open whether a recovery will
    find them.
    """
    do = "Look at this client's certificate" if certificate_refused(cause) else "See that enough storage nodes run"
    error = QuorumWriteError(
        f"{what}; entries {at.last_add_confirmed + 1} to {at.last_add_pushed} are not acknowledged",
        advice=f"{do}; a recovery decides which of these entries are in the ledger",
        ledger_id=at.ledger_id,
    )
    error.__cause__ = cause
    return error


def taken_error(at: WriterProgress, cause: DistributedLogError) -> DistributedLogError:
    """Return the error for bookies that hold something under the ledger's id that its owner did not write."""
    error = LedgerTakenError(
        f"others wrote under ledger id {at.ledger_id} on {cause.node or 'its nodes'} before its writer did; nothing is "
        "acknowledged in this ledger",
        advice="Write to another ledger; keep storage nodes out of reach of clients that write under ids of others",
        ledger_id=at.ledger_id,
        node=cause.node,
    )
    error.__cause__ = cause
    return error


def unknown_close_error(at: WriterProgress, cause: DistributedLogError) -> DistributedLogError:
    """Return the error for a close of which neither the request nor a look at what came of it worked."""
    error = OutcomeUnknownError(
        f"whether the ledger was closed at entry {at.last_add_confirmed} is not known: {cause.message}",
        advice="Close it again, or open it with recovery",
        ledger_id=at.ledger_id,
    )
    error.__cause__ = cause
    return error
