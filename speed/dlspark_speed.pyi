"""The functions of the compiled core. `metadata.foundation.compiled` says which have to be there."""

from collections.abc import Sequence
from typing import Final

from _typeshed import ReadableBuffer, WriteableBuffer

INTERFACE: Final[int]
"""Grows with every change of a function that is there already."""
__version__: Final[str]

def measure_records(contents: Sequence[ReadableBuffer], hidden: int) -> tuple[int, int] | None:
    """Return how many records `contents` have, without those that have one of the flags `hidden`, and their payload
    bytes; None where it is for the twin to say."""

def record_columns(
    contents: Sequence[ReadableBuffer],
    entry_ids: Sequence[int],
    hidden: int,
    start_sequence_id: int,
    numbers: Sequence[WriteableBuffer],
    offsets: WriteableBuffer,
    payload: WriteableBuffer,
) -> bool:
    """Write the columns of the records that were counted: `numbers` are arrays of 64 bits for entry ids, slots,
    transaction ids, positions, sequence ids and flags, `offsets` are of 32 bits. Return whether all of them are full
    and nothing was left: otherwise what is in them is of no use."""

def append_adds(
    frames: Sequence[ReadableBuffer], slab: WriteableBuffer, start: int, end: int, place: int
) -> tuple[int, int, int, int, bytes, list[bytes], bytes, bytes] | None:
    """Write the entries of the adds in `frames` as records into `slab`, from `start` on and not beyond `end`, as far as
    they are a run; `place` is the first one's offset in its log / 32. Return where they end, ledger id, first entry id,
    highest LAC, key, the answers, and as arrays of uint32 the places and sizes of the records; None where not even the
    first one is part of a run."""
