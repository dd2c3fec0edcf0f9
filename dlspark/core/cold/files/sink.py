"""`ChecksummedSink`: what Parquet's writer writes to, which passes it on and remembers checksums of its beginnings.

Only what is written between `passing(True)` and `passing(False)` is passed on at once: the writer's footer is kept
until it has its seal, and a writer that is given up writes a footer when it is collected as garbage, which must not
reach anybody.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable
from typing import Final

from dlspark.core.cold.files.checksums import crc_between
from metadata.foundation.errors import check
from storage_node.protocol.frames import Buffer

_LARGEST: Final = 1 << 20
"""Bytes of one piece that is passed on."""


class ChecksummedSink(io.RawIOBase):
    """A file that is only written, from its first byte to its last."""

    def __init__(self, sink: Callable[[bytes], object]) -> None:
        super().__init__()
        self._sink = sink
        self._size = 0
        self._crc = 0
        self._crcs = {0: 0}
        """Checksums of the beginnings of the file that end where a piece was written."""
        self._sha256 = hashlib.sha256()
        self._passing = False
        self._kept: list[bytes] = []

    def passing(self, passed: bool) -> None:
        """Pass on what is written from now on, or keep it."""
        self._passing = passed

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written, kept ones included."""
        return self._size

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        """Take more bytes."""
        piece = bytes(data)
        self._size += len(piece)
        if self._passing:
            self._crc = zlib.crc32(piece, self._crc)
            self._crcs[self._size] = self._crc
            self._pass(piece)
        else:
            self._kept.append(piece)
        return len(piece)

    def take_kept(self) -> bytes:
        """Return what was written and not passed on."""
        kept, self._kept = b"".join(self._kept), []
        return kept

    def end(self, tail: bytes) -> str:
        """Pass on the end of the file, and return the SHA-256 of all that was passed on, hexadecimal."""
        self._pass(tail)
        return self._sha256.hexdigest()

    def crc_of(self, offset: int, length: int) -> int:
        """Return the CRC-32 of a part of what was passed on, which begins and ends where pieces did."""
        before, upto = self._crcs.get(offset), self._crcs.get(offset + length)
        check(before is not None and upto is not None, "a column's chunk does not end where Parquet's writer stopped")
        return crc_between(before or 0, upto or 0, length)

    def _pass(self, piece: bytes) -> None:
        self._sha256.update(piece)
        for at in range(0, len(piece), _LARGEST):
            self._sink(piece[at : at + _LARGEST])
