"""Which page of a damaged chunk is damaged? Parquet's reader says that one is, and not which.

A chunk is a row of pages: a header in Thrift's compact protocol, and the page's bytes, of which the header has the size
and the CRC-32. The headers themselves have no checksum: one that cannot be read, or that is another page's length, is
taken for the damage; one that says something else wrong is not told from whole ones.

Source: Apache Parquet, parquet.thrift (PageHeader), and Apache Thrift, "Thrift compact protocol encoding".
"""

from __future__ import annotations

import zlib
from typing import Final

from storage_node.protocol.frames import Buffer

_SIZE, _CRC = 3, 4
"""Fields of a page's header."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MOST_DEPTH: Final = 8
"""How far fields of a header are nested: the statistics of a data page, in truth."""


def damaged_page(chunk: Buffer) -> int | None:
    """Return the number of the first damaged page of a column's chunk, dictionaries counted too, from 0; None where all
    pages are as their headers say."""
    data = memoryview(chunk)
    at = page = 0
    while at < len(data):
        header = _Header(data, at)
        try:
            fields = header.fields(0)
            size, crc = fields[_SIZE], fields[_CRC]
        except (IndexError, KeyError, ValueError):
            return page
        end = header.at + size
        if size < 0 or end > len(data) or zlib.crc32(data[header.at : end]) != crc & 0xFFFFFFFF:
            return page
        at, page = end, page + 1
    return None


class _Header:
    """Reads one structure; `at` is where it is. Raises IndexError or ValueError for what is none."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def fields(self, depth: int) -> dict[int, int]:
        """Return the numbers among the fields of a structure, by their ids, and pass over all others."""
        if depth > _MOST_DEPTH:
            raise ValueError("a header is nested too deep")
        found: dict[int, int] = {}
        last = 0
        while True:
            byte = self._byte()
            if byte == 0:
                return found
            last = last + (byte >> 4) if byte >> 4 else self._number()
            if byte & 0xF in (_I16, _I32, _I64):
                found[last] = self._number()
            else:
                self._pass_over(byte & 0xF, depth)

    def _pass_over(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.at += 1
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            self.at += self._varint()
        elif kind == _STRUCT:
            self.fields(depth + 1)
        else:
            raise ValueError(f"a header has a field of kind {kind}")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found
            if shift > 63:
                raise ValueError("a number has no end")

    def _number(self) -> int:
        found = self._varint()
        return found >> 1 ^ -(found & 1)
