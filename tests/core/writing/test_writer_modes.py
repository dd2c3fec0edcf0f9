"""What writers do differently by settings and features: durability, record sets, limits, rolling, locks, recovery."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pyarrow as pa
import pytest
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import Compression, encode_record_set
from dlspark.core.dynamic.features import SettableFeatures
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.segments import backward_scan
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.errors import (
    AlreadyClosedError,
    InvalidRecordError,
    OverCapacityError,
    RecordTooLongError,
    SettingsError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteError,
    WriterDeposedError,
)
from metadata.distributedlog.segments import SegmentMetadata, UnsupportedMetadataVersionError
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.store import SessionState
from metadata.zookeeper.memory import MemoryStore
from storage_node.protocol.schema import Status


async def _all(namespace, name, start="earliest"):
    log = await namespace.open_log(name)
    async with await log.open_reader(start) as reader:
        records = []
        while more := await reader.read_available(1000, wait=True):
            records += more
        return records


def _hold(memory_cluster, hold=True):
    for bookie in memory_cluster.bookies:
        if hold:
            bookie.hold_adds = True
        else:
            bookie.release()


# ---------------------------------------------------------------------- durability


async def test_a_write_that_need_not_be_durable_is_answered_at_once_and_stored_all_the_same(memory_cluster):
    namespace = await memory_cluster.namespace(durable_writes=False, output_buffer_bytes=0)
    writer = await (await namespace.open_log("fast")).open_writer()
    _hold(memory_cluster)
    assert await writer.write(1, b"one") == DLSN.INVALID
    assert [await future for future in writer.write_bulk([(2, b"two"), (3, b"three")])] == [DLSN.INVALID] * 2
    assert [await future for future in writer.write_record_set(4, [b"4a", b"4b"])] == [DLSN.INVALID] * 2
    (entry,) = await writer.write_batch([5, 6], pa.array([b"five", b"six"]))
    assert (entry.dlsn, entry.record_count, entry.first_txid, entry.last_txid) == (DLSN.INVALID, 2, 5, 6)
    _hold(memory_cluster, False)
    assert await writer.flush() == 6
    await writer.close()
    stored = [record.payload for record in await _all(namespace, "fast")]
    assert stored == [b"one", b"two", b"three", b"4a", b"4b", b"five", b"six"]


async def test_without_durability_a_refusal_is_still_told_at_once(memory_cluster):
    namespace = await memory_cluster.namespace(durable_writes=False)
    async with await (await namespace.open_log("refused")).open_writer() as writer:
        assert await writer.write(5, b"") == DLSN.INVALID
        with pytest.raises(TransactionIdOutOfOrderError):
            await writer.write(4, b"")
        with pytest.raises(RecordTooLongError):
            await writer.write(5, b"x" * 1_040_365)


@pytest.mark.parametrize("rolling", [True, False], ids=["the writer fails", "the writer starts over"])
@pytest.mark.parametrize("call", ["write", "flush", "commit", "close"])
async def test_what_was_not_waited_for_and_lost_is_raised_by_the_next_call(memory_cluster, rolling, call):
    namespace = await memory_cluster.namespace(
        durable_writes=False, output_buffer_bytes=0, disable_rolling_on_error=rolling, zk_session_timeout_s=1
    )
    writer = await (await namespace.open_log("lost")).open_writer()
    assert await writer.write(1, b"stored") == DLSN.INVALID
    await writer.flush()
    for bookie in memory_cluster.bookies:
        bookie.reject = Status.EFENCED
    assert await writer.write(2, b"lost") == DLSN.INVALID
    await until(lambda: writer._sequence.current.error is not None)
    for bookie in memory_cluster.bookies:
        bookie.reject = None
    with pytest.raises((WriteError, TransmitError)):
        await (writer.write(3, b"refused") if call == "write" else getattr(writer, call)())
    if call != "close":
        if not rolling:
            assert await writer.write(4, b"after") == DLSN.INVALID, "told once, then it goes on"
            await writer.close()
        else:
            with pytest.raises(WriteError):
                await writer.close()
    await (await (await namespace.open_log("lost")).open_writer()).close()
    kept = [record.payload for record in await _all(namespace, "lost")]
    assert kept == ([b"stored", b"after"] if call != "close" and not rolling else [b"stored"])


# ---------------------------------------------------------------------- record sets


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_the_members_of_a_record_set_are_read_as_records_by_their_own_dlsns(namespace, compression):
    log = await namespace.open_log("sets")
    async with await log.open_writer() as writer:
        alone = writer.write(7, b"before")
        members = writer.write_record_set(8, [b"a" * 300, bytearray(b"bb"), memoryview(b""), b"dddd"], compression)
        after = writer.write(9, b"after")
        assert await writer.flush() == 9
        assert await alone == DLSN(1, 0, 0)
        assert [await member for member in members] == [DLSN(1, 0, slot) for slot in (1, 2, 3, 4)]
        assert await after == DLSN(1, 0, 5)
    records = await _all(namespace, "sets")
    assert [record.payload for record in records] == [b"before", b"a" * 300, b"bb", b"", b"dddd", b"after"]
    assert [record.txid for record in records] == [7, 8, 8, 8, 8, 9]
    assert [record.sequence_id for record in records] == list(range(6))
    assert [record.payload for record in await _all(namespace, "sets", await members[2])] == [b"", b"dddd", b"after"]
    (segment,) = await log.segments()
    assert segment.record_count == 6


@pytest.mark.parametrize(
    ("payloads", "compression", "error", "message"),
    [
        ([b"x" * 1_040_385], "lz4", RecordTooLongError, "1040384"),
        ([b"x" * 520_200] * 2, "none", RecordTooLongError, "1040364"),
        ([os.urandom(1_040_364 - 16 - 4 + 1)], "none", RecordTooLongError, "1040364"),
        ([b"x" * 1_000_000] * 70, "lz4", RecordTooLongError, "67108864"),
        ([b"x"], "zstd", InvalidRecordError, "none, lz4"),
        (["text"], "none", InvalidRecordError, "str"),
    ],
    ids=["member", "set", "set by a byte", "expanded", "codec", "type"],
)
async def test_a_record_set_that_cannot_be_written_is_refused_whole(namespace, payloads, compression, error, message):
    async with await (await namespace.open_log("refused")).open_writer() as writer:
        for member in writer.write_record_set(1, payloads, compression):
            with pytest.raises(error, match=message):
                await member
        fits = writer.write_record_set(1, [b"x" * (1_040_364 - 16 - 4)])
        assert writer.write_record_set(1, []) == []
        await writer.flush()
        assert await fits[0] == DLSN(1, 0, 0)


async def test_sets_that_readers_could_not_expand_together_get_entries_of_their_own(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=1_000_000)
    async with await (await namespace.open_log("large")).open_writer() as writer:
        sets = [writer.write_record_set(1, [bytes(1_000_000)] * 40, "lz4") for _ in range(2)]
        await writer.flush()
        assert [await members[0] for members in sets] == [DLSN(1, 0, 0), DLSN(1, 1, 0)]
    assert len(await _all(namespace, "large")) == 80


async def test_a_record_set_counts_by_its_members(memory_cluster):
    namespace = await memory_cluster.namespace(outstanding_write_limit=3, write_limit_dark_mode=False)
    async with await (await namespace.open_log("counted")).open_writer() as writer:
        for member in writer.write_record_set(1, [b""] * 4):
            with pytest.raises(OverCapacityError):
                await member
        assert len(writer.write_record_set(1, [b""] * 3)) == writer.unacknowledged == 3


# ---------------------------------------------------------------------- flush, commit


async def test_flush_and_commit_tell_the_highest_acknowledged_transaction_id(memory_cluster):
    namespace = await memory_cluster.namespace(max_id_sanity_check=False)
    log = await namespace.open_log("highest")
    async with await log.open_writer() as writer:
        assert await writer.flush() == -1
        for txid in (3, 9, 5):
            writer.write(txid, b"")
        assert await writer.flush() == 9
        writer.write(11, b"")
        assert await writer.commit() == 11
        assert await log.end() > DLSN(1, 1, 0)


# ---------------------------------------------------------------------- limits


async def test_all_writers_together_take_no_more_than_the_global_limit(memory_cluster):
    namespace = await memory_cluster.namespace(global_outstanding_write_limit=3, write_limit_dark_mode=False)
    one = await (await namespace.open_log("one")).open_writer()
    two = await (await namespace.open_log("two")).open_writer()
    taken = [one.write(1, b""), one.write(2, b""), two.write(1, b"")]
    with pytest.raises(OverCapacityError, match="globalOutstandingWriteLimit"):
        await two.write(2, b"")
    assert (one.over_limit, two.over_limit) == (0, 1)
    await one.flush()
    await two.flush()
    await asyncio.gather(*taken)
    assert namespace.services.shared.outstanding == 0
    await asyncio.gather(two.write(2, b""), two.flush())
    one.write(3, b"dropped")
    await one.abort()
    await two.close()
    assert namespace.services.shared.outstanding == 0, "a writer that is gone holds nothing"


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_of_0_or_less_is_none(memory_cluster, limit):
    namespace = await memory_cluster.namespace(
        global_outstanding_write_limit=limit, outstanding_write_limit=limit, write_limit_dark_mode=False
    )
    async with await (await namespace.open_log("free")).open_writer() as writer:
        taken = [writer.write(i, b"") for i in range(100)]
        await writer.flush()
        await asyncio.gather(*taken)
        assert writer.over_limit == 0


async def _featured(memory_cluster, features, **settings):
    store = MemoryStore(memory_cluster.tree)
    namespace = await AsyncNamespace.over(
        store,
        "distributedlog://memory:2181/dl",
        Settings(zk_session_timeout_s=2, long_poll_ms=200, rolling_concurrency=0, **settings),
        network=memory_cluster.network,
        features=features,
        own=(store,),
    )
    memory_cluster.clients.append(namespace)
    return namespace


async def test_a_feature_lifts_the_limits_while_it_is_on(memory_cluster):
    features = SettableFeatures({"dl.disable_write_limit": 1})
    namespace = await _featured(memory_cluster, features, outstanding_write_limit=1, write_limit_dark_mode=False)
    async with await (await namespace.open_log("lifted")).open_writer() as writer:
        taken = [writer.write(i, b"") for i in range(3)]
        await writer.flush()
        await asyncio.gather(*taken)
        assert writer.over_limit == 2
        features.set("dl.disable_write_limit", 0)
        kept = writer.write(3, b"")
        with pytest.raises(OverCapacityError):
            await writer.write(4, b"")
        await writer.flush()
        await kept


# ---------------------------------------------------------------------- rolling


async def test_a_feature_keeps_segments_from_rolling_while_it_is_on(memory_cluster):
    features = SettableFeatures({"dl.disable_logsegment_rolling": 1})
    namespace = await _featured(memory_cluster, features, rolling_minutes=0, max_segment_bytes=1, output_buffer_bytes=0)
    log = await namespace.open_log("kept")
    async with await log.open_writer() as writer:
        for i in range(3):
            await writer.write(i, b"x")
        assert len(await log.segments()) == 1
        features.set("dl.disable_logsegment_rolling", 0)
        await writer.write(3, b"x")
        await until(lambda: writer.segment == 2)


async def test_nothing_rolls_while_the_metadata_store_is_out_of_reach(memory_cluster):
    namespace = await memory_cluster.namespace(rolling_minutes=0, max_segment_bytes=1, output_buffer_bytes=0)
    log = await namespace.open_log("cut")
    writer = await log.open_writer()
    writer._sequence.roll_is_due = lambda roll=writer._sequence.roll_is_due: started and roll()
    started = []
    await writer.write(0, b"x")
    started.append(True)
    memory_cluster.tree.disconnect(namespace.store.session_id)
    await until(lambda: namespace.store.state is SessionState.SUSPENDED)
    for i in range(1, 4):
        assert await writer.write(i, b"x") == DLSN(1, i, 0), "the old segment goes on"
    memory_cluster.tree.reconnect(namespace.store.session_id)
    await until(lambda: namespace.store.state is SessionState.CONNECTED)
    await writer.write(4, b"x")
    await until(lambda: writer.segment == 2)
    await writer.close()
    assert [record.txid for record in await _all(namespace, "cut")] == [0, 1, 2, 3, 4]


async def test_a_roll_that_is_cut_off_from_the_metadata_store_goes_on_when_it_is_back(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace(
        rolling_minutes=0, max_segment_bytes=1, output_buffer_bytes=0, zk_session_timeout_s=10
    )
    log = await namespace.open_log("midway")
    writer = await log.open_writer()
    complete, cut = writer._sequence._complete, []

    async def cut_off_first(segment, **releases):
        if not cut:
            cut.append(segment)
            memory_cluster.tree.disconnect(namespace.store.session_id)
            asyncio.get_running_loop().call_later(0.1, memory_cluster.tree.reconnect, namespace.store.session_id)
            await until(lambda: namespace.store.state is SessionState.SUSPENDED)
        await complete(segment, **releases)

    monkeypatch.setattr(writer._sequence, "_complete", cut_off_first)
    written = [await writer.write(i, b"x") for i in range(3)]
    await writer.close()
    assert cut
    assert [record.dlsn for record in await _all(namespace, "midway")] == written
    assert not any(segment.in_progress for segment in await log.segments())


# ---------------------------------------------------------------------- no lock


async def test_without_locks_the_last_to_open_the_log_fences_the_others(memory_cluster):
    one, other = await memory_cluster.namespace(write_lock=False), await memory_cluster.namespace(write_lock=False)
    old = await (await one.open_log("free")).open_writer()
    first = old.write(1, b"first")
    await old.flush()
    new = await (await other.open_log("free")).open_writer()
    kept = new.write(2, b"second")
    await new.flush()
    late = old.write(3, b"late")
    with pytest.raises(DistributedLogError):
        await old.flush()
    with pytest.raises((TransmitError, WriteError)):
        await late
    with pytest.raises(DistributedLogError):
        await old.close()
    await new.close()
    assert [await first, await kept] == [DLSN(1, 0, 0), DLSN(2, 0, 0)]
    assert [record.payload for record in await _all(other, "free")] == [b"first", b"second"]
    children, _ = await memory_cluster.operator.children(one.logs_store.paths("free").lock)
    assert children == []


async def test_without_locks_an_idle_writer_that_was_overtaken_starts_no_segment(memory_cluster):
    one, other = await memory_cluster.namespace(write_lock=False), await memory_cluster.namespace(write_lock=False)
    old = await (await one.open_log("idle")).open_writer()
    async with await (await other.open_log("idle")).open_writer() as new:
        new.write(1, b"new")
    with pytest.raises(WriterDeposedError):
        await old.write(2, b"old")
    with pytest.raises(WriterDeposedError):
        await old.close()
    assert [record.payload for record in await _all(other, "idle")] == [b"new"]


# ---------------------------------------------------------------------- failover


async def test_the_next_ledger_is_made_while_the_old_segment_is_recovered(memory_cluster, monkeypatch):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    writer = await (await one.open_log("both")).open_writer()
    kept = writer.write(1, b"kept")
    await writer.flush()
    await kept
    await memory_cluster.crash(one)
    made, complete = asyncio.Event(), SegmentTransitions.complete
    ready = []

    async def when_the_ledger_is_made(self, segment, **values):
        await asyncio.wait_for(made.wait(), 60)  # would wait in vain if the one came after the other
        ready.append(self._allocator.ledger.ledger_id)
        return await complete(self, segment, **values)

    prepare = SegmentTransitions.prepare

    async def and_tell(self, **claims):
        await prepare(self, **claims)
        made.set()

    monkeypatch.setattr(SegmentTransitions, "complete", when_the_ledger_is_made)
    monkeypatch.setattr(SegmentTransitions, "prepare", and_tell)
    log = await other.open_log("both")
    writer = await log.open_writer()
    monkeypatch.undo()
    (segment,) = await log.segments()
    assert not segment.in_progress, "no segment begins before the old one has its end"
    next_one = writer.write(2, b"next")
    await writer.flush()
    assert (await log.segments())[1].ledger_id == ready[0]
    assert await next_one == DLSN(2, 0, 0)
    await writer.close()


async def test_a_ledger_that_cannot_be_made_does_not_stop_recovery(memory_cluster):
    one = await memory_cluster.namespace()
    writer = await (await one.open_log("few")).open_writer()
    writer.write(1, b"kept")
    await writer.flush()
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace(ensemble_size=5, write_quorum=5)
    log = await other.open_log("few")
    await (await log.open_writer()).close()
    assert other.counters["ledger-not-made-in-advance"] == 1
    assert [segment.in_progress for segment in await log.segments()] == [False]


# ---------------------------------------------------------------------- last records, regions


@pytest.mark.parametrize(
    ("last", "first_size", "most", "ranges"),
    [
        (-1, 2, 16, []),
        (0, 2, 16, [(0, 0)]),
        (40, 2, 16, [(39, 40), (35, 38), (27, 34), (11, 26), (0, 10)]),
        (9, 3, 3, [(7, 9), (4, 6), (1, 3), (0, 0)]),
        (9, 5, 2, [(5, 9), (0, 4)]),
    ],
)
def test_a_last_record_is_looked_for_in_growing_steps(last, first_size, most, ranges):
    settings = Settings(first_scan_entries=first_size, max_scan_entries=most)
    assert list(backward_scan(last, settings)) == ranges


@pytest.mark.parametrize("by", ["setting", "binding"])
@pytest.mark.parametrize(("region_id", "over"), [(0, 9), (9, None), (9, 9)])
async def test_segments_name_the_region_of_their_writer_if_told_to(memory_cluster, by, region_id, over):
    store = MemoryStore(memory_cluster.tree)
    namespace = await AsyncNamespace.over(
        store,
        "distributedlog://memory:2181/dl",
        Settings(encode_region_id=by == "setting", region_id=region_id, zk_session_timeout_s=2),
        network=memory_cluster.network,
        region_id=over,
        own=(store,),
    )
    memory_cluster.clients.append(namespace)
    if by == "binding":
        object.__setattr__(namespace.binding, "encode_region_id", True)
    log = await namespace.open_log("region")
    async with await log.open_writer() as writer:
        writer.write(1, b"x")
        await writer.flush()
        path = namespace.logs_store.paths("region").segment((await log.segments())[0])
        data, _ = await memory_cluster.operator.get(path)
        assert int(data.split(b";")[0]) == 9 << 28 | 5
    assert (await log.segments())[0].region == 9


async def test_without_being_told_segments_name_no_region(namespace):
    log = await namespace.open_log("region")
    async with await log.open_writer() as writer:
        writer.write(1, b"x")
    assert (await log.segments())[0].region == 0


@pytest.mark.parametrize("region", [-1, 16, True, "1"])
async def test_a_region_id_has_four_bits(memory_cluster, region):
    store = MemoryStore(memory_cluster.tree)
    with pytest.raises(CallerError, match="from 0 to 15"):
        await AsyncNamespace.over(store, "distributedlog://memory:2181/dl", region_id=region)
    await store.close()


@pytest.mark.parametrize("region", [-1, 16, "eu"])
def test_a_region_id_that_has_no_four_bits_is_refused_as_a_setting(region):
    with pytest.raises(SettingsError, match="regionId"):
        Settings.from_mapping({"regionId": region})


# ---------------------------------------------------------------------- metadata versions


@pytest.mark.parametrize("version", [2, 3, 4, 5])
async def test_segments_of_each_version_are_written_recovered_and_read(memory_cluster, version):
    one = await memory_cluster.namespace(metadata_version=version, output_buffer_bytes=0)
    log = await one.open_log("versions")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
        writer.write_record_set(2, [b"two", b"three"])
        await writer.write_batch([3, 4], pa.array([b"four", b"five"]))
    writer = await log.open_writer()
    await writer.write(5, b"six")
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace(metadata_version=version)
    log = await other.open_log("versions")
    async with await log.open_writer() as writer:
        writer.write(6, b"seven")
    segments = await log.segments()
    assert [segment.version for segment in segments] == [version] * 3
    assert [segment.record_count for segment in segments] == [5, 1, 1]
    expected = [0, 5, 6] if version == 5 else [-1, -1, -1]
    assert [segment.start_sequence_id for segment in segments] == expected
    records = await _all(other, "versions")
    assert [record.payload for record in records] == [b"one", b"two", b"three", b"four", b"five", b"six", b"seven"]
    async with await log.open_reader() as reader:
        assert (await reader.next_batch()).num_rows > 0


async def test_writers_are_upgraded_from_version_to_version_in_one_log(memory_cluster):
    for version in (2, 3, 4, 5):
        namespace = await memory_cluster.namespace(metadata_version=version)
        async with await (await namespace.open_log("upgraded")).open_writer() as writer:
            writer.write(version, b"%d" % version)
    assert [record.payload for record in await _all(namespace, "upgraded")] == [b"2", b"3", b"4", b"5"]
    segments = await namespace.logs_store.segments("upgraded")
    assert [(s.lssn, s.version, s.enveloped) for s in segments] == [
        (1, 2, False),
        (2, 3, False),
        (3, 4, True),
        (4, 5, True),
    ]


async def test_a_log_of_version_1_is_read_recovered_and_written_on_where_that_is_allowed(memory_cluster):
    namespace = await memory_cluster.namespace(skip_minimum_version=True, metadata_version=2, max_id_sanity_check=False)
    log = await namespace.open_log("old")
    async with await log.open_writer() as writer:
        writer.write(1000, b"old")
    # As a library of version 1 would have left it: no number in the metadata, a name of transaction ids.
    store, paths = namespace.store, namespace.logs_store.paths("old")
    (segment,) = await log.segments()
    await store.delete(paths.segment(segment))
    old = SegmentMetadata(segment.ledger_id, 0, 1000, in_progress=True, version=1).named(0)
    await store.create(paths.segment(old), old.encode())
    assert (await store.get(f"{paths.ledgers}/inprogress_3e8"))[0] == b"1;%d;1000" % segment.ledger_id
    await store.put(paths.ledgers, b"0", -1)
    other = await memory_cluster.namespace(skip_minimum_version=True)
    log = await other.open_log("old")
    async with await log.open_writer() as writer:
        new = writer.write(1001, b"new")
    assert (await new).lssn == 1
    names, _ = await store.children(paths.ledgers)
    assert "logrecs_000000000000001000_000000000000001000" in names
    for start in (DLSN(0, 0, 0), "earliest"):
        records = await _all(other, "old", start)
        assert [record.payload for record in records] == [b"old", b"new"]
        assert [record.dlsn for record in records] == [DLSN(0, 0, 0), DLSN(1, 0, 0)]
    strict = await memory_cluster.namespace()
    with pytest.raises(DistributedLogError, match="version 1"):
        await (await strict.open_log("old")).segments()


async def test_segments_that_share_the_number_0_are_refused_rather_than_passed_over(memory_cluster):
    namespace = await memory_cluster.namespace(skip_minimum_version=True, metadata_version=2)
    log = await namespace.open_log("old")
    paths = namespace.logs_store.paths("old")
    for txid in (1000, 2000):
        async with await log.open_writer() as writer:
            writer.write(txid, b"old")
    for segment in await log.segments():
        await namespace.store.delete(paths.segment(segment))
        old = replace(segment, lssn=0, version=1, last_entry=-1, last_slot=-1).named(0)
        await namespace.store.create(paths.segment(old), old.encode())
    other = await memory_cluster.namespace(skip_minimum_version=True)
    assert [segment.lssn for segment in await (await other.open_log("old")).segments()] == [0, 0]
    with pytest.raises(UnsupportedMetadataVersionError, match="2 segments have the number 0"):
        await _all(other, "old", "earliest")


async def test_segments_named_by_transaction_ids_are_written_and_read(memory_cluster):
    namespace = await memory_cluster.namespace(segment_name_version=0)
    log = await namespace.open_log("names")
    paths = namespace.logs_store.paths("names")
    for first in (1001, 2001):
        async with await log.open_writer() as writer:
            writer.write(first, b"%d" % first)
            await writer.flush()
            assert f"inprogress_{first:x}" in (await namespace.store.children(paths.ledgers))[0]
            writer.write(first + 1, b"%d" % (first + 1))
    assert (await namespace.store.children(paths.ledgers))[0] == [
        "logrecs_000000000000001001_000000000000001002",
        "logrecs_000000000000002001_000000000000002002",
    ]
    assert [record.txid for record in await _all(namespace, "names")] == [1001, 1002, 2001, 2002]


async def test_two_segments_that_would_get_the_same_name_are_not_taken_for_a_lost_log(memory_cluster):
    namespace = await memory_cluster.namespace(segment_name_version=0)
    log = await namespace.open_log("same")
    async with await log.open_writer() as writer:
        writer.write(7, b"x")
    writer = await log.open_writer()
    writer.write(7, b"y")
    with pytest.raises(DistributedLogError, match="would be called logrecs_000000000000000007_000000000000000007"):
        await writer.close()
    other = await memory_cluster.namespace()
    await (await (await other.open_log("same")).open_writer()).close()
    assert [record.payload for record in await _all(other, "same")] == [b"x", b"y"]


async def test_compression_that_a_version_has_no_place_for_is_refused(memory_cluster):
    with pytest.raises(CallerError, match="no envelopes"):
        await memory_cluster.namespace(metadata_version=3, compression="lz4")
    with pytest.raises(CallerError, match="outside 2"):
        await memory_cluster.namespace(metadata_version=1)


async def test_a_log_with_a_missing_segment_is_read_where_that_is_allowed(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("hole")
    for txid in range(3):
        async with await log.open_writer() as writer:
            writer.write(txid, b"%d" % txid)
    middle = (await log.segments())[1]
    await namespace.store.delete(namespace.logs_store.paths("hole").segment(middle))
    strict = await memory_cluster.namespace()
    with pytest.raises(DistributedLogError, match="missing"):
        await (await strict.open_log("hole")).segments()
    lax = await memory_cluster.namespace(validate_sequence=False)
    assert [segment.lssn for segment in await (await lax.open_log("hole")).segments()] == [1, 3]


# ---------------------------------------------------------------------- for those who pass records on


async def test_what_is_pushed_is_sent_without_waiting_also_behind_a_transition(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=1_000_000, periodic_flush_ms=0)
    writer = await (await namespace.open_log("log")).open_writer()
    first = [writer.write(1, b"a"), writer.write(1, b"b")]
    writer.push()
    assert [await asyncio.wait_for(future, 60) for future in first] == [DLSN(1, 0, 0), DLSN(1, 0, 1)]
    second = writer.write(2, b"c")
    await asyncio.sleep(0.01)
    assert not second.done(), "buffered"
    writer.push()
    assert await asyncio.wait_for(second, 60) == DLSN(1, 1, 0)
    await writer.close()
    writer.push()


async def test_a_heartbeat_is_stored_and_no_reader_delivers_it(memory_cluster, namespace):
    writer = await (await namespace.open_log("log")).open_writer()
    beat = await asyncio.wait_for(writer.heartbeat(), 60)
    assert (beat.first, beat.records) == (DLSN(1, 0, 0), 0)
    record = writer.write(1, b"a")
    writer.push()
    assert await record == DLSN(1, 1, 0)
    assert writer.unacknowledged == 0
    await writer.close()
    with pytest.raises(AlreadyClosedError):
        await writer.heartbeat()
    assert [record.payload for record in await _all(namespace, "log")] == [b"a"]


async def test_a_heartbeat_behind_a_failure_says_so(memory_cluster, namespace):
    writer = await (await namespace.open_log("log")).open_writer()
    record = writer.write(1, b"a")
    writer.push()
    await record
    for bookie in memory_cluster.bookies:
        bookie.reject = Status.EUA
    with pytest.raises(TransmitError):
        await asyncio.wait_for(writer.heartbeat(), 60)
    await writer.abort()


@pytest.mark.parametrize("compression", list(Compression))
async def test_a_record_set_that_came_encoded_is_written_as_it_is(namespace, compression):
    writer = await (await namespace.open_log("log")).open_writer()
    encoded = encode_record_set([b"a", b"bb", b"ccc"], compression)
    first, after = writer.write_encoded_set(5, memoryview(encoded)), writer.write(6, b"after")
    await writer.close()
    assert (await first, await after) == (DLSN(1, 0, 0), DLSN(1, 0, 3))
    found = [(record.txid, record.payload) for record in await _all(namespace, "log")]
    assert found == [(5, b"a"), (5, b"bb"), (5, b"ccc"), (6, b"after")]


@pytest.mark.parametrize("damaged", [b"", b"no set", encode_record_set([]), encode_record_set([b"a"])[:-1], "text"])
async def test_a_record_set_that_readers_could_not_open_is_refused(namespace, damaged):
    async with await (await namespace.open_log("log")).open_writer() as writer:
        with pytest.raises(InvalidRecordError):
            await writer.write_encoded_set(5, damaged)
