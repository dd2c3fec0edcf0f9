"""Namespaces and logs: names, positions, searches and what they cost, deletion."""

from __future__ import annotations

import asyncio
import math

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.segments import SegmentReader
from dlspark.errors import AlreadyClosedError, LogEmptyError, SettingsError
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import InvalidLogNameError, LogNotFoundError
from metadata.distributedlog.namespaces import NamespaceStore, NotBoundError
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import MemoryStore


async def _filled(namespace, name, segments, entries, *, step=10):
    """Segments of so many one-record entries each; transaction ids count up by `step`."""
    log = await namespace.open_log(name)
    txid = 0
    for _ in range(segments):
        async with await log.open_writer() as writer:
            for _ in range(entries):
                writer.write(txid, b"%d" % txid)
                await writer.send()
                txid += step
    return log


# ---------------------------------------------------------------------- namespaces


async def test_logs_are_created_listed_and_deleted(namespace):
    assert await namespace.logs() == []
    await namespace.create_log("b")
    await namespace.create_log("a")
    await namespace.create_log("a")
    assert await namespace.logs() == ["a", "b"]
    assert await namespace.log_exists("a")
    await namespace.delete_log("a")
    assert not await namespace.log_exists("a")
    assert await namespace.logs() == ["b"]
    with pytest.raises(LogNotFoundError):
        await namespace.delete_log("a")


@pytest.mark.parametrize("what", ["writer", "reader"])
async def test_what_is_still_being_opened_when_its_log_is_closed_does_not_stay_open(memory_cluster, namespace, what):
    async def opened(log):
        return await (log.open_writer() if what == "writer" else log.open_reader(exclusive=True))

    await namespace.create_log("a")
    other = await memory_cluster.namespace()
    holding = await opened(await other.open_log("a"))
    log = await namespace.open_log("a")
    parent, queued = "/dl/a/<default>/" + ("lock" if what == "writer" else "readLock"), asyncio.Event()
    assert len((await memory_cluster.operator.children(parent, lambda _: queued.set()))[0]) == 1
    waiting = asyncio.ensure_future(opened(log))
    await queued.wait()
    await log.close()
    await holding.close()
    with pytest.raises(AlreadyClosedError):
        await waiting
    assert (await memory_cluster.operator.children(parent))[0] == []


