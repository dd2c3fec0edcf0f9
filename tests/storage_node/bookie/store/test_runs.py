"""Runs of adds, by Python and by the compiled core: the same results on the same frames, whatever they hold."""

from __future__ import annotations

import mmap
import random

import pytest
from helpers.bookie.harness import KEY, entry

from metadata.foundation import compiled
from storage_node.bookie.disk.records import ALIGN, Record, Slab, scan
from storage_node.bookie.store import runs
from storage_node.bookie.store.runs import SMALL_BYTES, StoredRun, append_adds
from storage_node.protocol.digests import ENTRY_HEADER
from storage_node.protocol.encoding import encode_add_request, encode_add_response
from storage_node.protocol.layouts import decode_add_and_answer

SLAB_BYTES = 256 * 1024


def frame(txn_id: int, body: bytes, key: bytes = KEY, **options: bool) -> bytes:
    """Return the frame of an add, without its length."""
    ledger, number = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big")
    head, tail = encode_add_request(txn_id, ledger, number, key, len(body), **options)
    return (head + body + tail)[4:]


def slab_at(end: int) -> Slab:
    slab = Slab(mmap.mmap(-1, SLAB_BYTES), 3, 5 * SLAB_BYTES)
    slab.end = end
    return slab


def by_python(frames: list[memoryview], slab: Slab) -> StoredRun | None:
    room = min(slab.size, slab.end + runs.RUN_BYTES)
    return runs._append(frames, slab, room, (slab.base + slab.end) // ALIGN, decode_add_and_answer)


def parts(run: StoredRun | None, slab: Slab) -> object:
    """Return all that a run says, and the bytes that it wrote."""
    if run is None:
        return None
    told = (run.end, run.ledger_id, run.first, run.lac, run.key, run.answers, run.places, run.sizes)
    records = [r for r in scan(slab.view[slab.end : run.end]) if isinstance(r, Record)]
    return told, [(r.kind, r.ledger_id, r.entry_id, r.offset, bytes(r.body), r.intact) for r in records]


def frames_of(rng: random.Random) -> list[memoryview]:
    """Return the frames of some adds in order, with one or the other that is damaged, out of order or unusual."""
    ledger_id = rng.choice((0, 5, 200, 2**40, 2**63 - 1))
    first = rng.choice((0, 1, 126, 16_380, 2**31, 2**63 - 4))
    txn_id = rng.choice((0, 1, 127, 2**14, 2**35, 2**63 - 1000))
    frames = []
    for number in range(rng.randrange(1, 8)):
        lac = rng.randrange(-1, first + number + 1)
        size = rng.choice((0, 1, 31, 32, 100, SMALL_BYTES - 40, SMALL_BYTES - 39))
        entry_id = min(first + number, 2**63 - 1)
        body = ENTRY_HEADER.pack(ledger_id, entry_id, lac, size) + bytes(size)
        one = bytearray(frame(txn_id + number, body))
        odd = rng.random()
        if odd < 0.08:
            one[rng.randrange(min(90, len(one)))] = rng.randrange(256)
        elif odd < 0.12:
            del one[rng.randrange(len(one)) :]
        elif odd < 0.14:
            one += bytes(rng.randrange(1, 9))
        elif odd < 0.2:
            body = rng.choice((entry(ledger_id, 7), entry(ledger_id, -1), entry(3, first % 1000), body[:23]))
            key = rng.choice((KEY, bytes(20), bytes(19)))
            recovery, deferred = rng.random() < 0.2, rng.random() < 0.2
            one = bytearray(frame(txn_id, body, key, recovery=recovery, deferred_sync=deferred))
        frames.append(memoryview(one))
    return frames


def test_a_run_is_what_came_in_order() -> None:
    slab, bodies = slab_at(64), [entry(5, number, b"x" * number, lac=number - 2) for number in range(10, 14)]
    run = append_adds([memoryview(frame(70 + n, body)) for n, body in enumerate(bodies)], slab, decode_add_and_answer)
    assert run is not None
    assert (run.ledger_id, run.first, run.lac, run.key) == (5, 10, 11, KEY)
    assert run.answers == [encode_add_response(70 + n, 0, 5, 10 + n) for n in range(4)]
    found = [r for r in scan(slab.view[64 : run.end]) if isinstance(r, Record)]
    assert [(r.entry_id, bytes(r.body), r.intact) for r in found] == [
        (n, body, True) for n, body in enumerate(bodies, 10)
    ]
    assert [place * ALIGN - slab.base for place in run.places] == [64 + r.offset for r in found]
    assert list(run.sizes) == [r.size for r in found]
    assert run.body_bytes == sum(map(len, bodies))
    assert slab.end == 64  # nothing counts before its caller says so


@pytest.mark.parametrize(
    "odd",
    [
        frame(2, entry(5, 12)),
        frame(2, entry(6, 11)),
        frame(2, entry(5, 11), bytes(20)),
        frame(2, entry(5, 11), recovery=True),
        frame(2, entry(5, 11), deferred_sync=True),
        frame(2, entry(5, 11, bytes(SMALL_BYTES))),
        frame(2, entry(5, 11)[:23]),
        frame(2, entry(5, 11)) + b"\0",
        frame(2, entry(5, 11))[:-1],
        b"",
    ],
    ids=["gap", "ledger", "key", "recovery", "deferred", "large", "short", "longer", "cut", "empty"],
)
def test_a_run_ends_before_what_is_not_ordinary(odd: bytes) -> None:
    slab = slab_at(0)
    frames = [memoryview(one) for one in (frame(1, entry(5, 10)), odd, frame(3, entry(5, 11)))]
    run = append_adds(frames, slab, decode_add_and_answer)
    assert run is not None
    assert (run.first, len(run.answers)) == (10, 1)


def test_what_follows_a_run_is_not_looked_at() -> None:
    """Where adds of several ledgers take turns, each call would otherwise go through all that are left."""
    gone = memoryview(b"never read")
    gone.release()
    run = append_adds(
        [memoryview(frame(1, entry(5, 10))), memoryview(frame(2, entry(6, 10))), gone],
        slab_at(0),
        decode_add_and_answer,
    )
    assert run is not None
    assert (run.ledger_id, len(run.answers)) == (5, 1)


def test_a_run_ends_where_the_slab_does() -> None:
    frames = [memoryview(frame(n, entry(5, n, bytes(1000)))) for n in range(10)]
    one = SLAB_BYTES - 3 * 1088 - 64
    run = append_adds(frames, slab_at(one), decode_add_and_answer)
    assert run is not None
    assert (len(run.answers), run.end) == (3, one + 3 * 1088)
    assert append_adds(frames, slab_at(SLAB_BYTES), decode_add_and_answer) is None


@pytest.mark.skipif(compiled.core is None, reason="the compiled core is not in use here")
@pytest.mark.timeout(0)  # as many rounds as one has patience for
def test_the_compiled_core_makes_the_same_runs(rounds: int | None) -> None:
    """2,000 times some frames in the ordinary run, `--rounds` times a thousand otherwise."""
    rng, lengths = random.Random(34), set()
    for _ in range(1000 * rounds if rounds else 2000):
        frames = frames_of(rng)
        end = rng.choice((0, 32, 4096, SLAB_BYTES - 2048, SLAB_BYTES - 32, SLAB_BYTES))
        one, other = slab_at(end), slab_at(end)
        run = append_adds(frames, one, decode_add_and_answer)
        assert parts(run, one) == parts(by_python(frames, other), other)
        lengths.add(0 if run is None else len(run.answers))
    assert lengths == set(range(8))
