"""Valid frames of both protocol versions, and what a hostile or broken peer makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from storage_node.protocol import v2
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_add_response,
    encode_auth_request,
    encode_auth_response,
    encode_bookie_info_request,
    encode_bookie_info_response,
    encode_error_response,
    encode_force_ledger_request,
    encode_list_entries_request,
    encode_list_entries_response,
    encode_read_lac_request,
    encode_read_lac_response,
    encode_read_request,
    encode_read_response,
    encode_start_tls_request,
    encode_write_lac_request,
    encode_write_lac_response,
)
from storage_node.protocol.schema import Status
from storage_node.protocol.wire import varint

KEY = bytes(range(20))
EDGES = (0, 1, -1, 2, 127, 128, 255, 256, 2**14, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 5 << 20)
Make = Callable[[random.Random], bytes]


def number(r: random.Random) -> int:
    """Draw an int64: often one that is there, sometimes one at an edge."""
    return r.choice(EDGES) if r.random() < 0.3 else r.randrange(0, 12)


def entry(r: random.Random, ledger_id: int, entry_id: int) -> bytes:
    lac = number(r) if r.random() < 0.3 else entry_id - 1
    fields = b"".join((value & (1 << 64) - 1).to_bytes(8, "big") for value in (ledger_id, entry_id, lac, 40))
    return fields + r.randbytes(r.choice((0, 4, 8, 20, 60, 300)))


def _add3(r: random.Random) -> bytes:
    ids = (number(r), number(r))
    body = entry(r, *ids)
    head, tail = encode_add_request(
        abs(number(r)),
        *ids,
        KEY if r.random() < 0.8 else r.randbytes(r.randrange(80)),
        len(body),
        recovery=r.random() < 0.2,
        deferred_sync=r.random() < 0.2,
        priority=r.choice((0, 0, 100)),
    )
    return head + body + tail


def _read3(r: random.Random) -> bytes:
    fence = r.random() < 0.2
    waits = r.random() < 0.3
    return encode_read_request(
        abs(number(r)),
        number(r),
        number(r) if r.random() < 0.7 else -1,
        master_key=KEY if fence and r.random() < 0.8 else None,
        fence=fence,
        previous_lac=number(r) if waits else None,
        timeout_ms=r.choice((0, 1, 5, -1, 2**63 - 1, None)) if waits else None,
        piggyback=waits and r.random() < 0.7,
        priority=r.choice((0, 0, 100)),
    )


def _other3(r: random.Random) -> bytes:
    txn = abs(number(r))
    return r.choice(
        (
            lambda: encode_read_lac_request(txn, number(r)),
            lambda: encode_write_lac_request(txn, number(r), number(r), KEY, entry(r, number(r), number(r))[:24]),
            lambda: encode_force_ledger_request(txn, number(r)),
            lambda: encode_bookie_info_request(txn, r.randrange(8)),
            lambda: encode_list_entries_request(txn, number(r)),
            lambda: encode_start_tls_request(txn),
            lambda: encode_auth_request(txn, "plugin", r.randbytes(r.randrange(40))),
        )
    )()


def _packet2(r: random.Random) -> bytes:
    version = r.choice((0, 1, 2, 2, 2, 2, 3, 255))
    kind = r.randrange(4)
    fence = r.random() < 0.2
    if kind == 0:
        body = entry(r, number(r), number(r))
        return v2.encode_add_request(KEY, len(body), recovery=r.random() < 0.2, version=version) + body
    if kind == 1:
        return v2.encode_read_request(number(r), number(r), master_key=KEY, fence=fence, version=version)
    if kind == 2:
        count, size = r.choice((0, 1, 5, -1, 2**31 - 1)), number(r)
        return v2.encode_batch_read_request(
            number(r),
            number(r),
            number(r),
            max_count=count,
            max_bytes=size,
            master_key=KEY,
            fence=fence,
            version=version,
        )
    return v2.encode_auth("plugin", r.randbytes(r.randrange(40)), version=version)


def _response3(r: random.Random) -> bytes:
    txn, status, ledger = abs(number(r)), r.choice(list(Status)), number(r)
    body = entry(r, ledger, number(r))
    head, tail = encode_read_response(txn, status, ledger, number(r), len(body), max_lac=number(r))
    return r.choice(
        (
            lambda: encode_add_response(txn, status, ledger, number(r)),
            lambda: head + body + tail,
            lambda: encode_read_response(txn, status, ledger, number(r), lac_update_timestamp_ms=number(r))[0],
            lambda: encode_read_lac_response(txn, status, ledger, body[:24], body),
            lambda: encode_write_lac_response(txn, status, ledger),
            lambda: encode_bookie_info_response(txn, status, abs(number(r)), abs(number(r))),
            lambda: encode_list_entries_response(txn, status, ledger, body),
            lambda: encode_auth_response(txn, status, "plugin", body),
            lambda: encode_error_response(txn, r.randrange(1, 13), status),
        )
    )()


def _response2(r: random.Random) -> bytes:
    status, ids = r.choice(list(Status)), (number(r), number(r))
    bodies = tuple(entry(r, *ids) for _ in range(r.randrange(4)))
    return r.choice(
        (
            lambda: v2.encode_add_response(status, *ids),
            lambda: v2.encode_read_response(status, *ids, len(KEY)) + KEY,
            lambda: b"".join(v2.encode_batch_read_response(status, *ids, number(r), bodies)),
            lambda: v2.encode_auth("plugin", KEY),
        )
    )()


REQUESTS: tuple[Make, ...] = (_add3, _add3, _read3, _read3, _other3, _packet2, _packet2)
RESPONSES: tuple[Make, ...] = (_response3, _response3, _response2)


def mutate(r: random.Random, frame: bytes) -> bytes:
    """Damage a frame's body: bits, cuts, repetitions, numbers at their edges, foreign fields, other lengths."""
    data = bytearray(frame)
    for _ in range(r.choice((1, 1, 1, 2, 4))):
        at = r.randrange(len(data)) if data else 0
        kind = r.randrange(9)
        if kind == 0 and data:
            data[at] ^= 1 << r.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + r.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = r.randbytes(r.randrange(1, 9))
        elif kind == 4:
            piece = data[at : at + r.randrange(1, 40)]
            data[at:at] = piece * r.choice((1, 1, 2, 50))
        elif kind == 5:
            data[at : at + 8] = (r.choice(EDGES) & (1 << 64) - 1).to_bytes(8, "big")
        elif kind == 6:
            data[at : at + r.randrange(3)] = varint(r.choice(EDGES))
        elif kind == 7:
            field, wire = r.choice((1, 2, 4, 5, 100, 101, 200, 2**28)), r.randrange(8)
            data[at:at] = varint(field << 3 | wire) + r.randbytes(r.randrange(10))
        else:
            data[at:at] = b"\x0b" * r.choice((1, 99, 150, 3000))  # groups within groups
    return bytes(data)


def body(r: random.Random, makes: tuple[Make, ...]) -> bytes:
    """Draw a frame's body: valid, damaged, or noise."""
    chance = r.random()
    if chance < 0.08:
        return r.randbytes(r.choice((0, 1, 3, 4, 8, 30, 100, 1000)))
    valid = r.choice(makes)(r)[4:]
    return valid if chance < 0.3 else mutate(r, valid)
