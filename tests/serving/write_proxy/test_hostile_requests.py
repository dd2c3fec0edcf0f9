"""Requests that mean harm to a write proxy: each is refused with its reason before it costs much; others are served."""

from __future__ import annotations

import asyncio
import struct
import threading
import tracemalloc
from collections.abc import Iterator, Sequence

import lz4.block
import pytest
from helpers.serving.proxy_world import Proxy, answers, proxies
from helpers.virtual_time import virtual_time
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import SET_HEADER, SET_VERSION, Compression, encode_record_set
from dlspark.core.writing.write_kinds import CheckedSet
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    BeginEpoch,
    BulkReceipt,
    CreateStream,
    FindOwner,
    Handshake,
    Heartbeat,
    MoveStream,
    ProducerStamp,
    ProxyInfo,
    Refusal,
    ReleaseStream,
    Request,
    RequestContext,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import MAX_SET_RECORDS
from dlspark.serving.write_proxy.streams.execution import opened_sets
from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import Buffer

SETS = RequestContext(is_record_set=True)
LONG_NAME = "a/" * 16_000 + "a"
MIB = 1024 * 1024


def is_wrong(answer: Answer, code: StatusCode) -> Refusal:
    """The refusal of a request that is refused again if it is repeated."""
    assert isinstance(answer, Refusal), answer
    assert (answer.code, answer.applied) == (code, Applied.WRONG), answer
    return answer


async def still_serves(proxy: Proxy) -> None:
    assert isinstance(await proxy.write("honest", b"x"), WriteReceipt)
    assert proxy.fatal == []


# ---------------------------------------------------------------------- record sets


@virtual_time
async def test_a_record_set_of_millions_of_records_is_refused_before_it_is_opened() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        bomb = encode_record_set([b""] * 1_000_000, Compression.LZ4)
        assert len(bomb) < 20_000
        tracemalloc.start()
        try:
            for fields in ({}, {"stamp": ProducerStamp("p", 0, 0)}, {"atomic": True}):
                refused = await proxy.write("honest", bomb, context=SETS, **fields)
                assert "records" in is_wrong(refused, StatusCode.TOO_LARGE_RECORD).message
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * MIB, peak
        await still_serves(proxy)


@virtual_time
async def test_a_record_set_whose_record_no_reader_of_a_proxy_could_get_is_refused() -> None:
    """A record is 1 MB at most, also where it was compressed: a longer one fits in no frame, so that readers would not
    get past it, and writers of one log could end it for all who read it."""
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.written("sets", b"before")
        content = struct.pack(">I", 3 * MIB) + bytes(3 * MIB)
        stored = lz4.block.compress(content, store_size=False)
        poison = SET_HEADER.pack(SET_VERSION | Compression.LZ4, 1, len(content), len(stored)) + stored
        refused = await proxy.write("sets", poison, context=SETS)
        assert isinstance(refused, Refusal)
        assert "a payload of 3145728 bytes is longer than 1040384" in refused.message
        assert refused.applied is Applied.WRONG
        assert await world.payloads("sets") == [b"before"]
        await still_serves(proxy)


@virtual_time
async def test_record_sets_that_expand_to_more_than_an_entry_are_not_written_whole() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        zeros = encode_record_set([bytes(500_000)], Compression.LZ4)
        refused = await proxy.write("sets", zeros, zeros, zeros, context=SETS, atomic=True)
        assert "expand" in is_wrong(refused, StatusCode.TOO_LARGE_RECORD).message
        assert isinstance(await proxy.write("sets", zeros, zeros, context=SETS, atomic=True), WriteReceipt)
        single = await proxy.write("sets", zeros, zeros, zeros, context=SETS)
        assert isinstance(single, BulkReceipt)
        assert all(isinstance(one, DLSN) for one in single.results)
        assert await world.payloads("sets") == [bytes(500_000)] * 5


@virtual_time
async def test_sets_of_empty_records_take_few_bytes_while_they_wait_and_fill_no_entry_beyond_what_readers_hold() -> (
    None
):
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        full = encode_record_set([b""] * MAX_SET_RECORDS, Compression.LZ4)
        world.hold()
        tracemalloc.start()
        try:
            asked = [proxy.asked(WriteRecords("honest", (full,), SETS)) for _ in range(20)]
            await asyncio.sleep(0.01)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        world.release()
        assert held < 10 * MIB, "a record of which nobody waits for the place costs next to nothing"
        receipts = await answers(asked)
        entries = [one.dlsn.entry_id for one in receipts if isinstance(one, WriteReceipt) and one.dlsn is not None]
        # The first of them found nothing under way, and was sent alone.
        assert (len(entries), len(set(entries[1:]))) == (20, 2), "one entry holds no more than readers can"


