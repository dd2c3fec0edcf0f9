"""What sharing must not change, and what it must spare: reads of the storage nodes, slow readers, bounds, failures."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.logs import written
from helpers.serving.read_world import Puller, ReadWorld
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import ReadError
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.operations import Delivery, ReadForm, ReadFrom, Refusal, StatusCode

FORMS = list(ReadForm)
MIB = 1024 * 1024


def entries_read(read_world: ReadWorld) -> int:
    return sum(read_world.served.values())


async def one_entry_each(namespace, name, count, *, start=0, size=10):
    """Append records, one an entry, and complete their segment."""
    payloads = [b"%d:" % (start + i) + b"." * size for i in range(count)]
    log = await namespace.open_log(name, {"writerOutputBufferSize": 0})
    async with await log.open_writer() as writer:
        for i, payload in enumerate(payloads):
            writer.write(start + i, payload)
    await log.close()
    return payloads


async def reads_of(read_world: ReadWorld, readers: int) -> int:
    """How often entries are read where so many readers follow one log from its beginning to what comes."""
    namespace = await read_world.namespace()
    payloads = await one_entry_each(namespace, "log", 40)
    service = await read_world.proxy()
    before = entries_read(read_world)
    all_readers = [Puller(service, "log", caller=Caller(f"c{i}"), form=FORMS[i % 3]) for i in range(readers)]
    reading = [asyncio.ensure_future(reader.until(80)) for reader in all_readers]
    await until(lambda: all(len(reader.payloads) == 40 for reader in all_readers))
    payloads += await one_entry_each(namespace, "log", 40, start=40)
    assert await asyncio.gather(*reading) == [None] * readers
    assert [reader.payloads for reader in all_readers] == [payloads] * readers
    return entries_read(read_world) - before


async def test_two_hundred_readers_cost_the_storage_nodes_as_many_reads_as_one(read_world: ReadWorld):
    other = ReadWorld()
    await other.start()
    try:
        alone = await reads_of(other, 1)
    finally:
        await other.stop()
    together = await reads_of(read_world, 200)
    # Beside the entries of the log: a few that hold a writer's control records, and where the end was asked for.
    assert 80 <= alone <= 90
    assert together <= alone + 5


async def test_a_chunk_is_decoded_once_for_all_readers_of_a_form(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await one_entry_each(namespace, "log", 10)
    service = await read_world.proxy()
    readers = [Puller(service, "log", caller=Caller(f"c{i}")) for i in range(50)]
    await asyncio.gather(*(reader.until(10) for reader in readers))
    figures = service.figures()
    assert figures.chunks_decoded <= 12
    assert figures.chunks_shared >= 40


async def test_a_slow_reader_loses_only_its_place_in_the_ring(read_world: ReadWorld):
    namespace = await read_world.namespace()
    service = await read_world.proxy(ring_bytes=2 * MIB, rings_bytes=2 * MIB)
    payloads = await one_entry_each(namespace, "log", 5, size=10_000)
    slow = Puller(service, "log", caller=Caller("slow"), max_bytes=1)
    quick = Puller(service, "log", caller=Caller("quick"))
    await slow.until(1)
    await quick.until(5)
    for turn in range(4):  # 4 MB: more than the ring holds
        payloads += await one_entry_each(namespace, "log", 100, start=len(payloads), size=10_000)
        assert await asyncio.wait_for(quick.until(len(payloads)), 60) is None
        assert service.figures().ring_bytes <= 2 * MIB, turn
    before = entries_read(read_world)
    slow.max_bytes = MIB
    assert await asyncio.wait_for(slow.until(len(payloads)), 60) is None
    assert slow.payloads == quick.payloads == payloads
    # It has read what was missing by itself, once, and then joined the others.
    assert entries_read(read_world) - before <= 450
    await until(lambda: service.figures().catch_ups == 0)


async def test_those_who_catch_up_wait_for_their_turn_and_all_get_it(read_world: ReadWorld):
    namespace = await read_world.namespace()
    service = await read_world.proxy(max_catch_ups=2, catch_up_turn_bytes=3000, catch_up_idle_ms=1)
    payloads = {name: await one_entry_each(namespace, name, 30, size=200) for name in ("a", "b", "c", "d", "e")}
    readers = [
        Puller(service, name, DLSN(1, i, 0), caller=Caller(f"{name}{i}"), max_bytes=600)
        for name in payloads
        for i in (0, 11)
    ]
    most = 0

    async def read(reader):
        nonlocal most
        count = 30 - reader.position.entry_id
        while len(reader.payloads) < count:
            answer = await reader.pull()
            assert isinstance(answer, Delivery), answer
            most = max(most, service.figures().catch_ups)

    await asyncio.wait_for(asyncio.gather(*map(read, readers)), 60)
    for reader in readers:
        assert reader.payloads == payloads[reader.stream][-len(reader.payloads) :]
    assert most == 2
    await until(lambda: service.figures().catch_ups == 0)


async def test_a_reader_that_asks_for_nothing_loses_its_turn_to_one_that_waits(read_world: ReadWorld):
    namespace = await read_world.namespace()
    service = await read_world.proxy(max_catch_ups=1, catch_up_idle_ms=1)
    for name in ("a", "b"):
        await one_entry_each(namespace, name, 20, size=200)
    idle, other = Puller(service, "a", max_bytes=1), Puller(service, "b", number=1)
    await idle.pull()
    assert await asyncio.wait_for(other.until(20), 60) is None
    assert await asyncio.wait_for(idle.until(20), 60) is None


async def test_a_reader_that_asks_for_little_again_and_again_does_not_keep_its_turn(
    read_world: ReadWorld, monkeypatch: pytest.MonkeyPatch
):
    """One for each turn that there is, and nobody else would ever catch up."""
    monkeypatch.setattr("dlspark.serving.read_proxy.service.SWEEP_S", 0.01)
    monkeypatch.setattr("dlspark.serving.read_proxy.service.LONGEST_TURN_S", 0.0)
    namespace = await read_world.namespace()
    service = await read_world.proxy(max_catch_ups=1, catch_up_idle_ms=60_000)
    payloads = {name: await one_entry_each(namespace, name, 20, size=200) for name in ("a", "b")}
    slow, other = Puller(service, "a", max_bytes=1), Puller(service, "b", caller=Caller("client:2"), max_bytes=1)
    await slow.pull()
    assert await asyncio.wait_for(other.until(20), 60) is None
    assert await asyncio.wait_for(slow.until(20), 60) is None
    assert [slow.payloads, other.payloads] == [payloads["a"], payloads["b"]]


async def test_calls_of_one_connection_wait_for_their_turns_behind_each_other(read_world: ReadWorld):
    """Each call of gRPC is a caller of its own: a client that begins many must not keep another connection waiting."""
    namespace = await read_world.namespace()
    service = await read_world.proxy(max_catch_ups=1, catch_up_idle_ms=1)
    names = [*(f"greedy-{number}" for number in range(3)), "modest"]
    for name in names:
        await one_entry_each(namespace, name, 20, size=200)
    order = []
    asked = []
    # In one step: while one log was written, those that had asked before could all have had their turns.
    for name in names:
        reader = Puller(service, name, caller=Caller(f"{name.partition('-')[0]}:1"), max_bytes=1)
        asked.append(reader.ask())
        asked[-1].add_done_callback(lambda _, name=name: order.append(name))
    await asyncio.wait_for(asyncio.gather(*asked), 60)
    assert order.index("modest") < 3, order


async def test_the_rings_of_all_logs_together_are_bounded(read_world: ReadWorld):
    namespace = await read_world.namespace()
    service = await read_world.proxy(ring_bytes=2 * MIB, rings_bytes=3 * MIB, decoded_bytes=MIB)
    readers = []
    for name in ("a", "b", "c"):
        await one_entry_each(namespace, name, 1)
        readers.append(Puller(service, name, caller=Caller(name)))
        await readers[-1].until(1)
    for turn in range(3):
        for reader in readers:
            await one_entry_each(namespace, reader.stream, 80, start=1 + 80 * turn, size=10_000)
            await reader.until(len(reader.payloads) + 80)
            figures = service.figures()
            assert figures.ring_bytes <= 3 * MIB
            assert figures.decoded_bytes <= MIB
    for reader in readers:
        numbers = [int(payload.split(b":")[0]) for payload in reader.payloads]
        assert numbers == list(range(241))


# ---------------------------------------------------------------------- bounds


async def test_readers_are_bounded_for_each_connection_and_together(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy(max_readers=3, max_caller_readers=2)
    caller = Caller("c")
    for i in range(2):
        await Puller(service, "log", caller=caller, number=i).until(1)
    refused = await Puller(service, "log", caller=caller, number=2).pull()
    assert isinstance(refused, Refusal)
    assert refused.code is StatusCode.OVER_CAPACITY
    other = Caller("o")
    await Puller(service, "log", caller=other).until(1)
    refused = await Puller(service, "log", caller=other, number=1).pull()
    assert isinstance(refused, Refusal)
    assert refused.code is StatusCode.OVER_CAPACITY
    service.caller_gone(caller)
    assert await Puller(service, "log", caller=other, number=1).until(1) is None


async def test_logs_are_bounded_and_one_without_readers_makes_room(read_world: ReadWorld):
    namespace = await read_world.namespace()
    for name in ("a", "b", "c"):
        await written(namespace, name, [[b"x"]])
    service = await read_world.proxy(max_logs=2, linger_ms=60_000)
    callers = [Caller(name) for name in "ab"]
    for caller in callers:
        await Puller(service, caller.address, caller=caller).until(1)
    refused = await Puller(service, "c").pull()
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.error) == (StatusCode.TOO_MANY_STREAMS, "TooManyStreamsError")
    service.caller_gone(callers[0])
    assert await Puller(service, "c").until(1) is None
    assert service.figures().logs == 2


async def test_the_place_of_a_reader_that_never_comes_back_is_given_up(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a", b"b"]])
    service = await read_world.proxy(reader_idle_ms=1)
    reader = Puller(service, "log", max_bytes=1)
    await reader.pull()
    await until(lambda: service.figures().readers == 0)
    await until(lambda: service.figures().logs == 0)
    assert await reader.until(2) is None
    assert reader.payloads == [b"a", b"b"]


async def test_a_log_is_read_on_for_a_while_after_its_last_reader(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await one_entry_each(namespace, "log", 1)
    service = await read_world.proxy(linger_ms=60_000)
    caller = Caller("c")
    reader = Puller(service, "log", caller=caller)
    await reader.until(1)
    service.caller_gone(caller)
    await one_entry_each(namespace, "log", 10, start=1)
    await until(lambda: service.figures().ring_bytes > 10 * 500)
    before = entries_read(read_world)
    reader.position = DLSN(2, 0, 0)
    assert await reader.until(11) is None
    assert entries_read(read_world) == before


# ---------------------------------------------------------------------- what happens to the log


async def test_truncation_is_an_error_with_the_way_on(read_world: ReadWorld):
    namespace = await read_world.namespace()
    log = await written(namespace, "log", [[b"a0", b"a1"], [b"b0", b"b1"], [b"c0"]])
    await log.truncate(DLSN(2, 1, 0))
    service = await read_world.proxy()
    refused = await Puller(service, "log", DLSN(1, 0, 1)).pull()
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.error) == (StatusCode.TRUNCATED_TRANSACTION, "AlreadyTruncatedError")
    assert "2:1:0" in (refused.advice or "")
    assert "another reader goes on there" not in (refused.advice or "")
    assert service.figures().readers == 0
    for start in (ReadFrom.OLDEST, DLSN.INITIAL, DLSN(2, 1, 0), 0):
        reader = Puller(service, "log", start)
        assert await reader.until(2) is None
        assert reader.payloads == [b"b1", b"c0"]


async def test_truncation_is_seen_by_who_comes_after_it_though_the_ring_has_the_records(read_world: ReadWorld):
    namespace = await read_world.namespace()
    service = await read_world.proxy(linger_ms=60_000)
    log = await written(namespace, "log", [[b"z"]])
    tailing = Puller(service, "log")
    await tailing.until(1)
    await written(namespace, "log", [[b"a0", b"a1"], [b"b0"]], start=100)
    await tailing.until(4)
    await log.truncate(DLSN(3, 0, 0))
    refused = None
    while refused is None:
        refused = await Puller(service, "log", DLSN(2, 0, 0), number=1).until(1)
    assert refused.code is StatusCode.TRUNCATED_TRANSACTION
    reader = Puller(service, "log", number=2)
    assert await reader.until(1) is None
    assert reader.payloads == [b"b0"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_log_that_is_deleted_ends_for_its_readers_and_may_come_again(read_world: ReadWorld, form):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy()
    readers = [Puller(service, "log", caller=Caller(str(i)), form=form) for i in range(3)]
    reading = [asyncio.ensure_future(reader.to_end()) for reader in readers]
    await until(lambda: all(reader.payloads for reader in readers) and service.figures().waiting == 3)
    await namespace.delete_log("log")
    for refused in await asyncio.wait_for(asyncio.gather(*reading), 60):
        assert refused is not None
        assert refused.code is StatusCode.LOG_NOT_FOUND
    assert service.figures().readers == 0
    await written(namespace, "log", [[b"new"]])
    reader = Puller(service, "log", form=form)
    assert await reader.until(1) is None
    assert reader.payloads == [b"new"]


async def test_storage_nodes_that_fail_for_a_while_are_waited_out(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await one_entry_each(namespace, "log", 3)
    service = await read_world.proxy()
    reader = Puller(service, "log")
    assert await reader.until(3) is None
    payloads = await one_entry_each(namespace, "log", 3, start=3)
    for bookie in read_world.bookies:
        bookie.stop()
    waiting = asyncio.ensure_future(Puller(service, "log", DLSN(2, 0, 0), number=1, wait_ms=30_000).pull())
    await asyncio.sleep(0)
    for bookie in read_world.bookies:
        bookie.up = True
    answer = await asyncio.wait_for(waiting, 60)
    assert isinstance(answer, Delivery)
    assert await reader.until(6) is None
    assert reader.payloads[3:] == payloads


async def test_a_feed_that_fails_tells_its_readers_and_the_next_one_recovers(read_world: ReadWorld):
    """What waits is refused, and is safe to ask again."""
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    serving = await read_world.namespace()
    service = await read_world.proxy(serving)
    reader = Puller(service, "log")
    waiting = asyncio.ensure_future(reader.to_end())
    await until(lambda: reader.payloads and service.figures().waiting == 1)
    log = service._logs["log"]
    log.tail.feed._source._end(ReadError("the storage nodes were away for too long"))
    refused = await asyncio.wait_for(waiting, 60)
    assert refused is not None
    assert refused.code is StatusCode.LOG_READ_ERROR
    assert "another reader goes on there" in (refused.advice or "")
    await written(namespace, "log", [[b"b"]], start=100)
    assert await reader.until(2) is None
    assert reader.payloads == [b"a", b"b"]


# ---------------------------------------------------------------------- all of it together


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_readers_do_each_gets_what_a_direct_reader_gets(read_world: ReadWorld, seed):
    """Readers of any pace, form and amount, from anywhere, that go from proxy to proxy, while segments roll and rings
    forget; the log is sealed at last."""
    rng = random.Random(seed)
    namespace = await read_world.namespace()
    small = {"ring_bytes": 2 * MIB, "rings_bytes": 2 * MIB, "decoded_bytes": MIB, "max_catch_ups": 2}
    proxies = [await read_world.proxy(catch_up_turn_bytes=MIB, catch_up_idle_ms=1, **small) for _ in range(2)]
    await one_entry_each(namespace, "log", 30, size=10_000)
    starts = [ReadFrom.OLDEST, DLSN(1, 7, 0), 11, DLSN(1, 29, 0), DLSN(2, 3, 0), ReadFrom.OLDEST]
    readers = [
        Puller(proxies[i % 2], "log", start, caller=Caller(f"c{i}"), form=rng.choice(FORMS))
        for i, start in enumerate(starts)
    ]

    async def read(reader: Puller) -> Refusal | None:
        hurry = rng.random() < 0.5
        while not reader.ended:
            reader.max_bytes = rng.choice([1, 30_000, MIB])
            reader.wait_ms = rng.choice([0, 20, 1000])
            answer = await reader.pull()
            if isinstance(answer, Refusal):
                return answer
            for _ in range(0 if hurry else rng.randrange(30)):
                await asyncio.sleep(0)
            if rng.random() < 0.02:
                reader.service = rng.choice(proxies)
        return None

    reading = [asyncio.ensure_future(read(reader)) for reader in readers]
    come = 30
    while come < 400:
        come += len(await one_entry_each(namespace, "log", rng.randrange(1, 60), start=come, size=10_000))
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        await writer.mark_end_of_stream()
    assert await asyncio.wait_for(asyncio.gather(*reading), 60) == [None] * len(readers)
    for reader, start in zip(readers, starts, strict=True):
        async with await log.open_reader("earliest" if isinstance(start, ReadFrom) else start) as direct:
            records = [record async for record in direct]
        assert reader.payloads == [record.payload for record in records]
        if reader.form is not ReadForm.ARROW:
            assert reader.records == records
