"""Retention: which segments go, when, in which order, and what a crash at any step leaves for the next run."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from helpers.logs import drained, payloads, states, written
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.deletion import HOUR_MS, expired, older_than
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, SettingsError
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.segment_changes import SegmentChanges
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CallerError, DistributedLogError, MetadataUnavailableError
from metadata.zookeeper.memory import Fault

SEGMENTS = [[b"a0", b"a1"], [b"b0"], [b"c0", b"c1"], [b"d0"]]
FLAT = [payload for segment in SEGMENTS for payload in segment]
T = TruncationStatus.TRUNCATED


def _segment(lssn, completed_ms=0, txid=0, truncation=TruncationStatus.ACTIVE):
    return SegmentMetadata(
        ledger_id=100 + lssn,
        lssn=lssn,
        first_txid=txid,
        last_txid=txid,
        completion_time_ms=completed_ms,
        truncation=truncation,
    )


def _open(lssn):
    return SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn, in_progress=True)


def _numbers(segments):
    return [segment.lssn for segment in segments]


class SteppedClock:
    """A wall clock that only moves when it is told to."""

    def __init__(self, now_ms=1_000_000_000_000):
        self.ms = now_ms

    def now_ms(self):
        return self.ms

    def elapsed_s(self):
        return time.monotonic()

    def hours(self, hours):
        self.ms += int(hours * HOUR_MS)


async def _timed(memory_cluster, **settings):
    """A namespace whose clock the test moves."""
    namespace = await memory_cluster.namespace(**settings)
    clock = SteppedClock()
    namespace._services = replace(namespace.services, clock=clock)
    return namespace, clock


async def _ledgers(namespace):
    return [ledger_id async for ledger_id in namespace.ledgers._ledgers.ids()]


async def _rolled(log, txid=10_000):
    """A writer that has started a segment, with its retention run at its end."""
    writer = await log.open_writer()
    writer.write(txid, b"new")
    await writer.flush()
    await until(lambda: writer._retention._run is not None and writer._retention._run.done())
    return writer


# ---------------------------------------------------------------------- the rules


def test_segments_completed_before_the_period_go_from_the_oldest_on():
    segments = [_segment(1, 10), _segment(2, 20), _segment(3, 30), _segment(4, 40)]
    assert _numbers(expired(segments, before_ms=25, only_truncated=False)) == [1, 2]
    assert _numbers(expired(segments, before_ms=10, only_truncated=False)) == []
    mixed = [_segment(1, 10), _segment(2, 99), _segment(3, 20), _segment(4, 40)]
    assert _numbers(expired(mixed, before_ms=50, only_truncated=False)) == [1], "the first that stays ends the walk"


def test_the_newest_completed_segment_stays_however_old_it_is():
    segments = [_segment(1, 1), _segment(2, 2), _segment(3, 3)]
    assert _numbers(expired(segments, before_ms=99, only_truncated=False)) == [1, 2]
    assert _numbers(expired([*segments, _open(4)], before_ms=99, only_truncated=False)) == [1, 2]
    assert expired([_segment(1, 1)], before_ms=99, only_truncated=False) == []
    assert expired([], before_ms=99, only_truncated=False) == []
    assert expired([_open(1)], before_ms=99, only_truncated=False) == []


def test_explicit_truncation_leaves_what_the_application_has_not_truncated():
    segments = [_segment(1, 1, truncation=T), _segment(2, 2), _segment(3, 3, truncation=T), _segment(4, 4)]
    assert _numbers(expired(segments, before_ms=99, only_truncated=True)) == [1]
    partly = replace(segments[1], truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=1)
    assert _numbers(expired([segments[0], partly, *segments[2:]], before_ms=99, only_truncated=True)) == [1]


def test_purging_by_transaction_id_keeps_the_segment_that_reaches_it():
    segments = [_segment(1, txid=10), _segment(2, txid=20), _segment(3, txid=20), _segment(4, txid=40)]
    assert _numbers(older_than(segments, 20)) == [1]
    assert _numbers(older_than(segments, 21)) == [1, 2, 3]
    assert _numbers(older_than(segments, 99)) == [1, 2, 3]
    assert older_than(segments, 0) == []


def test_the_settings_have_upstreams_keys_and_the_old_one():
    settings = Settings.from_mapping({"retention-size": 5, "explicitTruncationByApp": "true"})
    assert (settings.retention_hours, settings.explicit_truncation) == (5, True)
    assert Settings().retention_hours == 72
    with pytest.raises(SettingsError):
        Settings.from_mapping({"logSegmentRetentionHours": "long"})


# ---------------------------------------------------------------------- runs


async def test_expired_segments_go_with_their_ledgers_when_the_next_segment_starts(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=2)
    log = await written(namespace, "log", SEGMENTS[:2])
    clock.hours(1.5)
    await written(namespace, "log", SEGMENTS[2:], start=1000)
    assert len(await log.segments()) == 4
    clock.hours(1)
    writer = await _rolled(log)
    left = await log.segments()
    assert _numbers(left) == [3, 4, 5]
    assert sorted(segment.ledger_id for segment in left) == await _ledgers(namespace)
    assert (await log.status()).deleted_ledgers == ()
    await writer.close()
    assert await payloads(log) == [b"c0", b"c1", b"d0", b"new"]
    assert namespace.counters["segments-purged"] == 2


async def test_a_clock_that_jumps_ahead_of_the_metadata_stores_expires_nothing(memory_cluster, caplog):
    namespace, clock = await _timed(memory_cluster)
    clock.ms = int(time.time() * 1000)  # the metadata store's
    log = await written(namespace, "ahead", SEGMENTS)
    clock.hours(1000)
    async with await log.open_writer() as writer:
        await writer.write(writer.last_txid + 1, b"e")
        await until(lambda: "ahead of the metadata" in caplog.text or namespace.counters["segments-purged"])
    assert await payloads(log) == [*FLAT, b"e"]
    assert len(await _ledgers(namespace)) == len(SEGMENTS) + 1


async def test_sequence_ids_go_on_when_everything_before_the_newest_segment_is_purged(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=1)
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(5)
    await (await _rolled(log)).close()
    assert _numbers(await log.segments()) == [4, 5]
    async with await log.open_reader() as reader:
        assert [(await reader.read_next()).sequence_id for _ in range(2)] == [5, 6]


@pytest.mark.parametrize("hours", [0, -1])
async def test_a_retention_of_zero_or_less_keeps_everything(memory_cluster, hours):
    namespace, clock = await _timed(memory_cluster, retention_hours=hours)
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(100_000)
    await (await _rolled(log)).close()
    assert len(await log.segments()) == 5


async def test_with_explicit_truncation_only_what_was_truncated_expires(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=1, explicit_truncation=True)
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(5)
    writer = await _rolled(log)
    assert _numbers(await log.segments()) == [1, 2, 3, 4, 5]
    await writer.truncate(DLSN(3, 1, 0))
    await writer.close()
    clock.hours(5)
    await (await _rolled(log)).close()
    assert states(await log.segments()) == ["3:1:0", "a", "a", "a"]


async def test_one_logs_own_retention_holds_for_it_alone(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=0)
    for name in ("short", "long"):
        await written(namespace, name, SEGMENTS)
    clock.hours(5)
    short = await namespace.open_log("short", {"logSegmentRetentionHours": 1})
    long = await namespace.open_log("long")
    for log in (short, long):
        await (await _rolled(log)).close()
    assert [len(await log.segments()) for log in (short, long)] == [2, 5]


async def test_an_open_writer_takes_a_new_retention_from_the_dynamic_settings(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=0)
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(5)
    writer = await _rolled(log)
    assert len(await log.segments()) == 5
    log._live.change(replace(log.settings, retention_hours=1))
    writer._retention.begin()
    await until(lambda: writer._retention._run.done())
    assert _numbers(await log.segments()) == [4, 5]
    await writer.close()


async def test_one_run_at_a_time_and_closing_the_writer_ends_it(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=1)
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(5)
    writer = await log.open_writer()
    entered, purges = asyncio.Event(), []

    async def stuck(rule, *, keeps_files):
        purges.append(rule)
        entered.set()
        await asyncio.Event().wait()

    writer.owned.purge = stuck
    await writer.write(1000, b"new")
    await entered.wait()
    writer._retention.begin()
    await asyncio.sleep(0)
    assert len(purges) == 1
    await asyncio.wait_for(writer.close(), 60)
    writer._retention.begin()
    assert writer._retention._run.done()


async def test_a_run_that_fails_hinders_nobody_and_the_next_one_makes_up_for_it(memory_cluster):
    namespace, clock = await _timed(memory_cluster, retention_hours=1)
    log = await written(namespace, "log", SEGMENTS)
    clock.hours(5)
    writer = await log.open_writer()

    async def failing(rule):
        raise MetadataUnavailableError("no")

    purge, writer.owned.purge = writer.owned.purge, failing
    await writer.write(1000, b"new")
    await until(lambda: writer._retention._run is not None and writer._retention._run.done())
    await writer.write(1001, b"newer")
    assert len(await log.segments()) == 5
    writer.owned.purge = purge
    writer._retention.begin()
    await until(lambda: writer._retention._run.done())
    assert _numbers(await log.segments()) == [4, 5]
    await writer.close()


# ---------------------------------------------------------------------- by transaction id


async def test_purging_by_transaction_id_takes_the_lock_or_the_writer_of_the_handle(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace(lock_timeout_s=0)
    log = await written(namespace, "log", SEGMENTS)  # a segment's last ids: 10, 20, 40, 50
    elsewhere = await other.open_log("log")
    writer = await log.open_writer("the writer")
    with pytest.raises(OwnershipAcquireFailedError, match="the writer"):
        await elsewhere.purge_older_than(11)
    assert await log.purge_older_than(11) == 1
    await writer.close()
    assert await elsewhere.purge_older_than(1_000_000) == 2
    assert await elsewhere.purge_older_than(1_000_000) == 0
    assert _numbers(await log.segments()) == [4]
    assert len(await _ledgers(namespace)) == 1
    for wrong in (-1, True, "5"):
        with pytest.raises(CallerError):
            await log.purge_older_than(wrong)


async def test_a_reader_inside_what_is_purged_gets_the_error_and_one_behind_it_does_not_notice(memory_cluster):
    namespace = await memory_cluster.namespace(read_ahead_entries=1)
    log = await written(namespace, "log", SEGMENTS)
    async with await log.open_reader() as inside, await log.open_reader(DLSN(3, 0, 0)) as behind:
        assert (await inside.read_next()).payload == b"a0"
        assert (await behind.read_next()).payload == b"c0"
        await log.purge_older_than(35)
        with pytest.raises(AlreadyTruncatedError):
            await drained(inside)
        assert await drained(behind) == [b"c1", b"d0"]
    assert isinstance(await payloads(log, DLSN(2, 0, 0)), AlreadyTruncatedError)
    assert await payloads(log) == [b"c0", b"c1", b"d0"]


# ---------------------------------------------------------------------- crashes


def _steps(memory_cluster, namespace):
    """Count the changes that this client asks for from now on; its process stands still before the one numbered
    `memory_cluster.stop_at`."""
    session, count = namespace.store.session_id, [0]

    def inject(asked, operation, path):
        if asked == session and operation in ("multi", "delete", "put", "create"):
            count[0] += 1
            if count[0] > memory_cluster.stop_at:
                return Fault.REFUSE
        return None

    memory_cluster.tree.inject = inject
    return count


@pytest.mark.parametrize("step", range(13))
async def test_after_a_crash_at_any_step_no_listed_segment_lacks_its_ledger_and_the_next_run_leaves_none(
    memory_cluster, step
):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(one, "log", SEGMENTS)
    before = {segment.lssn: segment.ledger_id for segment in await log.segments()}
    memory_cluster.stop_at = step + 1  # the lock's member is the first
    count = _steps(memory_cluster, one)
    purging = asyncio.ensure_future(log.purge_older_than(45))
    await until(lambda: purging.done() or count[0] > memory_cluster.stop_at)
    memory_cluster.tree.inject = None
    purging.cancel()
    await asyncio.wait([purging])
    crashed = count[0] > memory_cluster.stop_at
    await memory_cluster.crash(one)
    again = await other.open_log("log")
    ledgers = await _ledgers(other)
    listed = await again.segments()
    assert {segment.ledger_id for segment in listed} <= set(ledgers), "a listed segment has its ledger"
    assert await payloads(again) == ([b"d0"] if len(listed) == 1 else FLAT)
    noted = (await again.status()).deleted_ledgers
    assert set(ledgers) <= {*(segment.ledger_id for segment in listed), *noted}, "no ledger is forgotten"
    # The next owner's run sweeps, whatever its retention.
    writer = await _rolled(again)
    await writer.close()
    if step == 0:
        assert len(listed) == 4
    else:
        assert _numbers(await again.segments()) == [4, 5]
        assert await _ledgers(other) == sorted([before[4], (await again.segments())[1].ledger_id])
        assert (await again.status()).deleted_ledgers == ()
    assert crashed == (step < 12), "the last step is the end"


async def test_the_list_is_changed_before_any_ledger_is_deleted(namespace, monkeypatch):
    log = await written(namespace, "log", SEGMENTS)
    deleted = []
    delete = namespace.ledgers.delete

    async def watched(ledger_id):
        deleted.append(ledger_id)
        assert ledger_id not in [segment.ledger_id for segment in await log.segments()]
        assert ledger_id in await SegmentChanges(namespace.logs_store, "log").noted()
        await delete(ledger_id)

    monkeypatch.setattr(namespace.ledgers, "delete", watched)
    assert await log.purge_older_than(1000) == 3
    assert len(deleted) == 3


async def test_a_purge_by_who_has_lost_the_lock_changes_nothing(memory_cluster):
    namespace, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log = await written(namespace, "log", SEGMENTS)
    writer = await log.open_writer("old")
    guard = writer.owned.guard()
    await other.store.delete(guard.path)
    with pytest.raises(Exception, match="the lock was lost"):
        await log.purge_older_than(1000)
    assert len(await log.segments()) == 4
    assert len(await _ledgers(namespace)) == 4
    await writer.abort()


async def test_what_a_log_says_of_its_producers_is_not_deleted_before_it_is_said_again_i19(memory_cluster):
    """A new owner knows it, and has not stored it yet: if it died now, nobody would."""
    namespace, clock = await _timed(memory_cluster, retention_hours=1)
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        first = writer.append([(1, b"a")], producer="p", sequence=0)
        await writer.flush()
    for txid in (2, 3):
        async with await log.open_writer() as plain:
            plain.write(txid, b"plain")
    clock.hours(5)
    doomed = await log.open_writer(producers=True)
    for bookie in memory_cluster.bookies:
        bookie.stop()
    lost = doomed.append([(4, b"b")], producer="p", sequence=1)
    await until(lambda: doomed._retention._run is not None and doomed._retention._run.done())
    with suppress(DistributedLogError):
        await doomed.flush()
    assert isinstance(lost.exception(), DistributedLogError)
    await doomed.abort()
    for bookie in memory_cluster.bookies:
        bookie.up = True
    async with await log.open_writer(producers=True) as writer:
        again = writer.append([(4, b"a")], producer="p", sequence=0)
        await writer.flush()
        assert again.result() == first.result()._replace(repeated=True)
        writer.append([(4, b"b")], producer="p", sequence=1)
        await writer.flush()
    for _ in range(2):
        async with await log.open_writer(producers=True) as writer:
            writer.append([(9, b"c")])
            await writer.flush()
            await until(lambda: writer._retention._run is not None and writer._retention._run.done())
    assert min(_numbers(await log.segments())) > 1, "later it goes"
