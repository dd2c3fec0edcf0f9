"""Where a ledger's entries lie in an ensemble, and when the answers of some bookies speak for all of them.

An ensemble is an ordered list of E bookies. Entry e lies on W of them, its *write set*: the indices (e + i) mod E for
i in 0..W-1, in that order, which is also the order in which readers ask. A of the W acknowledgements commit an entry.

*Quorum coverage*. A question put to a whole ensemble (what is the last entry, are you fenced) is settled when no write
set could still hide a committed entry: in each of the E windows of W consecutive indices fewer than A bookies are
unknown. Only a definite answer makes a bookie known: a verified entry, "no such entry", "no such ledger". A timeout, an
I/O error, a lost connection, an unclean bookie's "unknown" and an answer whose digest fails leave it unknown (D3).
Counting answers instead of testing windows would be wrong wherever E > W.

Everything here is arithmetic on Python integers, so entry ids beyond 2^31 stripe correctly (the Java writer's do not).
"""

from __future__ import annotations

from metadata.foundation.errors import CallerError, check


def validate_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise CallerError unless ensemble size >= write quorum >= ack quorum >= 1."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise CallerError(
            f"ensemble size {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum} do not fit together",
            advice="They must satisfy ensemble size >= write quorum >= ack quorum >= 1",
        )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the ensemble indices that hold `entry_id`, in reading order."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def write_sets(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Return all E write sets; entry e has number e mod E."""
    return tuple(write_set(start, ensemble_size, write_quorum) for start in range(ensemble_size))


def in_write_set(entry_id: int, index: int, ensemble_size: int, write_quorum: int) -> bool:
    """Return whether the bookie at `index` holds `entry_id`."""
    return (index - entry_id) % ensemble_size < write_quorum


def missing_needed(write_quorum: int, ack_quorum: int) -> int:
    """Return how many explicit "I lack it" prove that an entry was never acknowledged: (W - A) + 1 (D3)."""
    return write_quorum - ack_quorum + 1


def next_fragment_key(last_add_confirmed: int, last_key: int) -> tuple[int, bool]:
    """Return the first entry of the fragment that an ensemble change makes, and whether it replaces the last fragment.

    It is LAC + 1; where that is the last fragment's own first entry nothing was committed there, so the fragment's list
    is replaced, otherwise a fragment is appended. Earlier fragments never change.
    """
    key = last_add_confirmed + 1
    check(key >= last_key, f"an ensemble change at entry {key} lies before the last fragment's first entry {last_key}")
    return key, key == last_key


class QuorumCoverage:
    """Do the bookies of one ensemble that are known cover every write set, so that no ack quorum of others is left?

    Args:
        ensemble_size, write_quorum, ack_quorum: the ledger's E, W and A.
    """

    __slots__ = ("_ack_quorum", "_known", "_windows")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        validate_quorums(ensemble_size, write_quorum, ack_quorum)
        self._ack_quorum = ack_quorum
        self._known = 0
        self._windows = tuple(sum(1 << index for index in window) for window in write_sets(ensemble_size, write_quorum))

    def mark_known(self, index: int) -> None:
        """Note that the bookie at `index` gave a definite answer."""
        self._known |= 1 << index

    @property
    def covered(self) -> bool:
        """True once in every window fewer than A bookies are unknown."""
        known = self._known
        return all((window & ~known).bit_count() < self._ack_quorum for window in self._windows)
