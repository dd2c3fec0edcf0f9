"""Entries of a log, and what becomes of their bytes: good ones of every kind, and those with some of it changed."""

from __future__ import annotations

import random

from dlspark.core.codec.entries import ENVELOPE_BYTES, Compression, EntryBuilder, encode_record_set
from dlspark.core.codec.records import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    HEADER,
    MAX_POSITION,
    MAX_TXID,
    POSITION_SHIFT,
)

SPECIAL = (0, 1, 2, 4, 7, 0x7F, 0x80, 0xFF)
"""Bytes that mean something in headers: flags, signs, what counts as zero."""


def drawn_entry(draw: random.Random, *, enveloped: bool) -> bytes:
    """Return a good entry of a few records; most are of users, as in a log."""
    builder = EntryBuilder(Compression.LZ4 if draw.random() < 0.1 else Compression.NONE, enveloped=enveloped)
    position = draw.choice((1, 7, 70_000, MAX_POSITION - 40))
    length = draw.choice((0, 3, 20, 90))
    equal = draw.random() < 0.4
    unusual = draw.random() < 0.15
    for number in range(draw.choice((1, 1, 2, 5, 17))):
        payload = draw.randbytes(length if equal else draw.randrange(2 * length + 1))
        kind = draw.random()
        if unusual and kind < 0.2:
            members = [b"", payload]
            builder.add(number, encode_record_set(members, draw.choice(list(Compression))), position, FLAG_RECORD_SET)
            position += 2
        elif unusual and kind < 0.3:
            builder.add(MAX_TXID, b"endOfStream", position, FLAG_END_OF_STREAM)
        elif kind < 0.15:
            builder.add(number, b"control", position, FLAG_CONTROL)
        else:
            builder.add(draw.randrange(MAX_TXID) if kind > 0.8 else number, payload, position)
            position += 1
    return b"".join(builder.finish().buffers)


def mutated(draw: random.Random, good: bytes) -> bytes:
    """Return the bytes with something changed that damage, or an attacker, changes."""
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        kind, at = draw.randrange(9), draw.randrange(len(data)) if data else 0
        if kind == 0 or not data:
            data[at:at] = draw.randbytes(draw.choice((1, 4, 20)))
        elif kind == 1:
            data[at] = draw.choice(SPECIAL)
        elif kind == 2:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + draw.choice((1, 4, 20))]
        elif kind == 5:
            # A header of any values, over what is there.
            word = draw.choice((0, 1, MAX_POSITION, MAX_POSITION + 1)) << POSITION_SHIFT | draw.choice((0, 1, 2, 4, 8))
            length = draw.choice((0, 1, len(data), 2**31 - 1, 2**31, 2**32 - 1))
            data[at : at + HEADER.size] = HEADER.pack(word, draw.choice((0, -1, MAX_TXID)), length)
        elif kind < 8:
            # The first record's word alone, in an envelope or without one: all else still fits.
            position = draw.choice((0, MAX_POSITION, MAX_POSITION + 1, 2**32 - 1))
            start, word = draw.choice((0, ENVELOPE_BYTES)), position << POSITION_SHIFT | draw.choice((0, 0, 1, 8))
            data[start : start + 8] = word.to_bytes(8, "big")
        else:
            data[at:at] = data[: draw.randrange(len(data)) + 1]
    return bytes(data)
