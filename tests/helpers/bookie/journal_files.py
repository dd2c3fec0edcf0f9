"""The files of a journal: where their batches lie, and what a damaged disk makes of them."""

from __future__ import annotations

from pathlib import Path

from storage_node.bookie.journal.files import parse_batch_header, parse_file_name


def flip(path: Path, offset: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(bytes(data))


def batches(path: Path) -> list[tuple[int, int]]:
    """Yield (offset, sequence) of the live batches of a journal file."""
    data, file_id = path.read_bytes(), parse_file_name(path.name) or 0
    found = (parse_batch_header(data, at, at, file_id) for at in range(0, len(data), 4096))
    return [(batch.offset, batch.sequence) for batch in found if batch is not None]
