"""Dynamic settings: files that change the settings of logs that are open."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest
from helpers.paths import CONF
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.dynamic.operator_files import OperatorFiles
from dlspark.core.dynamic.watched_file import REJECTED
from dlspark.core.settings.settings import Settings, describe_settings, dynamic_values
from dlspark.errors import IdleReaderError, OverCapacityError, SettingsError, StreamNotReadyError
from metadata.distributedlog.allocators import AllocatorStore
from metadata.distributedlog.log_names import InvalidLogNameError
from simulation.environment.loop import SimulatedLoop


@pytest.fixture
def directory(tmp_path):
    streams = tmp_path / "streams"
    streams.mkdir()
    return streams


# ------------------------------------------------------------------ which values hold


async def test_a_streams_file_goes_over_the_default_file_and_both_over_what_was_given_on_opening(
    memory_cluster, tmp_path, directory
):
    default = tmp_path / "default.conf"
    default.write_text("writerOutputBufferSize=1\nreadAheadMaxRecords=2\nbkcAckQuorumSize=1\n")
    (directory / "flights.conf").write_text("readAheadMaxRecords=3\n")
    namespace = await memory_cluster.namespace(
        stream_config_directory=str(directory), stream_config_default=str(default)
    )
    log = await namespace.open_log("flights", {"bkcAckQuorumSize": 3, "logSegmentRollingMinutes": 7})
    settings = log.settings
    assert (settings.output_buffer_bytes, settings.read_ahead_entries) == (1, 3)
    assert (settings.ack_quorum, settings.rolling_minutes) == (1, 7)
    other = (await namespace.open_log("other")).settings
    assert (other.output_buffer_bytes, other.read_ahead_entries) == (1, 2)
    assert namespace.settings.output_buffer_bytes == Settings().output_buffer_bytes


async def test_what_is_taken_out_of_a_file_gives_the_word_back_to_what_is_below(memory_cluster, tmp_path, directory):
    default, file = tmp_path / "default.conf", directory / "flights.conf"
    default.write_text("readAheadMaxRecords=2\n")
    file.write_text("readAheadMaxRecords=3\nwriterOutputBufferSize=4\n")
    namespace = await memory_cluster.namespace(
        stream_config_directory=str(directory), stream_config_default=str(default)
    )
    log = await namespace.open_log("flights", {"writerOutputBufferSize": 5})
    seen = [(log.settings.read_ahead_entries, log.settings.output_buffer_bytes)]
    for change in (lambda: file.write_text("writerOutputBufferSize=6\n"), file.unlink, lambda: default.write_text("")):
        change()
        await namespace.reload_settings()
        seen.append((log.settings.read_ahead_entries, log.settings.output_buffer_bytes))
    assert seen == [(3, 4), (2, 6), (2, 5), (10, 5)]
    assert namespace.counters["dynamic-settings-changed"] == 3


async def test_a_file_that_appears_while_the_log_is_open_holds_from_then_on(memory_cluster, directory):
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    log = await namespace.open_log("a/b")
    (directory / "a").mkdir()
    (directory / "a" / "b.conf").write_text("output-buffer-size=5\n")
    await namespace.reload_settings()
    assert log.settings.output_buffer_bytes == 5


@pytest.mark.parametrize(
    ("router", "log", "shares"),
    [
        ("IdentityConfigRouter", "flights_000001", False),
        ("org.apache.distributedlog.service.streamset.DelimiterStreamPartitionConverter", "flights_000001", True),
        ("com.twitter.distributedlog.service.config.EventbusPartitionConfigRouter", "eventbus_flights_000001", True),
        ("EventbusPartitionConfigRouter", "flights_000001", False),
    ],
)
async def test_logs_that_are_partitions_of_one_stream_share_its_file(memory_cluster, directory, router, log, shares):
    (directory / "flights.conf").write_text("readAheadMaxRecords=3\n")
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory), stream_config_router=router)
    assert ((await namespace.open_log(log)).settings.read_ahead_entries == 3) is shares


async def test_a_name_that_would_leave_the_directory_is_refused_before_any_file_is_read(
    memory_cluster, tmp_path, directory
):
    (tmp_path / "outside.conf").write_text("readAheadMaxRecords=3\n")
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    with pytest.raises(InvalidLogNameError):
        await namespace.open_log("../outside")


# ------------------------------------------------------------------ files that cannot be used


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("zkSessionTimeoutSeconds=5", "zkSessionTimeoutSeconds does not change while a log is open"),
        ("compressionType=lz4", "compressionType does not change while a log is open"),
        ("bkc.addEntryTimeoutSec=5", "bkc.addEntryTimeoutSec does not change while a log is open"),
        ("readAheadMaxRecord=5", "Did you mean readAheadMaxRecords"),
        ("readAheadMaxRecords=few", "whole number"),
        ("readAheadMaxRecords=0", "outside 1"),
        ("ensemble-size=3\nbkcEnsembleSize=3", "twice"),
        ("readAheadMaxRecords=\\u12", "cannot be read"),
    ],
)
async def test_a_file_that_cannot_be_used_fails_the_opening_and_names_file_and_key(
    memory_cluster, directory, content, message
):
    (directory / "flights.conf").write_text(content)
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    with pytest.raises(SettingsError, match=message) as caught:
        await namespace.open_log("flights")
    assert "flights.conf" in str(caught.value)
    assert await namespace.open_log("other")


async def test_a_file_that_cannot_be_used_any_more_leaves_the_last_good_values_whole_and_is_reported_once(
    memory_cluster, directory, caplog
):
    file = directory / "flights.conf"
    file.write_text("readAheadMaxRecords=3\n")
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    log = await namespace.open_log("flights")
    file.write_text("readAheadMaxRecords=4\nzkSessionTimeoutSeconds=5\n")
    with caplog.at_level(logging.WARNING, "dlspark"):
        await namespace.reload_settings()
        await namespace.reload_settings()
    assert log.settings.read_ahead_entries == 3
    assert namespace.counters[REJECTED] == 1
    assert [record.message.count("zkSessionTimeoutSeconds") for record in caplog.records] == [1]
    file.write_text("readAheadMaxRecords=4\n")
    await namespace.reload_settings()
    assert log.settings.read_ahead_entries == 4


async def test_a_directory_in_the_files_place_is_a_file_that_cannot_be_used(memory_cluster, directory):
    file = directory / "flights.conf"
    file.write_text("readAheadMaxRecords=3\n")
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    log = await namespace.open_log("flights")
    file.unlink()
    file.mkdir()
    await namespace.reload_settings()
    assert (log.settings.read_ahead_entries, namespace.counters[REJECTED]) == (3, 1)


async def test_a_directory_that_is_lost_takes_back_no_settings(memory_cluster, directory):
    (directory / "flights.conf").write_text("readAheadMaxRecords=3\n")
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    log = await namespace.open_log("flights")
    away = directory.rename(directory.with_name("away"))
    for _ in range(2):
        await namespace.reload_settings()
        assert (log.settings.read_ahead_entries, namespace.counters[REJECTED]) == (3, 1)
    (away / "flights.conf").write_text("readAheadMaxRecords=4\n")
    away.rename(directory)
    await namespace.reload_settings()
    assert log.settings.read_ahead_entries == 4


async def test_paths_that_do_not_exist_fail_the_opening_of_the_namespace(memory_cluster, tmp_path):
    for setting, key in (
        ("stream_config_directory", "streamConfigDirectory"),
        ("stream_config_default", "streamConfigDefaultPath"),
    ):
        with pytest.raises(SettingsError, match=key):
            await memory_cluster.namespace(**{setting: str(tmp_path / "missing")})


async def test_a_file_written_in_place_is_not_taken_in_its_middle():
    contents = iter([b"readAheadMaxRecords=3\nwriterOutputBufferSize=7\n", b"readAheadMaxRecords=4\n"])
    whole = b"readAheadMaxRecords=4\nwriterOutputBufferSize=8\n"

    async def read(path):
        return next(contents, whole)

    files = await OperatorFiles.load(Settings(stream_config_default="d.conf"), Counter(), read=read)
    live = await files.settings_of("flights", Settings())
    seen = []
    for _ in range(3):
        seen.append((live.current.read_ahead_entries, live.current.output_buffer_bytes))
        await files.reload()
    assert seen == [(3, 7), (3, 7), (4, 8)]


# ------------------------------------------------------------------ when files are looked at


def test_files_are_looked_at_every_interval_by_the_loops_clock():
    loop = SimulatedLoop(random.Random(1))

    async def read(path):
        return b"readAheadMaxRecords=%d" % (3 if loop.time() < began + 300 else 4)

    async def main():
        files = await OperatorFiles.load(Settings(stream_config_default="d.conf"), Counter(), read=read)
        live = await files.settings_of("flights", Settings())
        changed = asyncio.Event()
        live.listen(lambda _: changed.set())
        files.start(60)
        await changed.wait()
        await files.close()
        return live.current.read_ahead_entries, loop.time() - began

    began = loop.time()
    entries, elapsed = loop.run_until_complete(main())
    assert entries == 4
    assert 300 <= elapsed <= 361
    loop.finish()


async def test_looking_goes_on_after_a_look_that_failed():
    looks = 0

    async def read(path):
        nonlocal looks
        looks += 1
        if looks == 2:
            raise RuntimeError("nobody expects this")
        return b"readAheadMaxRecords=3" if looks == 1 else b"readAheadMaxRecords=4"

    files = await OperatorFiles.load(Settings(stream_config_default="d.conf"), Counter(), read=read)
    live = await files.settings_of("flights", Settings())
    files.start(0.01)
    await until(lambda: live.current.read_ahead_entries == 4)
    await files.close()


async def test_a_closed_log_is_not_followed_any_more(memory_cluster, directory):
    file = directory / "flights.conf"
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    closed, still_open = await namespace.open_log("flights"), await namespace.open_log("flights")
    await closed.close()
    file.write_text("readAheadMaxRecords=3\n")
    await namespace.reload_settings()
    assert (closed.settings.read_ahead_entries, still_open.settings.read_ahead_entries) == (10, 3)
    await still_open.close()
    file.write_text("nonsense=1\n")
    await namespace.reload_settings()
    assert namespace.counters[REJECTED] == 0


async def test_nothing_runs_in_the_background_where_no_files_are_configured(memory_cluster):
    before = asyncio.all_tasks()
    files = await OperatorFiles.load(Settings(), Counter())
    files.start(60)
    assert asyncio.all_tasks() == before


# ------------------------------------------------------------------ what is open follows


@pytest.fixture
async def change(memory_cluster, directory):
    """Opens the log `flights`, and a function that changes its file and has it looked at."""
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory))
    log = await namespace.open_log("flights")

    async def write(text):
        (directory / "flights.conf").write_text(text)
        await namespace.reload_settings()

    write.namespace, write.log = namespace, log
    return write


async def test_an_open_writer_begins_to_flush_periodically(change):
    async with await change.log.open_writer() as writer:
        acknowledged = writer.write(1, b"waits in the buffer")
        await change("periodicFlushFrequencyMilliSeconds=10")
        await asyncio.wait_for(acknowledged, 60)


async def test_an_open_writer_sends_at_another_buffer_size(change):
    async with await change.log.open_writer() as writer:
        await asyncio.wait({writer.write(0, b"starts the segment"), asyncio.ensure_future(writer.flush())})
        first = writer.write(1, b"waits in the buffer")
        await change("writerOutputBufferSize=0")
        await asyncio.wait_for(asyncio.gather(first, writer.write(2, b"goes at once")), 60)


async def test_an_open_writer_begins_to_make_records_visible_at_once(change):
    async with await change.log.open_writer() as writer, await change.log.open_reader() as reader:
        writer.write(0, b"first")
        await writer.flush()
        await change("enableImmediateFlush=true\nwriterOutputBufferSize=0")
        writer.write(1, b"second")
        records = [await asyncio.wait_for(reader.read_next(), 60) for _ in range(2)]
    assert [record.payload for record in records] == [b"first", b"second"]


async def test_an_open_writer_begins_to_write_keep_alives(change):
    async with await change.log.open_writer() as writer:
        writer.write(0, b"first")
        await writer.flush()
        await change("periodicKeepAliveMilliSeconds=10")
        async with await change.log.open_reader() as reader:
            # A keep-alive is an entry that follows: only so does the record become visible.
            assert (await asyncio.wait_for(reader.read_next(), 60)).payload == b"first"


async def test_timers_that_were_switched_off_write_nothing_more(change):
    await change("periodicFlushFrequencyMilliSeconds=10")
    async with await change.log.open_writer() as writer:
        await asyncio.wait_for(writer.write(0, b"first"), 60)
        await change("periodicFlushFrequencyMilliSeconds=0")
        second = writer.write(1, b"second")
        assert await asyncio.wait([second], timeout=0.1) == (set(), {second})
        await writer.flush()


async def test_an_open_writers_next_segment_has_other_quorums(change):
    async with await change.log.open_writer() as writer:
        writer.write(0, b"first")
        await writer.flush()
        await change(
            "bkcEnsembleSize=2\nbkcWriteQuorumSize=2\nbkcAckQuorumSize=1\nlogSegmentRollingMinutes=0\n"
            "maxLogSegmentBytes=1"
        )
        writer.write(1, b"is over the new size")
        writer.write(2, b"goes into the next segment")
        await writer.flush()
    ledgers = change.namespace.services.ledger_store
    stored = [(await ledgers.read(segment.ledger_id)).value for segment in await change.log.segments()]
    assert [(one.ensemble_size, one.write_quorum, one.ack_quorum) for one in stored][:2] == [(3, 3, 2), (2, 2, 1)]


async def test_an_open_writer_is_given_a_limit(memory_cluster, change):
    async with await change.log.open_writer() as writer:
        writer.write(0, b"first")
        await writer.flush()
        await change("perWriterOutstandingWriteLimit=1\noutstandingWriteLimitDarkmode=false")
        accepted = writer.write(1, b"within the limit")
        with pytest.raises(OverCapacityError):
            await writer.write(2, b"over it")
        await change("")
        writer.write(2, b"without a limit")
        await writer.flush()
        assert accepted.done()


async def test_an_open_writer_begins_to_answer_before_anything_is_stored(change):
    async with await change.log.open_writer() as writer:
        writer.write(0, b"first")
        await writer.flush()
        await change("isDurableWriteEnabled=false")
        assert await asyncio.wait_for(writer.write(1, b"in the buffer"), 60) == DLSN.INVALID
        await change("isDurableWriteEnabled=true")
        third = writer.write(2, b"in the buffer")
        await writer.flush()
        assert await third == DLSN(1, 1, 1)


async def test_an_open_writer_takes_its_next_segment_from_a_pool(memory_cluster, directory):
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory), allocator_pool_name="pool")
    log = await namespace.open_log("flights", {"logSegmentRollingMinutes": 0, "maxLogSegmentBytes": 1})
    async with await log.open_writer() as writer:
        writer.write(0, b"first")
        await writer.flush()
        assert await memory_cluster.operator.exists("/dl/.allocation_pool") is None
        (directory / "flights.conf").write_text("enableLedgerAllocatorPool=true")
        await namespace.reload_settings()
        writer.write(1, b"rolls after this one")
        await writer.flush()
        writer.write(2, b"in the next segment")
        await writer.flush()
        assert len(await log.segments()) > 1
        assert await AllocatorStore(memory_cluster.operator).members("/dl/.allocation_pool/pool")


async def test_an_open_writer_begins_to_fail_fast(change):
    async with await change.log.open_writer() as writer:
        await change("failFastOnStreamNotReady=true")
        writer.write(0, b"starts the segment")
        with pytest.raises(StreamNotReadyError):
            await writer.write(1, b"while it is being started")


async def test_an_open_reader_fetches_further_ahead(memory_cluster, directory):
    namespace = await memory_cluster.namespace(stream_config_directory=str(directory), read_ahead_entries=1)
    log = await namespace.open_log("flights", {"writerOutputBufferSize": 0})
    async with await log.open_writer() as writer:
        for txid in range(50):
            writer.write(txid, b"one entry")
    async with await log.open_reader() as reader:
        await reader.read_next()
        ahead = reader._ahead
        await until(lambda: len(ahead._queue) == 1)
        (directory / "flights.conf").write_text("readAheadMaxRecords=20")
        await namespace.reload_settings()
        await until(lambda: len(ahead._queue) == 20)


async def test_a_read_that_waits_is_given_an_idle_limit(change):
    async with await change.log.open_writer() as writer:
        writer.write(0, b"first")
        await writer.commit()
        async with await change.log.open_reader() as reader:
            await reader.read_next()
            waiting = asyncio.ensure_future(reader.read_next())
            await asyncio.sleep(0)
            await change("readerIdleErrorThresholdMillis=20")
            with pytest.raises(IdleReaderError):
                await asyncio.wait_for(waiting, 60)


# ------------------------------------------------------------------ which keys


def test_a_dynamic_key_can_be_overridden_for_one_log():
    assert all(info.per_log for info in describe_settings() if info.dynamic)


async def test_the_shipped_example_holds_for_a_log(memory_cluster):
    namespace = await memory_cluster.namespace(stream_config_default=str(CONF / "stream.conf"))
    settings = (await namespace.open_log("flights")).settings
    assert (settings.periodic_flush_ms, settings.quorums, settings.read_ahead_entries) == (20, (4, 4, 3), 100)


def test_old_keys_are_understood_in_dynamic_files():
    assert dynamic_values({"ensemble-size": "5"}) == {"bkcEnsembleSize": 5}