async def test_a_large_set_is_opened_in_a_thread_and_only_what_is_behind_it_on_its_stream_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened, may_go_on = threading.Event(), threading.Event()

    def slowly(payloads: Sequence[Buffer]) -> list[CheckedSet | CallerError]:
        assert threading.current_thread() is not threading.main_thread()
        opened.set()
        assert may_go_on.wait(60)
        return opened_sets(payloads)

    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        await proxy.written("sets", b"before")
        monkeypatch.setattr("dlspark.serving.write_proxy.streams.stream.opened_sets", slowly)
        large = encode_record_set([bytes(500_000)] * 20, Compression.LZ4)
        damaged = SET_HEADER.pack(SET_VERSION | Compression.LZ4, 1, 20 * MIB, 4) + b"lz4?"
        asked = [
            proxy.asked(WriteRecords("sets", (large,), SETS)),
            proxy.asked(WriteRecords("sets", (b"behind",))),
            proxy.asked(WriteRecords("sets", (damaged, large), SETS)),
            proxy.asked(WriteRecords("sets", (b"last",))),
        ]
        await until(opened.is_set)
        await still_serves(proxy)
        assert not any(one.done() for one in asked)
        may_go_on.set()
        first, behind, bulk, last = await answers(asked)
        assert isinstance(first, WriteReceipt)
        assert first.records == 20
        assert isinstance(bulk, BulkReceipt)
        assert [isinstance(one, DLSN) for one in bulk.results] == [False, True]
        assert isinstance(behind, WriteReceipt)
        assert isinstance(last, WriteReceipt)
        zeros = [bytes(500_000)] * 20
        assert await world.payloads("sets") == [b"before", *zeros, b"behind", *zeros, b"last"]


async def test_a_stream_that_ends_while_a_large_set_is_opened_refuses_it_and_what_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go_on = threading.Event()

    def slowly(payloads: Sequence[Buffer]) -> list[CheckedSet | CallerError]:
        assert may_go_on.wait(60)
        return opened_sets(payloads)

    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.written("sets", b"before")
        monkeypatch.setattr("dlspark.serving.write_proxy.streams.stream.opened_sets", slowly)
        large = encode_record_set([bytes(500_000)] * 20, Compression.LZ4)
        asked = [proxy.asked(WriteRecords("sets", (large,), SETS)), proxy.asked(WriteRecords("sets", (b"behind",)))]
        released = proxy.service._table.get("sets")
        released.give_up(Refusal(StatusCode.FOUND, "elsewhere", "host:1", Applied.NO))
        await released.ended
        may_go_on.set()
        for refused in await answers(asked):
            assert isinstance(refused, Refusal)
            assert (refused.code, refused.applied) == (StatusCode.FOUND, Applied.NO)
        assert await world.payloads("sets") == [b"before"]


async def test_what_waited_behind_a_large_set_is_begun_over_many_turns_and_in_order() -> None:
    """Two hundred sets, each of them small enough to be opened at once, kept all others waiting for a second."""
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.written("sets", b"before")
        large = encode_record_set([bytes(500_000)] * 20, Compression.LZ4)
        small = encode_record_set([bytes(250_000)] * 16, Compression.LZ4)
        asked = [proxy.asked(WriteRecords("sets", (one,), SETS)) for one in (large, *[small] * 200)]
        stream = proxy.service._table.get("sets")
        assert stream is not None
        most, behind = 0, None
        while stream._waiting or stream._opening is not None:
            before = len(stream._waiting)
            await asyncio.sleep(0)
            most = max(most, before - len(stream._waiting))
            if behind is None and before < 150:
                behind = proxy.asked(WriteRecords("sets", (b"behind",)))
        assert most < 100
        assert behind is not None
        receipts = await answers([*asked, behind])
        places = [one.dlsn for one in receipts if isinstance(one, WriteReceipt) and one.dlsn is not None]
        assert len(places) == 202
        assert places == sorted(places)


