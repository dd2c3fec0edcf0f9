"""The bookie's bytes on disk, and the pure parts that read and write them."""

from __future__ import annotations

import sys
from array import array

import pytest
from helpers.bookie.harness import availability
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from metadata.foundation.errors import InvariantViolation
from storage_node.bookie.disk import records as r
from storage_node.bookie.disk.records import BLOCK, Slab, SlabPool, aligned_memory
from storage_node.bookie.journal.batches import Batch
from storage_node.bookie.journal.files import (
    BatchHeader,
    JournalOwner,
    file_header,
    file_name,
    parse_batch_header,
    parse_file_header,
    parse_file_name,
)
from storage_node.bookie.journal.replay import JournalMark
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.checkpoints import Checkpoint
from storage_node.bookie.store.contents import Ledger
from storage_node.bookie.store.index import LedgerIndex, NewPlaces, parse_sidecar
from storage_node.protocol.digests import crc32

ids = st.integers(0, 2**63 - 1)


def stream(bodies: list[tuple[int, int, int, bytes]]) -> bytes:
    out = b""
    for kind, ledger, number, body in bodies:
        out += r.header(kind, ledger, number, body) + body
        out = out.ljust(r.aligned(len(out)), b"\xee")
    return out


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=12), st.integers(0, 3))
def test_a_batchs_sum_is_that_of_its_bytes_whichever_bodies_sums_it_was_given(
    bodies: list[tuple[bytes, bool]], before: int
) -> None:
    slab = Slab(aligned_memory(2 * BLOCK), 1, 0)
    slab.view[:] = b"\xee" * (2 * BLOCK)  # what an earlier use left between the records counts too
    at = before * r.ALIGN
    batch = Batch(slab, at)
    for body, known in bodies:
        record = r.header(r.ENTRY, 7, 9, body) + body
        slab.view[at : at + len(record)] = record
        if known:
            batch.cover(at + r.HEADER_BYTES, crc32(body, 0), len(body))
        at += r.aligned(len(record))
        batch.end = at
    assert batch.records_sum() == crc32(slab.view[batch.start : batch.end], 0)


@given(st.lists(st.tuples(st.sampled_from([r.ENTRY, r.LEDGER, r.LAC]), ids, ids, st.binary(max_size=90)), max_size=8))
def test_records_are_found_again_in_order(wanted: list[tuple[int, int, int, bytes]]) -> None:
    found = list(r.scan(memoryview(stream(wanted))))
    assert all(not isinstance(record, int) and record.intact for record in found)
    assert [(x.kind, x.ledger_id, x.entry_id, bytes(x.body)) for x in found if not isinstance(x, int)] == wanted


