"""What a new owner keeps, expands and reads of what clients wrote has bounds in bytes, and others have their turns."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest

from dlspark.core.codec.entries import Compression, encode_record_set
from dlspark.core.writing import segment_ends

MIB = 1 << 20


class Peak:
    """The most memory that was taken at once."""

    def __enter__(self):
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def requests(writer, *, count, size=20, producers=1, first=0):
    """`count` requests of `producers` producers, in turn."""
    for number in range(first, first + count):
        yield writer.append(
            [(number, bytes(size))], producer=f"p{number % producers}", epoch=0, sequence=number // producers
        )


async def known(namespace, name, **settings):
    """What a new owner knows of the log's producers, without the times at which they were seen; and where its last
    record is."""
    log = await namespace.open_log(name, settings)
    writer = await log.open_writer(producers=True)
    try:
        return states(writer), writer._issuer.requests._last
    finally:
        await writer.abort()
        await log.close()


def states(writer):
    found = writer._issuer.requests.producers
    return {name: (found.state(name).epoch, found.state(name).last, found.state(name).kept) for name in found.names()}


async def test_record_sets_behind_the_snapshot_are_not_expanded(memory_cluster):
    log = await (await memory_cluster.namespace()).open_log("bomb")
    writer = await log.open_writer(producers=True)
    encoded = encode_record_set([bytes(4_000)] * 4_000, Compression.LZ4)
    for number in range(8):
        written = writer.write_encoded_set(number, encoded)
        await writer.flush()
    last = await written
    await writer.abort()
    heir = await memory_cluster.namespace()
    with Peak() as peak:
        found = await known(heir, "bomb")
    assert peak.bytes < 8 * MIB, "each of the sets holds 16 MB"
    assert found[1] == last._replace(slot_id=last.slot_id + 3_999)


async def test_large_entries_behind_the_snapshot_are_read_up_to_a_bound_and_not_kept(memory_cluster):
    log = await (await memory_cluster.namespace(producer_snapshot_bytes=4 * MIB)).open_log("large")
    writer = await log.open_writer(producers=True)
    for future in requests(writer, count=40, size=900_000):
        await asyncio.gather(future, writer.flush())
    expected = states(writer)
    await writer.abort()
    heir = await memory_cluster.namespace()
    with Peak() as peak:
        found, _ = await known(heir, "large")
    assert found == expected
    assert heir.services.counters["producer-bytes-read"] < 10 * MIB, "36 MB were written"
    assert peak.bytes < 24 * MIB


async def test_a_snapshot_is_stored_less_often_where_it_is_the_most_of_what_is_written(memory_cluster):
    log = await (await memory_cluster.namespace(producer_snapshot_bytes=1)).open_log("many")
    writer = await log.open_writer(producers=True)
    await asyncio.gather(*requests(writer, count=2_000, producers=2_000), writer.flush())
    before, snapshot = writer._sequence.current.ledger.length, sum(map(len, writer._issuer.requests.snapshot(1e6)))
    for number, future in enumerate(requests(writer, count=400, producers=2_000, first=2_000, size=1_000)):
        if number % 4 == 3:
            await asyncio.gather(future, writer.flush())
    added = writer._sequence.current.ledger.length - before
    assert added < 400 * 1_200 + (400 * 1_200 // (2 * snapshot) + 2) * snapshot
    await writer.abort()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_the_bounds_a_new_owner_knows_the_same(memory_cluster, monkeypatch, seed):
    rng = random.Random(seed)
    settings = {
        "producer_snapshot_entries": rng.choice([3, 40, 10_000]),
        "producer_snapshot_bytes": rng.choice([200, 3_000, 8 * MIB]),
        "compression": rng.choice(["none", "lz4"]),
    }
    log = await (await memory_cluster.namespace(**settings)).open_log("any")
    writer = await log.open_writer(producers=True)
    next_of = {f"p{number}": [0, 0] for number in range(rng.choice([1, 7, 40]))}
    for txid in range(rng.choice([5, 60, 400])):
        name = rng.choice(sorted(next_of))
        if rng.random() < 0.1:
            next_of[name] = [await writer.begin_epoch(name), 0]
        elif rng.random() < 0.1:
            writer.write(txid, bytes(rng.randrange(500)))
        elif rng.random() < 0.1:
            await writer.set_fencing_token(b"%d" % txid)
        else:
            epoch, sequence = next_of[name]
            writer.append([(txid, bytes(rng.randrange(300)))], producer=name, epoch=epoch, sequence=sequence)
            next_of[name][1] += 1
        if rng.random() < 0.3:
            await writer.flush()
    await writer.flush()
    expected, token, last = states(writer), writer._issuer.requests.producers.token, writer._sequence.current.last_dlsn
    await writer.abort()
    for name, bound in (("READ_BYTES", 700), ("KEPT_BYTES", 500), ("MOST_ENTRIES", 5)):
        monkeypatch.setattr(segment_ends, name, rng.choice([1, bound, 1 << 30]))
    heir = await (await (await memory_cluster.namespace()).open_log("any")).open_writer(producers=True)
    assert (states(heir), heir._issuer.requests.producers.token, heir._issuer.requests._last) == (expected, token, last)
    await heir.abort()


async def test_others_have_their_turns_while_requests_without_number_are_taken_in(memory_cluster, monkeypatch):
    log = await (await memory_cluster.namespace()).open_log("requests")
    writer = await log.open_writer(producers=True)
    await asyncio.gather(*requests(writer, count=1_000, producers=100), writer.flush())
    await writer.abort()
    looked_at, most = 0, 0
    decode = segment_ends.decode_control

    def counted(payload, place):
        nonlocal looked_at
        looked_at += 1
        return decode(payload, place)

    async def others():
        nonlocal looked_at, most
        while True:
            most, looked_at = max(most, looked_at), 0
            await asyncio.sleep(0)

    heir = await memory_cluster.namespace()
    monkeypatch.setattr(segment_ends, "decode_control", counted)
    monkeypatch.setattr(segment_ends.Slices.__init__, "__defaults__", (-1.0,))
    beside = asyncio.ensure_future(others())
    found, _ = await known(heir, "requests")
    beside.cancel()
    assert len(found) == 100
    assert 0 < most <= 2 * segment_ends.BETWEEN_PAUSES
