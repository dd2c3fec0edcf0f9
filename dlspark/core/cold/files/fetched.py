"""`FetchedFile`: the parts of a file that were fetched, as a file that Parquet's reader reads."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Mapping

from storage_node.protocol.frames import Buffer


class MissingRangeError(Exception):
    """A part of a file is needed that was not fetched."""


class FetchedFile(io.RawIOBase):
    """A file of `size` bytes, of which parts are there, by (offset, length)."""

    def __init__(self, parts: Mapping[tuple[int, int], Buffer], size: int) -> None:
        super().__init__()
        self._parts = sorted((offset, memoryview(data)) for (offset, _), data in parts.items())
        self._starts = [offset for offset, _ in self._parts]
        self._size = size
        self._at = 0

    def part(self, offset: int, length: int) -> memoryview:
        """Return a part, as a view. Raises MissingRangeError where it is not within one that was fetched."""
        index = bisect_right(self._starts, offset) - 1
        if index >= 0:
            start, data = self._parts[index]
            if offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        raise MissingRangeError(f"{length} bytes at {offset}")

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return bytes from where it is; to the end of the file where `size` is negative."""
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int | None = -1) -> memoryview:
        """Return bytes as `read` does, as a view of what was fetched: Arrow asks for them here where it can, so that no
        byte of a row group is copied before it is decompressed."""
        wanted = self._size - self._at if size is None or size < 0 else min(size, self._size - self._at)
        if wanted <= 0:
            return memoryview(b"")
        found = self.part(self._at, wanted)
        self._at += wanted
        return found