@given(st.binary(min_size=1, max_size=90), st.data())
def test_a_flipped_bit_in_a_record_is_seen_and_costs_no_other_record_if_it_is_in_the_body(
    body: bytes, data: st.DataObject
) -> None:
    whole = bytearray(stream([(r.ENTRY, 1, 2, body), (r.ENTRY, 1, 3, b"next")]))
    bit = data.draw(st.integers(0, (32 + len(body)) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    found = list(r.scan(memoryview(whole)))
    if bit < 32 * 8:
        assert found == [0]
    else:
        first, second = found
        assert not isinstance(first, int)
        assert not isinstance(second, int)
        assert (first.intact, second.intact, bytes(second.body)) == (False, True, b"next")
    assert r.read_record(memoryview(whole), 1, 2) is None


def test_pads_are_stepped_over_and_another_entry_is_not_taken_for_the_one_wanted() -> None:
    one = stream([(r.ENTRY, 1, 2, b"body")])
    data = one + r.pad_header(4096 - len(one)) + b"\xaa" * (4096 - len(one) - 32) + stream([(r.ENTRY, 1, 3, b"x")])
    assert [record.offset for record in r.scan(memoryview(data)) if not isinstance(record, int)] == [0, 4096]
    assert r.read_record(memoryview(data), 1, 2) == b"body"
    assert r.read_record(memoryview(data), 1, 3) is None
    assert r.read_record(memoryview(data)[:34], 1, 2) is None


def test_a_ledger_records_body_keeps_key_and_fence() -> None:
    assert r.parse_ledger_body(memoryview(r.ledger_body(b"k" * 20, True))) == (b"k" * 20, True)
    assert r.parse_ledger_body(memoryview(r.ledger_body(b"", False))) == (b"", False)


def test_batch_headers_of_another_generation_or_with_a_flipped_bit_are_none() -> None:
    header = BatchHeader(8192, 7, 99, 97, 8192, 64, 5000, 0x1234)
    data = header.encode()
    assert parse_batch_header(data, 0, 8192, 7) == header
    assert parse_batch_header(data, 0, 8192, 6) is None
    for bit in range(52 * 8):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert parse_batch_header(bytes(spoiled), 0, 8192, 7) is None
    assert parse_batch_header(data[:50], 0, 0, 7) is None


def test_file_headers_and_names_round_trip() -> None:
    owner = JournalOwner(b"node tag", 1, 3)
    assert parse_file_header(file_header(12, owner)) == (12, owner)
    assert len(file_header(12, owner)) == BLOCK
    assert parse_file_header(bytes(BLOCK)) is None
    assert parse_file_header(b"") is None
    assert parse_file_name(file_name(0xABC)) == 0xABC
    assert [parse_file_name(n) for n in ("VERSION", "spare-0000000000000001.log", "journal-zz.log")] == [None] * 3
    assert parse_file_name("journal-000000000000000g.log") is None


entry_ids = st.integers(0, 5000) | st.integers(10**9, 10**9 + 50)


@given(st.lists(st.tuples(entry_ids, st.integers(1, 3)), max_size=80))
def test_the_index_equals_a_dict(puts: list[tuple[int, int]]) -> None:
    index, model = LedgerIndex(), {}
    for place, (entry_id, log_id) in enumerate(puts):
        assert index.put(entry_id, log_id, place, place + 60) == model.get(entry_id), "what is overwritten is told"
        model[entry_id] = (log_id, place, place + 60)
    assert index.last == max(model, default=-1)
    for entry_id in {*model, 0, 1, 4999, 10**9}:
        assert index.get(entry_id) == model.get(entry_id)
    listed = [e for first, last in index.ranges() for e in range(first, last + 1)]
    assert listed == sorted(model)
    by_log = {1: 0, 2: 0, 3: 0}
    for log_id, size in index.bytes_by_log():
        by_log[log_id] += size
    assert by_log == {log_id: sum(p[2] for p in model.values() if p[0] == log_id) for log_id in by_log}


def test_an_entry_takes_twelve_bytes_of_the_index() -> None:
    index = LedgerIndex()
    for entry_id in range(100_000):
        index.put(entry_id, 1 + entry_id // 30_000, entry_id, 100)
    assert not index._strays
    taken = sum(array_.buffer_info()[1] * array_.itemsize for array_ in (index._logs, index._places, index._sizes))
    assert taken == 12 * 100_000
    assert sum(map(sys.getsizeof, (index._logs, index._places, index._sizes))) < 14 * 100_000
    assert sum(size for _, size in index.bytes_by_log()) == 100 * 100_000


@given(st.lists(st.tuples(st.integers(1, 3), entry_ids), max_size=60), st.integers(0, 60))
def test_a_sidecar_says_what_was_put_block_by_block(puts: list[tuple[int, int]], cut: int) -> None:
    first, second, model = NewPlaces(), NewPlaces(), {}
    for place, (ledger_id, entry_id) in enumerate(puts):
        (first if place < cut else second).put(ledger_id, entry_id, place, 50 + place)
        model[(ledger_id, entry_id)] = (9, place, 50 + place)
    sidecar = first.block(9, 0, 4096) + second.block(9, 4096, 12288)
    parsed = parse_sidecar(sidecar + b"torn", 9, 12288)
    assert parsed is not None
    assert parsed[1] == len(sidecar)
    indexes: dict[int, LedgerIndex] = {}
    for ledger_id, start, places, sizes in parsed[0]:
        index = indexes.setdefault(ledger_id, LedgerIndex())
        known = [index.get(start + at) for at, size in enumerate(sizes) if size]
        assert index.put_run(start, 9, places, sizes) == [place for place in known if place is not None]
    assert {(led, e): indexes[led].get(e) for led, e in model} == model
    assert sum(1 for i in indexes.values() for a, b in i.ranges() for _ in range(a, b + 1)) == len(model)


def test_a_sidecar_that_is_cut_spoiled_or_of_another_log_is_none() -> None:
    new = NewPlaces()
    new.put(1, 0, 3, 100)
    block = new.block(5, 0, 4096)
    assert parse_sidecar(block, 5, 4096) is not None
    assert parse_sidecar(block, 6, 4096) is None
    assert parse_sidecar(block, 5, 8192) is None
    assert parse_sidecar(block[:-1], 5, 4096) is None
    assert parse_sidecar(b"", 5, 4096) is None
    for bit in range(len(block) * 8):
        spoiled = bytearray(block)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert parse_sidecar(bytes(spoiled), 5, 4096) is None


def test_runs_that_follow_each_other_are_joined_in_the_index() -> None:
    index = LedgerIndex()
    index.put_run(10, 1, array("I", [1, 2]), array("I", [60, 60]))
    index.put_run(12, 2, array("I", [7, 0, 9]), array("I", [60, 0, 60]))
    assert [index.get(e) for e in (10, 12, 13, 14)] == [(1, 1, 60), (2, 7, 60), None, (2, 9, 60)]
    assert list(index.ranges()) == [(10, 12), (14, 14)]


def test_a_checkpoint_keeps_everything_and_damage_anywhere_is_seen() -> None:
    ledger = Ledger(77, b"k" * 20)
    ledger.fenced, ledger.lac, ledger.explicit_lac = True, 41, b"packet"
    bare = Ledger(3)
    taken = Checkpoint(9, (JournalMark(4, 8192, 1000), JournalMark(7, 4096, 3)), 12, {1: 4096, 11: 99968}, True, True)
    data = checkpoints.encode(taken, [ledger.encode(), bare.encode()])
    decoded = checkpoints.decode(data)
    assert decoded is not None
    assert decoded[0] == taken
    again = decoded[1][77]
    assert (again.master_key, again.fenced, again.lac, again.explicit_lac) == (b"k" * 20, True, 41, b"packet")
    assert decoded[1][3].master_key is None
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 0x10
        assert checkpoints.decode(bytes(spoiled)) is None
    assert checkpoints.decode(b"") is None


def test_the_listing_is_the_vector_of_the_wire_page() -> None:
    assert availability([(0, 4), (10, 10)]).hex() == vectors("wire.md")["list of entries 0 to 4 and 10"].hex()


def test_slabs_are_reused_only_when_written_and_unread() -> None:
    evicted: list[Slab] = []
    pool = SlabPool(1 << 20, 2, evicted.append)
    one, two = pool.take(1, 0), pool.take(1, 1 << 20)
    assert one is not None
    assert two is not None
    assert pool.take(1, 2 << 20) is None
    with pytest.raises(InvariantViolation):
        one.reclaim()
    one.sealed = two.sealed = True
    reader = one.view[10:20]
    three = pool.take(1, 2 << 20)
    assert evicted == [two], "the older one is being read"
    assert three is not None
    three.sealed = True
    three.end = 4096
    four = pool.take(1, 3 << 20)
    assert evicted == [two, one], "nothing else was settled: it is left to its reader"
    assert bytes(reader) == bytes(10)
    assert four is not None
    reader.release()


def test_slabs_may_go_beyond_the_limit_where_nothing_may_be_refused() -> None:
    pool = SlabPool(1 << 20, 1, lambda slab: None)
    assert pool.take(1, 0) is not None
    assert pool.take(1, 1 << 20) is None
    assert pool.take(1, 1 << 20, beyond_limit=True) is not None