@virtual_time
async def test_who_asks_for_many_new_streams_does_not_keep_another_client_from_its_own() -> None:
    """A thousand kept others waiting for more than a minute: also for logs that they took over from a dead owner."""
    async with proxies() as world:
        proxy = await world.proxy(max_opening=1)
        order: list[str] = []
        asked = []
        for name in (*(f"greedy-{number}" for number in range(20)), "modest"):
            one = proxy.asked(WriteRecords(name, (b"x",)), Caller(f"{name.partition('-')[0]}:{len(asked)}"))
            one.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
            asked.append(one)
        assert all(isinstance(one, WriteReceipt) for one in await answers(asked))
        assert order.index("modest") < 3


@virtual_time
async def test_a_name_of_hundreds_of_components_makes_no_znodes() -> None:
    """Sixty of them, made and deleted by requests of a kilobyte, left ZooKeeper without memory."""
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        before = world.requests.total()
        for name in ("/".join("a" * 500), "/".join("a" * 33)):
            for request in (WriteRecords(name, (b"x",)), CreateStream(name), TakeStream(name, proxy.location)):
                assert "components" in is_wrong(await proxy.ask(request), StatusCode.INVALID_STREAM_NAME).message
        assert world.requests.total() == before
        assert isinstance(await proxy.write("/".join("a" * 32), b"x"), WriteReceipt)


@virtual_time
async def test_a_client_that_goes_costs_no_look_at_streams_on_which_nothing_waits() -> None:
    """Each call of gRPC is a client that goes: with ten thousand streams each took milliseconds."""
    async with proxies() as world:
        proxy, gone = await world.proxy(max_opening=1), Caller("gone:1")
        for number in range(20):
            await proxy.written(f"s{number}", b"x")
        assert len(proxy.service._table.host.waited) == 20
        proxy.service.caller_gone(gone)
        assert not proxy.service._table.host.waited
        first, waits = proxy.asked(WriteRecords("new", (b"x",))), proxy.asked(WriteRecords("newer", (b"x",)), gone)
        proxy.service.caller_gone(gone)
        assert {stream.name for stream in proxy.service._table.host.waited} == {"new"}
        assert isinstance(await waits, Refusal)
        assert isinstance(await first, WriteReceipt)
        await proxy.ask(ReleaseStream("new"))
        assert not proxy.service._table.host.waited, "nothing stays of a stream that has ended"


async def test_a_large_set_is_not_opened_for_a_client_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, opened = threading.Event(), []

    def slowly(payloads: Sequence[Buffer]) -> list[CheckedSet | CallerError]:
        opened.append(len(payloads))
        assert may_go_on.wait(60)
        return opened_sets(payloads)

    async with proxies() as world:
        proxy = await world.proxy()
        gone = Caller("gone:1")
        monkeypatch.setattr("dlspark.serving.write_proxy.streams.stream.opened_sets", slowly)
        large = encode_record_set([bytes(500_000)] * 20, Compression.LZ4)
        for name in ("a", "b"):
            await proxy.written(name, b"before")
        stays = proxy.asked(WriteRecords("a", (large,), SETS))
        goes = proxy.asked(WriteRecords("b", (large, large), SETS), gone)
        await until(lambda: opened == [1])
        proxy.service.caller_gone(gone)
        refused = await goes
        assert isinstance(refused, Refusal)
        assert refused.applied is Applied.NO
        may_go_on.set()
        assert isinstance(await stays, WriteReceipt)
        await proxy.written("b", b"behind")
        assert opened == [1]
        assert await world.payloads("b") == [b"before", b"behind"]


# ---------------------------------------------------------------------- names and numbers


@virtual_time
@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a b", "<a>", "\x00", "a\x07", "\ud800", LONG_NAME]
)
async def test_a_name_that_no_log_can_have_reaches_neither_zookeeper_nor_a_log(name: str) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        before = world.requests.total()
        for request in (WriteRecords(name, (b"x",)), Heartbeat(name), FindOwner(name), BeginEpoch(name, "p")):
            is_wrong(await proxy.ask(request), StatusCode.INVALID_STREAM_NAME)
        for request in (CreateStream(name), TakeStream(name, proxy.location)):
            is_wrong(await proxy.ask(request), StatusCode.INVALID_STREAM_NAME)
        if len(name) > 1000:
            is_wrong(await proxy.ask(ReleaseStream(name)), StatusCode.INVALID_STREAM_NAME)
        assert world.requests.total() - before <= 4
        assert proxy.service.streams_cached == 1
        await still_serves(proxy)


