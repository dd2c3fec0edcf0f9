"""What readers of a read proxy are promised: each record once and in order, from any start, over rolls, to the end."""

from __future__ import annotations

import asyncio

import pytest
from helpers.logs import written
from helpers.serving.read_world import LOCATION, Puller, ReadWorld, submitted
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.service import Caller
from dlspark.serving.client.answer_rules import AnswerRule, rule_of
from dlspark.serving.protocol.deliveries import decode_stored
from dlspark.serving.protocol.operations import (
    Applied,
    Delivery,
    FindOwner,
    Handshake,
    OwnerFound,
    ProxyInfo,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Refusal,
    RequestContext,
    StatusCode,
    WriteRecords,
)

SEGMENTS = [[b"a0", b"a1", b"a2"], [b"b0", b"b1"], [b"c0", b"c1", b"c2", b"c3"]]
FLAT = [payload for segment in SEGMENTS for payload in segment]
FORMS = list(ReadForm)


async def in_one_entry_each(namespace, name, segments):
    """A log whose segments have their records in one entry; transaction ids count up by 10."""
    log = await namespace.open_log(name)
    txid = 0
    for payloads in segments:
        async with await log.open_writer() as writer:
            for payload in payloads:
                writer.write(txid, payload)
                txid += 10
    return log


@pytest.mark.parametrize("form", FORMS)
async def test_a_reader_gets_every_record_of_the_log_and_then_what_is_written(read_world: ReadWorld, form):
    namespace = await read_world.namespace()
    log = await written(namespace, "log", SEGMENTS)
    reader = Puller(await read_world.proxy(), "log", form=form)
    assert await reader.until(len(FLAT)) is None
    assert reader.payloads == FLAT
    # Stored entries without records, the writer's control records, are an answer too.
    waiting = asyncio.ensure_future(reader.until(len(FLAT) + 1))
    async with await log.open_writer() as writer:
        writer.write(1000, b"new")
        await writer.commit()
        assert await asyncio.wait_for(waiting, 60) is None
        assert reader.payloads == [*FLAT, b"new"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("start", "first"),
    [
        (ReadFrom.OLDEST, 0),
        (DLSN.INITIAL, 0),
        (DLSN.NON_INCLUSIVE_LOWER_BOUND, 0),
        (DLSN(0, -1, -1), 0),
        (DLSN(1, 0, 1), 1),
        (DLSN(1, 0, 2), 2),
        (DLSN(1, 0, 3), 3),
        (DLSN(1, 7, 0), 3),
        (DLSN(2, 0, 0), 3),
        (DLSN(3, 0, 3), 8),
        (0, 0),
        (1, 1),
        (10, 1),
        (29, 3),
        (30, 3),
        (41, 5),
        (80, 8),
    ],
)
async def test_a_reader_starts_at_any_position_also_in_the_middle_of_an_entry(
    read_world: ReadWorld, form, start, first
):
    namespace = await read_world.namespace()
    await in_one_entry_each(namespace, "log", SEGMENTS)
    reader = Puller(await read_world.proxy(), "log", start, form=form)
    assert await reader.until(len(FLAT) - first) is None
    assert reader.payloads == FLAT[first:]
    direct = await (await namespace.open_log("log")).open_reader(0 if isinstance(start, ReadFrom) else start)
    async with direct:
        records = [await direct.read_next() for _ in FLAT[first:]]
    if form is not ReadForm.ARROW:
        assert reader.records == records


@pytest.mark.parametrize("start", [ReadFrom.LATEST, DLSN(4, 0, 0), DLSN(3, 0, 4), 81])
async def test_a_reader_at_the_end_gets_what_comes(read_world: ReadWorld, start):
    namespace = await read_world.namespace()
    await in_one_entry_each(namespace, "log", SEGMENTS)
    reader = Puller(await read_world.proxy(), "log", start, wait_ms=100)
    empty = await reader.pull()
    assert isinstance(empty, Delivery)
    assert empty.parts == ()
    assert not empty.end_of_stream
    await written(namespace, "log", [[b"new"]], start=1000)
    assert await reader.until(1) is None
    assert reader.payloads == [b"new"]