async def test_a_log_that_is_still_being_opened_when_its_namespace_is_closed_is_not_given(memory_cluster, tmp_path):
    namespace = await memory_cluster.namespace(stream_config_directory=str(tmp_path))
    waiting = asyncio.ensure_future(namespace.open_log("a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await namespace.close()
    with pytest.raises(AlreadyClosedError):
        await waiting


async def test_names_that_cannot_be_are_refused(namespace):
    for name in (".hidden", "<x>", "a b", "", "a//b", "x/../y"):
        with pytest.raises(InvalidLogNameError):
            await namespace.create_log(name)
        with pytest.raises(InvalidLogNameError):
            await namespace.open_log(name)


async def test_deleting_a_log_deletes_its_ledgers_and_is_refused_while_it_is_written(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    log = await _filled(namespace, "busy", 3, 2)
    writer = await log.open_writer("the writer")
    with pytest.raises(OwnershipAcquireFailedError, match="the writer"):
        await other.delete_log("busy")
    assert len(await log.segments()) == 3
    await writer.close()
    await other.delete_log("busy")
    assert [ledger async for ledger in other.ledgers._ledgers.ids()] == []
    assert not await other.log_exists("busy")


async def test_a_deleted_log_can_be_made_anew(namespace):
    for payload in (b"first life", b"second life"):
        log = await namespace.open_log("phoenix")
        async with await log.open_writer() as writer:
            writer.write(1, payload)
        assert (await log.first_record()).payload == payload
        assert (await log.first_record()).dlsn == DLSN(1, 0, 0)
        await namespace.delete_log("phoenix")


async def test_a_log_may_have_settings_of_its_own(namespace):
    log = await namespace.open_log("own", {"writerOutputBufferSize": 0})
    assert (log.settings.output_buffer_bytes, namespace.settings.output_buffer_bytes) == (0, 1024)
    with pytest.raises(SettingsError):
        await namespace.open_log("own", {"zkSessionTimeoutSeconds": 1})


async def test_an_unbound_path_is_refused(memory_cluster):
    store = MemoryStore(memory_cluster.tree)
    with pytest.raises(NotBoundError):
        await AsyncNamespace.over(store, "distributedlog://memory:2181/elsewhere")
    await store.close()


async def test_the_binding_says_where_segment_numbers_begin(memory_cluster):
    store = MemoryStore(memory_cluster.tree)
    binding = Binding("memory:2181", "/ledgers", "memory:2181", first_lssn=1000)
    await NamespaceStore(store, "/thousand").bind(binding)
    namespace = await AsyncNamespace.over(
        store, "distributedlog://memory:2181/thousand", network=memory_cluster.network, own=(store,)
    )
    memory_cluster.clients.append(namespace)
    log = await namespace.open_log("late")
    await namespace.create_log("late")
    async with await log.open_reader() as reader:
        async with await log.open_writer() as writer:
            writer.write(1, b"x")
        assert (await reader.read_next()).dlsn == DLSN(1000, 0, 0)


async def test_what_is_closed_refuses(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("shut")
    await namespace.close()
    await namespace.close()
    for call in (namespace.logs(), namespace.create_log("x"), namespace.open_log("x"), log.segments()):
        with pytest.raises(AlreadyClosedError):
            await call


async def test_closing_the_namespace_completes_what_its_writers_wrote(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    writer = await (await namespace.open_log("open")).open_writer()
    future = writer.write(1, b"x")
    await namespace.close()
    assert await future == DLSN(1, 0, 0)
    (segment,) = await (await other.open_log("open")).segments()
    assert not segment.in_progress


@pytest.mark.parametrize("uri", ["", "http://x/y", "distributedlog://h:1", "distributedlog-xy://h:1/p", "nonsense"])
async def test_a_uri_that_names_no_namespace_is_refused(uri):
    with pytest.raises(CallerError):
        await AsyncNamespace.open(uri, {})


# ---------------------------------------------------------------------- positions


async def test_the_end_is_where_the_next_committed_record_will_be(namespace):
    log = await namespace.open_log("end")
    await namespace.create_log("end")
    assert await log.end() == DLSN.INITIAL
    writer = await log.open_writer()
    first = writer.write(1, b"one")
    await writer.flush()
    assert await log.end() == DLSN(1, 0, 0), "acknowledged, not yet visible"
    await writer.commit()
    end = await log.end()
    assert end > await first
    assert end.lssn == 1
    await writer.close()
    assert await log.end() == DLSN(2, 0, 0)


async def test_first_and_last_record(namespace):
    log = await namespace.open_log("bounds")
    await namespace.create_log("bounds")
    for question in (log.first_record, log.last_record):
        with pytest.raises(LogEmptyError):
            await question()
    await _filled(namespace, "bounds", 2, 3)
    assert ((await log.first_record()).txid, (await log.last_record()).txid) == (0, 50)
    assert not await log.is_sealed()
    async with await log.open_writer() as writer:
        await writer.mark_end_of_stream()
    assert (await log.last_record()).txid == 50
    assert await log.is_sealed()


@pytest.mark.parametrize(("segments", "entries"), [(1, 1), (1, 100), (16, 5), (40, 1)])
async def test_a_search_reads_no_more_than_logarithmically_many_entries(memory_cluster, segments, entries):
    namespace = await memory_cluster.namespace()
    log = await _filled(namespace, "search", segments, entries)
    allowed = 2 * (math.log2(segments) + math.log2(entries + 1) + 1)
    total = segments * entries
    for index in sorted({0, min(1, total - 1), total // 3, total // 2, total - 1}):
        for txid in (10 * index, 10 * index - 3):
            log.probes.entries = log.probes.segments = 0
            found = await log.find_txid(txid)
            assert found == DLSN(1 + index // entries, index % entries, 0), f"for {txid}"
            assert log.probes.entries <= allowed
            assert log.probes.segments == (index % entries > 0), "the first id of a segment is in its metadata"
    assert await log.find_txid(10 * total) == await log.end()


async def test_a_search_finds_the_first_of_equal_transaction_ids_across_entries_and_segments(namespace):
    log = await namespace.open_log("equal")
    for _ in range(2):
        async with await log.open_writer() as writer:
            for _ in range(4):
                writer.write(7, b"")
                await writer.send()
    assert await log.find_txid(7) == DLSN(1, 0, 0)
    assert await log.find_txid(8) == await log.end()


async def test_what_is_written_while_a_transaction_id_is_looked_for_is_not_passed_over(namespace, monkeypatch):
    log = await namespace.open_log("meanwhile")
    writer = await log.open_writer()
    writer.write(1, b"before")
    await writer.commit()
    locate = SegmentReader.locate_txid

    async def and_then_write(segment, txid):
        found = await locate(segment, txid)
        writer.write(10, b"meanwhile")
        await writer.commit()
        return found

    monkeypatch.setattr(SegmentReader, "locate_txid", and_then_write)
    async with await log.open_reader(10) as reader:
        assert (await asyncio.wait_for(reader.read_next(), 60)).payload == b"meanwhile"
    await writer.close()


@pytest.mark.parametrize("search", ["locate_txid", "first_user_record"])
async def test_a_segment_that_is_left_while_it_is_searched_is_not_passed_over(memory_cluster, monkeypatch, search):
    namespace = await memory_cluster.namespace(max_segment_bytes=1, rolling_minutes=0, output_buffer_bytes=0)
    log = await namespace.open_log("left")
    writer = await log.open_writer()
    complete, started, go_on = writer._sequence._complete, asyncio.Event(), asyncio.Event()

    async def when_told(segment):
        started.set()
        await go_on.wait()
        await complete(segment)

    monkeypatch.setattr(writer._sequence, "_complete", when_told)
    first = await writer.write(10, b"acknowledged, and not readable yet")
    await started.wait()
    assert [segment.in_progress for segment in await log.segments()] == [True, True]
    original = getattr(SegmentReader, search)

    async def then_go_on(segment, where):
        found = await original(segment, where)
        go_on.set()
        await writer.write(20, b"in the next segment")
        await writer.commit()
        return found

    monkeypatch.setattr(SegmentReader, search, then_go_on)
    if search == "locate_txid":
        assert await log.find_txid(10) == first
    else:
        with pytest.raises(LogEmptyError):
            await log.first_record()
    monkeypatch.undo()
    assert (await log.first_record()).dlsn == first
    await writer.close()


async def test_a_search_works_in_a_segment_in_progress_with_control_records_between(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0, immediate_flush=True)
    log = await namespace.open_log("mixed")
    writer = await log.open_writer()
    written = [await writer.write(10 * i, b"") for i in range(20)]
    await writer.commit()
    for i, dlsn in enumerate(written):
        assert await log.find_txid(10 * i) == dlsn
        async with await log.open_reader(10 * i - 5 if i else 0) as reader:
            assert (await reader.read_next()).dlsn == dlsn
    await writer.close()


async def test_a_position_in_a_segment_is_found_by_its_number(namespace):
    log = await _filled(namespace, "numbered", 1, 30)
    (metadata,) = await log.segments()
    segment = await log.open_segment(metadata)
    assert [await segment.locate_position(p) for p in (1, 2, 30, 31)] == [(0, 0), (1, 0), (29, 0), None]
    assert (await segment.summary(3)).first_position == 4
    location = await segment.location()
    assert location.ledger_id == metadata.ledger_id
    assert [entry.entry_id async for entry in segment.entries(0, segment.lac)] == list(range(31))
    await segment.close()
