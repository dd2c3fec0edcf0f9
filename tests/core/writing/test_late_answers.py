"""Acknowledgements that come late are given only while the log has no other owner (the writer's side of a failover)."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace

import pytest
from helpers.logs import payloads
from helpers.waiting import until

from dlspark.core.writing.acknowledgements import SESSION_SHARE
from dlspark.errors import TransmitError, WriterDeposedError
from storage_node.edge import SystemClock

SESSION_S = 60
STANDSTILL_S = SESSION_S * SESSION_SHARE + 1
"""How long the storage nodes' answers are kept from the writer: it cannot tell that from having stood still itself."""


class _SetClock:
    """A clock that goes on only when it is told to: a busy machine makes no answer late. The event loop knows
    nothing of it, as of a machine that is suspended."""

    def __init__(self):
        self.elapsed = 0.0

    def now_ms(self):
        return time.time_ns() // 1_000_000

    def elapsed_s(self):
        return self.elapsed


async def _timed(memory_cluster):
    """A client, and the clock by which its writers tell what is late."""
    namespace = await memory_cluster.namespace(zk_session_timeout_s=SESSION_S)
    clock = _SetClock()
    namespace._services = replace(namespace.services, clock=clock)
    return namespace, clock


async def _sent(memory_cluster, name):
    """A writer with three entries that are stored everywhere, and of which it has not heard for a long time."""
    namespace, clock = await _timed(memory_cluster)
    log = await namespace.open_log(name, {"writerOutputBufferSize": 0})
    writer = await log.open_writer()
    await writer.write(0, b"in time")
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    late = [writer.write(i, b"late %d" % i) for i in (1, 2, 3)]
    await until(lambda: sum(len(bookie._held) for bookie in memory_cluster.bookies) == 9)
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = False  # what is held back stays so until `_release`
    clock.elapsed += STANDSTILL_S
    return namespace, writer, late


def _release(memory_cluster):
    for bookie in memory_cluster.bookies:
        bookie.release()


async def test_a_late_answer_is_given_in_its_order_while_nobody_else_has_the_log(memory_cluster):
    namespace, writer, late = await _sent(memory_cluster, "kept")
    _release(memory_cluster)
    dlsns = await asyncio.gather(*late)
    assert namespace.counters["late-answers-held"] == 1
    assert dlsns == sorted(dlsns)
    assert await writer.write(4, b"after") > dlsns[-1]
    await writer.close()
    assert namespace.counters["late-answers-held"] == 1, "what comes in time is not held back"


async def test_standing_still_right_after_sending_makes_an_answer_late(memory_cluster, monkeypatch):
    namespace, clock = await _timed(memory_cluster)
    log = await namespace.open_log("still", {"writerOutputBufferSize": 0})
    writer = await log.open_writer()
    await writer.write(0, b"in time")
    ledger = writer._sequence.current.ledger
    add = ledger.add

    def and_stand_still(*payload):
        added = add(*payload)
        clock.elapsed += STANDSTILL_S
        return added

    monkeypatch.setattr(ledger, "add", and_stand_still)
    await writer.write(1, b"late")
    assert namespace.counters["late-answers-held"] == 1
    await writer.close()


async def test_an_answer_that_comes_after_another_owners_first_acknowledgement_is_not_given(memory_cluster):
    namespace, writer, late = await _sent(memory_cluster, "lost")
    memory_cluster.cut_off(namespace)
    other = await memory_cluster.namespace(zk_session_timeout_s=SESSION_S)
    log = await other.open_log("lost", {"writerOutputBufferSize": 0})
    successor = await log.open_writer()
    await successor.write(10, b"the successor's")
    await successor.commit()
    memory_cluster.tree.inject = None  # the former owner's metadata store is back before it hears the answers
    _release(memory_cluster)
    for future in late:
        with pytest.raises(TransmitError) as raised:
            await future
        assert isinstance(raised.value.__cause__, WriterDeposedError)
    await successor.close()
    assert await payloads(log) == [b"in time", b"late 1", b"late 2", b"late 3", b"the successor's"]
    await writer.abort()


async def test_an_answer_that_waited_while_the_machine_was_suspended_is_late(memory_cluster):
    namespace, clock = await _timed(memory_cluster)
    writer = await (await namespace.open_log("suspended", {"writerOutputBufferSize": 0})).open_writer()
    await writer.write(0, b"in time")
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    received = writer.write(1, b"before the machine was suspended")
    await until(lambda: sum(len(bookie._held) for bookie in memory_cluster.bookies) == 3)
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = False  # what is held back stays so until `_release`
    clock.elapsed += 3_600.0
    memory_cluster.cut_off(namespace)  # its session has ended meanwhile
    other = await memory_cluster.namespace()
    log = await other.open_log("suspended", {"writerOutputBufferSize": 0})
    async with await log.open_writer() as successor:
        await successor.write(2, b"the successor's")
        memory_cluster.tree.inject = None
        _release(memory_cluster)
        with pytest.raises(TransmitError) as raised:
            await received
        assert isinstance(raised.value.__cause__, WriterDeposedError)
    assert namespace.counters["late-answers-held"] == 1
    await writer.abort()


def test_the_machines_clock_goes_on_while_it_is_suspended(monkeypatch):
    clock = SystemClock()
    before = clock.elapsed_s()
    assert clock.elapsed_s() >= before
    if sys.platform == "linux":
        monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.__getitem__)
        assert clock.elapsed_s() == 7.0


async def test_answers_that_are_held_back_when_the_writer_is_given_up_end_as_unknown(memory_cluster):
    namespace, writer, late = await _sent(memory_cluster, "given-up")
    reached = asyncio.Event()
    waiting = asyncio.Event()
    store = namespace.store
    sync = store.sync

    async def stuck(path):
        reached.set()
        await waiting.wait()
        await sync(path)

    store.sync = stuck
    _release(memory_cluster)
    await reached.wait()
    store.sync = sync
    await writer.abort()
    for future in late:
        with pytest.raises(TransmitError):
            await future