async def test_a_position_in_the_future_is_waited_for(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    reader = Puller(await read_world.proxy(), "log", DLSN(2, 1, 0))
    waiting = asyncio.ensure_future(reader.pull())
    await written(namespace, "log", [[b"b", b"c"], [b"d"]], start=100)
    await waiting
    assert await reader.until(2) is None
    assert reader.payloads == [b"c", b"d"]


async def test_a_reader_waits_over_rolling_segments_and_gets_each_record_once(read_world: ReadWorld):
    namespace = await read_world.namespace()
    log = await namespace.open_log("log")
    await log.open_writer()
    await log.close()
    service = await read_world.proxy()
    readers = [Puller(service, "log", caller=Caller(f"c{i}"), form=FORMS[i % 3]) for i in range(9)]
    payloads = [b"%d" % i for i in range(60)]
    reading = [asyncio.ensure_future(reader.until(len(payloads))) for reader in readers]
    for i in range(0, 60, 6):
        log = await namespace.open_log("log", {"writerOutputBufferSize": 0})
        async with await log.open_writer() as writer:
            for j in range(i, i + 6):
                await writer.write(j, payloads[j])
    await asyncio.gather(*reading)
    assert [reader.payloads for reader in readers] == [payloads] * 9


@pytest.mark.parametrize("form", FORMS)
async def test_a_sealed_log_ends_for_its_readers_and_for_those_who_ask_again(read_world: ReadWorld, form):
    namespace = await read_world.namespace()
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        writer.write(1, b"a")
        await writer.mark_end_of_stream()
    service = await read_world.proxy()
    reader = Puller(service, "log", form=form)
    assert await reader.to_end() is None
    assert reader.payloads == [b"a"]
    again = await reader.pull()
    assert isinstance(again, Delivery)
    assert again.end_of_stream
    assert again.parts == ()
    other = Puller(service, "log", reader.position, caller=Caller("other"), form=form)
    assert await other.to_end() is None
    assert other.payloads == []
    assert other.position == reader.position


async def test_a_log_that_is_sealed_while_readers_wait_ends_for_them(read_world: ReadWorld):
    namespace = await read_world.namespace()
    log = await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy()
    readers = [Puller(service, "log", caller=Caller(str(i))) for i in range(5)]
    ends = [asyncio.ensure_future(reader.to_end()) for reader in readers]
    await until(lambda: service.figures().waiting == 5)
    async with await log.open_writer() as writer:
        await writer.mark_end_of_stream()
    assert await asyncio.gather(*ends) == [None] * 5
    assert [reader.payloads for reader in readers] == [[b"a"]] * 5


@pytest.mark.parametrize("form", FORMS)
async def test_control_records_are_hidden_and_record_sets_expanded(read_world: ReadWorld, form):
    namespace = await read_world.namespace()
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        writer.write(1, b"a")
        await writer.commit()  # ends with a control record
        writer.write_record_set(2, [b"b", b"c", b"d"])
    reader = Puller(await read_world.proxy(), "log", form=form)
    assert await reader.until(4) is None
    assert reader.payloads == [b"a", b"b", b"c", b"d"]
    middle = Puller(reader.service, "log", DLSN(1, 2, 1), form=form, number=1)
    assert await middle.until(2) is None
    assert middle.payloads == [b"c", b"d"]


async def test_an_answer_without_data_says_where_to_go_on(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a", b"b"]])
    service = await read_world.proxy()
    reader = Puller(service, "log", wait_ms=50)
    assert await reader.until(2) is None
    before = reader.position
    empty = await reader.pull()
    assert isinstance(empty, Delivery)
    assert empty.parts == ()
    assert empty.next >= before


async def test_a_delivery_is_bounded_and_one_entry_comes_always(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"x" * 1000 for _ in range(50)]])
    service = await read_world.proxy()
    reader = Puller(service, "log", max_bytes=1)
    await reader.pull()
    assert len(reader.records) == 1
    reader.max_bytes = 10_000
    sizes = []
    while len(reader.records) < 50:
        before = len(reader.records)
        await reader.pull()
        sizes.append(len(reader.records) - before)
    assert max(sizes) <= 10


async def test_what_a_read_proxy_does_not_do_is_refused(read_world: ReadWorld):
    service = await read_world.proxy()
    caller = Caller("c")
    refused = await submitted(service, WriteRecords("log", (b"x",)), caller)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.applied) == (StatusCode.NOT_IMPLEMENTED, Applied.WRONG)
    assert await submitted(service, FindOwner("log"), caller) == OwnerFound(LOCATION)
    info = await submitted(service, Handshake("(a+)+$"), caller)
    assert isinstance(info, ProxyInfo)
    assert info.location == LOCATION
    assert not info.ownerships


async def test_a_log_that_does_not_exist_or_has_no_name_is_refused_and_may_come_later(read_world: ReadWorld):
    namespace = await read_world.namespace()
    service = await read_world.proxy()
    for start in (ReadFrom.OLDEST, ReadFrom.LATEST, 5, DLSN(1, 0, 0)):
        refused = await Puller(service, "log", start).pull()
        assert isinstance(refused, Refusal)
        assert refused.code is StatusCode.LOG_NOT_FOUND
    refused = await Puller(service, "<bad>\0").pull()
    assert isinstance(refused, Refusal)
    assert refused.code is StatusCode.INVALID_STREAM_NAME
    assert service.figures().readers == 0
    assert service.figures().logs == 0
    await written(namespace, "log", [[b"a"]])
    reader = Puller(service, "log")
    assert await reader.until(1) is None