@virtual_time
@pytest.mark.parametrize(
    "request_",
    [
        WriteRecords("honest", (b"x",), stamp=ProducerStamp("p", -1, 0)),
        WriteRecords("honest", (b"x",), stamp=ProducerStamp("p", 0, -1)),
        WriteRecords("honest", (b"x",), stamp=ProducerStamp("", 0, 0)),
        WriteRecords("honest", (b"x",), stamp=ProducerStamp("p" * 10_000, 0, 0)),
        WriteRecords("honest", (b"x",), transaction_ids=(-1,)),
        WriteRecords("honest", (b"x",), transaction_ids=(2**63 - 1,)),
        WriteRecords("honest", ()),
        BeginEpoch("honest", "p", -1),
        BeginEpoch("honest", "p" * 10_000),
        SetFencingToken("honest", b"t" * 1000),
    ],
)
async def test_numbers_and_names_that_make_no_sense_are_refused_and_the_stream_stays(request_: Request) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        answer = await proxy.ask(request_)
        assert isinstance(answer, Refusal), answer
        assert answer.applied is Applied.WRONG, answer
        assert proxy.service.streams_owned == ["honest"]
        await still_serves(proxy)


@virtual_time
@pytest.mark.parametrize("dlsn", [DLSN(-1, -1, -1), DLSN(-(2**63), 0, 0), DLSN(2**63 - 1, 2**63 - 1, 2**63 - 1)])
async def test_a_truncation_to_nowhere_takes_nothing(dlsn: DLSN) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        answer = await proxy.ask(TruncateStream("honest", dlsn))
        del answer  # either it is refused, or there was nothing below it
        await still_serves(proxy)
        assert await world.payloads("honest") == [b"x", b"x"]


@virtual_time
async def test_a_move_to_what_is_no_proxy_leaves_the_stream() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        for target in ("", ";;", "1;0;", "1;0;host:-1", "1;0;host:99999", "\x00", "x" * 60_000):
            assert isinstance(await proxy.ask(MoveStream("honest", target)), Refusal), target
        await still_serves(proxy)


# ---------------------------------------------------------------------- regular expressions


@virtual_time
async def test_a_costly_expression_is_matched_a_slice_at_a_time_and_others_are_answered_meanwhile() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        names = [f"{'ab' * 80}-{number}" for number in range(60)]
        for name in names:
            await proxy.written(name, b"x")
        costly = proxy.asked(Handshake(r"(?:[ab]*\pL?){0,20}-\d+"))
        quick = proxy.asked(Handshake(ownerships=False))
        assert (quick.done(), costly.done()) == (True, False), "who asks for little does not wait for it"
        answer = await costly
        assert isinstance(answer, ProxyInfo)
        assert list(answer.ownerships) == names
        await still_serves(proxy)


@virtual_time
async def test_many_costly_expressions_are_matched_one_step_in_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand handshakes took a step each, and all others waited for all of those."""
    steps = 0

    def costly(streams: Sequence[str], regex: str | None) -> Iterator[list[str]]:
        nonlocal steps
        for stream in streams:
            steps += 1
            yield [stream]

    monkeypatch.setattr("dlspark.serving.write_proxy.rare_requests.matching", costly)
    async with proxies() as world:
        proxy = await world.proxy()
        for number in range(5):
            await proxy.written(f"s{number}", b"x")
        asked = [proxy.asked(Handshake("s.*"), Caller(f"host:{number}")) for number in range(40)]
        assert not steps
        while not all(one.done() for one in asked):
            before = steps
            await asyncio.sleep(0)
            assert steps - before <= 1
        for answer in await answers(asked):
            assert isinstance(answer, ProxyInfo)
            assert len(answer.ownerships) == 5


@virtual_time
async def test_an_expression_that_would_take_minutes_is_refused() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await still_serves(proxy)
        refused = await proxy.ask(Handshake("(?:.?){1000}(?:.?){1000}(?:.?){1000}x"))
        assert isinstance(refused, Refusal)
        assert refused.applied is Applied.WRONG
        await still_serves(proxy)
