"""A reader of entries that expand to far more than they are stored as: each batch is bounded, nothing is left out."""

from __future__ import annotations

from dlspark.core.codec.entries import Compression, encode_record_set
from dlspark.core.codec.vector_decoding import EXPANDED_BYTES

SETS, MEMBERS = 8, 1_000


async def written(memory_cluster):
    """8 record sets of 4 MB, compressed twice; a record behind each."""
    client = await memory_cluster.namespace(compression="lz4")
    log = await client.open_log("expanding")
    encoded = encode_record_set([bytes(4_000)] * MEMBERS, Compression.LZ4)
    async with await log.open_writer() as writer:
        for number in range(SETS):
            writer.write_encoded_set(number, encoded)
            writer.write(number, b"%d" % number)
            await writer.flush()
    return log


async def test_batches_are_bounded_by_what_they_expand_to(memory_cluster):
    log = await written(memory_cluster)
    found, sizes = [], []
    async with await log.open_reader() as reader:
        while len(found) < SETS * (MEMBERS + 1):
            batch = await reader.next_batch()
            sizes.append(batch.column("value").nbytes)
            found += zip(
                batch.column("sequence_id").to_pylist(), batch.column("transaction_id").to_pylist(), strict=True
            )
    assert max(sizes) < EXPANDED_BYTES + 6_000_000, "the bound, and one entry"
    assert found == [(n, n // (MEMBERS + 1)) for n in range(SETS * (MEMBERS + 1))]


async def test_records_one_by_one_are_all_there_whatever_is_decoded_at_a_time(memory_cluster):
    log = await written(memory_cluster)
    async with await log.open_reader() as reader:
        found = []
        while len(found) < SETS * (MEMBERS + 1):
            found += await reader.read_bulk(700)
            if len(found) == 2_100:
                await reader.skip_to(found[-1].dlsn._replace(slot_id=found[-1].dlsn.slot_id + 1))
    assert [record.sequence_id for record in found] == list(range(SETS * (MEMBERS + 1)))
    assert [record.payload for record in found if len(record.payload) < 4_000] == [b"%d" % n for n in range(SETS)]


async def test_what_was_fetched_and_not_decoded_is_still_to_come(memory_cluster):
    log = await written(memory_cluster)
    async with await log.open_reader() as reader:
        first = await reader.next_batch()
        assert first.num_rows < SETS * (MEMBERS + 1)
        assert not reader.caught_up, "what was put back is to come"
        rest = await reader.read_bulk(1)
    assert rest[0].sequence_id == first.num_rows
