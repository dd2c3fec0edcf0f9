"""A look at an installed dlspark-speed by itself: a few vectors, on memory of every kind, before and after a fork.

It needs nothing besides, so that one wheel can be tried on every Python that it is for:

    python3.10 -m venv /tmp/venv
    /tmp/venv/bin/pip install build/speed/*.whl
    /tmp/venv/bin/python speed/check_wheel.py
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
import sys
import zlib
from array import array

import dlspark_speed as core

HEADER = struct.Struct(">QqI")
RECORDS = (
    HEADER.pack(1 << 16, 1001, 5) + b"hello" + HEADER.pack(1 << 16 | 1, 1001, 0) + HEADER.pack(2 << 16, 1002, 2) + b"wo"
)


class Made:
    """What records are made as here."""

    __slots__ = ("payload", "position", "shared", "txid")


FIELDS = [vars(Made)[name] for name in ("shared", "payload", "position", "txid")]
ENTRY = struct.pack(">qqqq", 5, 10, -1, 3) + b"abc"
ADD = bytes.fromhex("0a06080310021846aa063f0805100a1a14") + b"k" * 20 + b"\x22\x23" + ENTRY
"""A storage node's request number 70: this entry of ledger 5, with a key of 20 bytes."""
ADDED = bytes.fromhex("000000130a060803100218461000aa060608001005180a")
WRITES = [
    bytes.fromhex("010200000000000000000007000000000000000000036c6f6700000001000000056669727374"),
    bytes.fromhex("010200000000000000000008000000000000000000036c6f67000000010000000132"),
]
"""A proxy's requests number 7 and 8: one record each into the stream "log"."""


def kinds(data: bytes) -> list[object]:
    """Return the bytes as objects of every kind that has some."""
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    return [data, bytearray(data), memoryview(data), memoryview(b"x" + data + b"y")[1:-1], array("B", data), mapped]


def check_records() -> None:
    """Columns of three records, one of which is a control record, and their bytes again."""
    for one in kinds(RECORDS):
        if core.measure_records([one, b""], 1) != (2, 7):
            raise AssertionError(type(one))
        numbers = [array("q", [0, 0]) for _ in range(6)]
        offsets, payload = array("i", [0, 0, 0]), bytearray(7)
        if not core.record_columns([one], [17], 1, 100, numbers, offsets, payload):
            raise AssertionError(type(one))
        found = [list(column) for column in numbers]
        expected = [[17, 17], [0, 2], [1001, 1002], [1, 2], [100, 101], [0, 0]]
        if (found, list(offsets), payload) != (expected, [0, 5, 7], b"hellowo"):
            raise AssertionError((found, offsets, payload))
        payload.append(0)  # refused by Python as long as a view of it is held
    headers, records = RECORDS[:20] + RECORDS[45:65], bytearray(47)
    if not core.lay_out_records(headers, array("q", [0, 5, 7]), b"hellowo", records):
        raise AssertionError(records)
    if records != RECORDS[:25] + RECORDS[45:]:
        raise AssertionError(records)
    columns = [array("q", [17, 17]), array("q", [0, 2]), array("q", [1, 2]), array("q", [0, 0]), array("q", [8, 9])]
    made = core.make_records(Made, FIELDS, (3, 100), columns, array("i", [0, 5, 7]), b"hellowo")
    found = [(one.shared, one.payload, one.position, one.txid) for one in made]
    if found != [((3, 17, 100, 0, 1, 1), b"hello", 1, 8), ((3, 17, 100, 0, 1, 0), b"wo", 2, 9)]:
        raise AssertionError(found)
    for damaged in (RECORDS[:-1], RECORDS[:19], RECORDS[:16] + b"\xff" + RECORDS[17:]):
        if core.measure_records([damaged], 0) is not None:
            raise AssertionError(damaged)


def check_digests() -> None:
    """Both checksums: CRC32 as zlib has it, CRC32C as its check value says (123456789: e3069283)."""
    head = struct.pack(">qqqq", 1, 2, -1, 9)
    for one in kinds(b"123456789"):
        packed = core.package_entry(8, (1, 2, -1, 9), (one,))
        if packed != head + zlib.crc32(head + b"123456789").to_bytes(8, "big"):
            raise AssertionError(packed)
        if core.verify_entry(8, 1, 2, packed + bytes(one)) != (2, -1, 9):
            raise AssertionError(type(one))
    numbers = b"12345678", b"90123456", b"78901234", b"56789012"
    packed = core.package_entry(4, tuple(int.from_bytes(eight, "big") for eight in numbers), (b"3456789",))
    if packed is None or core.verify_entry(4, int.from_bytes(numbers[0], "big"), None, packed + b"3456789") is None:
        raise AssertionError(packed)
    if core.verify_entry(4, 1, None, packed + b"3456788") is not None:
        raise AssertionError(packed)
    if crc32c(b"123456789") != 0xE306_9283 or int.from_bytes(packed[32:], "big") != crc32c(
        b"".join(numbers) + b"3456789"
    ):
        raise AssertionError(packed)


def check_requests() -> None:
    """Make an add: its entry is the one that the digests' function makes, and its answer is announced."""
    for one in kinds(b"123456789"):
        found = core.encode_adds(8, (7, 1), (b"k" * 20, b"", b""), [(2, -1, 9, 9, (one,))])
        header = core.package_entry(8, (7, 2, -1, 9), (one,))
        if found is None or header is None or found[2:] != (header, len(found[1])):
            raise AssertionError(found)
        if not found[0].endswith(header + b"123456789") or len(found[0]) != 4 + int.from_bytes(found[0][:4], "big"):
            raise AssertionError(found)


def check_runs() -> None:
    """Store an add behind another's place, and take two writes by columns."""
    for one in kinds(ADD):
        region = bytearray(4096)
        found = core.append_adds([one], region, 2)
        key, places, sizes = b"k" * 20, array("I", [2]).tobytes(), array("I", [67]).tobytes()
        if found != (96, 5, 10, -1, key, [ADDED], places, sizes) or region[32:67] != ENTRY or any(region[67:]):
            raise AssertionError((found, region[:96]))
        if core.append_adds([one], bytearray(95), 2) is not None:
            raise AssertionError(type(one))
    for first, second in zip(kinds(WRITES[0]), kinds(WRITES[1]), strict=True):
        found = core.take_writes([first, second, ADD], 0, 100)
        if found != (b"log", [7, 8], [b"first", b"2"], 6, True):
            raise AssertionError(found)
        if core.take_writes([first, ADD], 0, 100) is not None:
            raise AssertionError(type(first))


def crc32c(data: bytes) -> int:
    """Return CRC-32C, bit by bit."""
    value = 0xFFFF_FFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F6_3B78 if value & 1 else 0)
    return value ^ 0xFFFF_FFFF


def main() -> int:
    """Check here and in a child."""
    checks = check_records, check_digests, check_requests, check_runs
    for check in checks:
        check()
    child = os.fork()
    if not child:
        for check in checks:
            check()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        return 1
    print(f"dlspark-speed {core.__version__}, interface {core.INTERFACE}: right on Python {platform.python_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
