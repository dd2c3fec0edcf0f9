"""Rolling for cold storage: a segment with records ends with its log's slot, also where nobody writes any more."""

from __future__ import annotations

import asyncio

import pytest
from helpers.waiting import until

from dlspark.core.settings.cold import slot_start_ms
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.slot_rolls import SlotRolls

NOW_MS = 1_764_300_000_000


class _Clock:
    def now_ms(self) -> int:
        return NOW_MS

    def elapsed_s(self) -> float:
        return 0.0


@pytest.fixture
async def namespace(memory_cluster, tmp_path):
    return await memory_cluster.namespace(cold_path=str(tmp_path), output_buffer_bytes=0)


def _end_slot(writer) -> None:
    writer._sequence.slots._ends = asyncio.get_running_loop().time() - 1


async def test_a_slot_ends_when_the_next_one_begins():
    rolls = SlotRolls("flights", _Clock(), Settings(cold_path="/cold"), lambda: True)
    rolls.begin()
    left_s = rolls._ends - asyncio.get_running_loop().time()
    assert any(abs(left_s * 1000 - (slot_start_ms("flights", 288.0, slot) - NOW_MS)) < 1000 for slot in _slots())
    assert 0 < left_s <= 288
    rolls.stop()
    rolls.begin()
    assert not rolls.ended


def _slots():
    first = NOW_MS // 288_000
    return range(first - 1, first + 3)


async def test_without_cold_storage_or_freshness_no_slot_ends():
    for settings in (Settings(), Settings(cold_path="/cold", cold_freshness_s=0)):
        rolls = SlotRolls("flights", _Clock(), settings, lambda: True)
        rolls.begin()
        assert rolls._ends is None
    rolls.use_settings(Settings(cold_path="/cold"))
    assert rolls._ends is not None
    rolls.use_settings(Settings())
    assert rolls._ends is None


async def test_the_next_record_after_the_end_rolls_the_segment(namespace):
    log = await namespace.open_log("written")
    async with await log.open_writer() as writer:
        await writer.write(1, b"a")
        _end_slot(writer)
        await writer.write(2, b"b")
        await until(lambda: writer.segment == 2)
    assert [segment.record_count for segment in await log.segments()] == [2, 0]


async def test_a_segment_that_nobody_writes_to_ends_as_well_and_an_empty_one_goes_on(namespace):
    log = await namespace.open_log("quiet")
    async with await log.open_writer() as writer:
        await writer.write(1, b"a")
        _end_slot(writer)
        writer._sequence.slots._look()
        await until(lambda: writer.segment == 2 and writer._issuer._transition is None)
        _end_slot(writer)
        writer._sequence.slots._look()
        assert not writer._sequence.slots.ended, "it waits for the next slot"
        assert writer._issuer._transition is None
        assert writer.segment == 2
    assert [segment.record_count for segment in await log.segments()] == [1, 0]


async def test_many_logs_of_a_process_need_no_permit_for_it(memory_cluster, tmp_path):
    namespace = await memory_cluster.namespace(cold_path=str(tmp_path), rolling_concurrency=1, output_buffer_bytes=0)
    for name in ("a", "b", "c"):
        async with await (await namespace.open_log(name)).open_writer() as writer:
            await writer.write(1, b"a")
            _end_slot(writer)
            writer._sequence.slots._look()
            await until(lambda writer=writer: writer.segment == 2)


async def test_what_cannot_roll_now_is_asked_again_and_not_with_every_record(memory_cluster, namespace):
    log = await namespace.open_log("late")
    async with await log.open_writer() as writer:
        await writer.write(1, b"a")
        slots = writer._sequence.slots
        _end_slot(writer)
        slots.put_off()
        assert not slots.ended
        await writer.write(2, b"b")
        assert writer.segment == 1


async def test_a_closed_writer_rolls_nothing(namespace):
    log = await namespace.open_log("closed")
    writer = await log.open_writer()
    await writer.write(1, b"a")
    await writer.close()
    assert writer._sequence.slots._ends is None
    assert [segment.record_count for segment in await log.segments()] == [1]