async def test_a_read_waits_no_longer_than_its_client(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy(max_wait_ms=3_600_000, max_open_ms=3_600_000)
    request = ReadBatch("log", ReadFrom.LATEST, wait_ms=3_600_000, context=RequestContext(timeout_ms=50))
    answer = await asyncio.wait_for(submitted(service, request, Caller("c")), 60)
    assert isinstance(answer, Delivery)
    assert answer.parts == ()


async def test_a_read_that_is_asked_again_takes_the_place_of_the_first(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy()
    reader = Puller(service, "log", ReadFrom.LATEST, wait_ms=0)
    await reader.pull()
    reader.wait_ms = 10_000
    first = reader.ask()
    await until(lambda: service.figures().waiting == 1)
    second = reader.ask()
    empty = await first
    assert isinstance(empty, Delivery)
    assert empty.parts == ()
    await written(namespace, "log", [[b"new"]], start=1000)
    reader.take(await second)
    await reader.until(1)
    assert reader.payloads == [b"new"]


async def test_a_reader_may_go_back_and_elsewhere(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a", b"b", b"c"]])
    await written(namespace, "other", [[b"z"]])
    service = await read_world.proxy()
    reader = Puller(service, "log")
    await reader.until(3)
    reader.position = DLSN(1, 1, 0)
    await reader.until(5)
    assert reader.payloads == [b"a", b"b", b"c", b"b", b"c"]
    reader.stream, reader.position = "other", ReadFrom.OLDEST
    await reader.until(6)
    assert reader.payloads[-1] == b"z"
    assert service.figures().readers == 1


async def test_a_connection_that_ends_frees_everything(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy()
    caller = Caller("c")
    readers = [Puller(service, "log", caller=caller, number=i) for i in range(10)]
    waiting = [reader.ask() for reader in readers]
    await until(lambda: service.figures().readers == 10)
    service.caller_gone(caller)
    await asyncio.wait(waiting)
    assert service.figures().readers == 0
    await until(lambda: service.figures().logs == 0)
    await until(lambda: service.figures().ring_bytes == 0)


async def test_a_stopped_proxy_refuses_what_waits_and_what_comes(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy()
    reader = Puller(service, "log", ReadFrom.LATEST)
    waiting = reader.ask()
    await until(lambda: service.figures().waiting == 1)
    await service.close()
    for answer in (await waiting, await reader.ask()):
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.applied) == (StatusCode.SERVICE_UNAVAILABLE, Applied.NO)


@pytest.mark.parametrize("skipping", [False, True])
async def test_a_damaged_entry_is_refused_for_good_or_leaves_a_hole_that_its_reader_sees(
    read_world: ReadWorld, skipping: bool
):
    namespace = await read_world.namespace(skip_broken_entries=skipping)
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        for payload in (b"a", b"b", b"c"):
            writer.write(1, payload)
            await writer.commit()
    (segment,) = await log.segments()
    damaged = 0
    for bookie in read_world.bookies:
        entries = bookie.ledgers[segment.ledger_id].entries
        damaged = next(entry_id for entry_id, entry in sorted(entries.items()) if entry.endswith(b"b"))
        entries[damaged] = entries[damaged][:-1] + b"x"
    reader = Puller(await read_world.proxy(namespace), "log", form=ReadForm.ENTRIES)
    ids: list[int] = []
    refused: Refusal | None = None
    while len(ids) <= damaged and refused is None:
        answer = await reader.pull()
        if isinstance(answer, Refusal):
            refused = answer
        else:
            ids += [decode_stored(part).entry_id for part in answer.parts]
    assert ids[:damaged] == list(range(damaged))
    if skipping:
        assert refused is None
        assert ids[damaged] == damaged + 1
    else:
        assert refused is not None
        assert refused.error == "DigestError"
        assert rule_of(refused, fail_fast=False) is AnswerRule.FAIL


@pytest.mark.parametrize("form", FORMS)
async def test_a_reader_that_asks_for_another_place_or_log_under_its_number_gets_what_it_asks_for(
    read_world: ReadWorld, form
):
    namespace = await read_world.namespace()
    await in_one_entry_each(namespace, "log", SEGMENTS)
    await in_one_entry_each(namespace, "other", [[b"x0", b"x1"]])
    service, caller = await read_world.proxy(), Caller("client:1")

    async def found_at(stream: str, start: DLSN | int | ReadFrom, count: int) -> list[bytes]:
        reader = Puller(service, stream, start, form=form, caller=caller)
        assert await reader.until(count) is None
        return reader.payloads[:count]

    assert await found_at("log", ReadFrom.OLDEST, 5) == FLAT[:5]
    assert await found_at("log", DLSN(1, 0, 1), 2) == FLAT[1:3], "back"
    assert await found_at("log", DLSN(3, 0, 1), 3) == FLAT[6:], "forth"
    assert await found_at("other", DLSN(1, 0, 1), 1) == [b"x1"], "elsewhere"
    assert await found_at("log", 10, 2) == FLAT[1:3], "by transaction id"
    assert await found_at("log", ReadFrom.OLDEST, 3) == FLAT[:3], "from the beginning again"
