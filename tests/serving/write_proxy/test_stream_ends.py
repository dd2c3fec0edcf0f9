"""How streams end on a write proxy: contention, crashes, failures, probation, hand-over, shutdown; on real writers."""

from __future__ import annotations

import asyncio

import pytest
from helpers.serving.proxy_world import SESSION_S, Proxy, ProxyWorld, answers, proxies
from helpers.virtual_time import virtual_time
from helpers.waiting import until

from dlspark.errors import ServiceUnavailableError
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Answer,
    Applied,
    BulkReceipt,
    DeleteStream,
    Done,
    FindOwner,
    Handshake,
    Heartbeat,
    MoveStream,
    OwnerFound,
    ProducerStamp,
    ProxyInfo,
    ProxyStatus,
    Refusal,
    ReleaseStream,
    Request,
    RequestContext,
    StatusCode,
    TakeStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.write_proxy.streams.stream_host import FOUND_LOG_S
from dlspark.serving.write_proxy.streams.table import FORMER_SESSIONS
from storage_node.protocol.schema import Status

KEPT_S = SESSION_S * 2 / 3


async def owner_of(world: ProxyWorld, stream: str) -> list[Proxy]:
    """The proxies that say that they own a stream."""
    found = []
    for proxy in world.proxies:
        info = await proxy.ask(Handshake())
        assert isinstance(info, ProxyInfo)
        if stream in info.ownerships:
            found.append(proxy)
    return found


# ---- two want one log ----------------------------------------------------------------------------------------------


@virtual_time
async def test_the_loser_says_who_owns_the_log_and_does_not_ask_again_at_once() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        asked = [second.asked(WriteRecords("events", (b"x",))) for _ in range(3)]
        for refused in await answers(asked):
            assert isinstance(refused, Refusal)
            assert (refused.code, refused.location) == (StatusCode.FOUND, first.location)
            assert refused.applied is Applied.NO
        before = world.requests.total()
        assert (await second.refused("events", b"x")).location == first.location
        assert await second.ask(FindOwner("events")) == OwnerFound(first.location)
        assert world.requests.total() == before, "answered from memory"
        await first.ask(ReleaseStream("events"))
        assert (await second.refused("events", b"x")).code is StatusCode.FOUND
        await asyncio.sleep(KEPT_S + 0.1)
        assert isinstance(await second.write("events", b"b"), WriteReceipt)
        assert await world.payloads("events") == [b"a", b"b"]


@virtual_time
async def test_of_two_that_come_at_once_one_owns_the_log() -> None:
    async with proxies() as world:
        both = [await world.proxy(1), await world.proxy(2)]
        one, other = await answers(proxy.asked(WriteRecords("events", (b"a",))) for proxy in both)
        assert sorted([isinstance(one, WriteReceipt), isinstance(other, WriteReceipt)]) == [False, True]
        (owner,) = await owner_of(world, "events")
        refused = one if isinstance(one, Refusal) else other
        assert isinstance(refused, Refusal)
        assert refused.location == owner.location


@virtual_time
async def test_a_client_that_the_remembered_owner_sent_back_has_the_lock_asked() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        await second.refused("events", b"x")
        await first.ask(ReleaseStream("events"))
        tried = RequestContext(tried_hosts=("proxy1:8000",))
        assert isinstance(await second.write("events", b"b", context=tried), WriteReceipt)


@virtual_time
async def test_that_others_own_what_is_asked_for_is_no_warning_and_said_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        names = [f"events-{number}" for number in range(5)]
        for name in names:
            await first.write(name, b"a")
        with caplog.at_level("INFO", "dlspark.serving"):
            for name in names:
                await second.refused(name, b"x")
            await asyncio.sleep(FOUND_LOG_S)
            await first.write("last", b"a")
            await second.refused("last", b"x")
        lines = [record for record in caplog.records if "is owned by" in record.message]
        assert [record.levelname for record in lines] == ["INFO", "INFO"]
        assert "4 others before it" in lines[1].message
        assert not [record for record in caplog.records if record.levelname == "WARNING"]


@virtual_time
async def test_a_proxy_that_was_killed_and_is_back_at_once_waits_for_its_former_session_and_serves_again() -> None:
    async with proxies() as world:
        former, other = await world.proxy(1), await world.proxy(2)
        await former.write("events", b"a")
        again = await world.proxy(1)
        waiting = again.asked(WriteRecords("events", (b"b",)))
        await asyncio.sleep(SESSION_S - 1)
        assert not waiting.done()
        assert (await other.refused("events", b"x")).location == again.location, "which waits for the lock"
        await former.crash()
        (answer,) = await answers([waiting])
        assert isinstance(answer, WriteReceipt)
        assert again.fatal == []
        assert await world.payloads("events") == [b"a", b"b"]


@virtual_time
async def test_the_deletion_of_a_log_does_not_wait_for_the_former_session_and_sends_nobody_in_circles() -> None:
    async with proxies() as world:
        await (await world.proxy(1)).write("events", b"a")
        again = await world.proxy(1)
        refused = await again.ask(DeleteStream("events"))
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.location) == (StatusCode.STREAM_UNAVAILABLE, None)
        assert refused.applied is Applied.NO
        assert again.fatal == []


@virtual_time
async def test_a_log_that_another_process_with_this_very_location_owns_ends_the_process() -> None:
    async with proxies() as world:
        first = await world.proxy(1)
        await first.write("events", b"a")
        again = await world.proxy(1)
        refused = await again.refused("events", b"x")
        assert asyncio.get_running_loop().time() >= FORMER_SESSIONS * SESSION_S
        assert (refused.code, refused.location) == (StatusCode.FOUND, first.location)
        assert len(again.fatal) == 1
        assert "earlier session" in again.fatal[0]
        assert again.service.status is ProxyStatus.DOWN
        assert (await again.refused("others", b"x")).code is StatusCode.SERVICE_UNAVAILABLE
        assert len(again.fatal) == 1


# ---- crashes -------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_crashed_owner_is_followed_and_repeated_requests_are_written_once() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        receipts = [await first.written("events", b"%d" % n, stamp=ProducerStamp("p", 0, n)) for n in range(5)]
        world.hold()  # stored, but the answers are lost with the process
        lost = [first.asked(WriteRecords("events", (b"%d" % n,), stamp=ProducerStamp("p", 0, n))) for n in range(5, 8)]
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in lost)
        await first.crash()
        world.release()
        again = [await second.written("events", b"%d" % n, stamp=ProducerStamp("p", 0, n)) for n in range(3, 10)]
        assert [one.dlsn for one in again[:2]] == [one.dlsn for one in receipts[3:]]
        assert [one.repeated for one in again] == [True] * 5 + [False] * 2
        assert await world.payloads("events") == [b"%d" % n for n in range(10)]
        for refused in await answers(lost):
            assert isinstance(refused, Refusal)
            assert refused.applied is Applied.UNKNOWN


@virtual_time
async def test_an_owner_whose_session_has_expired_acknowledges_nothing_after_the_successors_first() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        world.tree.expire(first.namespace.store.session_id)
        assert isinstance(await second.write("events", b"b"), WriteReceipt)
        late = await first.refused("events", b"late")
        assert late.code is not StatusCode.SUCCESS
        assert await world.payloads("events") == [b"a", b"b"]
        await until(lambda: not first.service.streams_owned)
        await until(lambda: first.service.streams_cached == 0)
        assert (await first.refused("events", b"x")).location == second.location


@virtual_time
async def test_an_idle_owner_that_was_deposed_says_who_owns_the_log_before_its_next_request() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        await first.write("kept", b"a")
        world.tree.expire(first.namespace.store.session_id)
        await second.write("events", b"b")
        await until(lambda: first.service.streams_owned == ["kept"])
        assert await owner_of(world, "events") == [second]
        assert await owner_of(world, "kept") == [first], "a lock that was taken again is as good as ever"
        assert await first.ask(FindOwner("events")) == OwnerFound(second.location)
        assert isinstance(await first.write("kept", b"b"), WriteReceipt)


@virtual_time
async def test_a_bulk_that_meets_a_deposed_writer_is_told_so_as_a_whole() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        world.tree.expire(first.namespace.store.session_id)
        await second.write("events", b"b")
        answer = await first.write("events", b"x", b"y")
        assert isinstance(answer, Refusal | BulkReceipt)
        results = [answer] if isinstance(answer, Refusal) else answer.results
        assert all(isinstance(one, Refusal) for one in results)
        assert await world.payloads("events") == [b"a", b"b"]


# ---- failures ------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_record_that_storage_nodes_refuse_ends_the_stream_and_the_next_request_begins_it_anew() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"a")
        for bookie in world.bookies:
            bookie.reject = Status.EIO
        refused = await proxy.refused("events", b"perhaps")
        assert (refused.code, refused.applied) == (StatusCode.BK_TRANSMIT_ERROR, Applied.UNKNOWN)
        assert not proxy.service.streams_owned
        for bookie in world.bookies:
            bookie.reject = None
        await until(lambda: proxy.service.streams_cached == 0)
        assert isinstance(await proxy.write("events", b"b"), WriteReceipt)
        assert [one for one in await world.payloads("events") if one != b"perhaps"] == [b"a", b"b"]
        assert proxy.fatal == []


@virtual_time
async def test_a_failing_stream_takes_no_other_with_it() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"a")
        await proxy.write("others", b"a")
        stream = proxy.service._table.get("events")
        assert stream is not None
        stream.request_failed(ValueError("a bug"))
        assert (await proxy.refused("events", b"x")).code is StatusCode.STREAM_UNAVAILABLE
        assert isinstance(await proxy.write("others", b"b"), WriteReceipt)


@virtual_time
async def test_a_log_that_cannot_be_opened_refuses_what_waits_as_not_done() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        for bookie in world.bookies:
            bookie.stop()
            bookie.reject = Status.EIO
        refused = await answers(proxy.asked(WriteRecords("events", (b"x",))) for _ in range(3))
        assert all(isinstance(one, Refusal) for one in refused)
        await until(lambda: proxy.service.streams_cached == 0)


# ---- service time-out ----------------------------------------------------------------------------------------------


@virtual_time
async def test_a_request_that_takes_too_long_puts_its_stream_on_probation() -> None:
    async with proxies() as world:
        proxy = await world.proxy(service_timeout_ms=300, probation_timeout_ms=60_000)
        other = await world.proxy(2)
        await proxy.write("events", b"a")
        world.hold()
        slow = proxy.asked(WriteRecords("events", (b"slow",)))
        answer = (await answers([slow]))[0]
        assert isinstance(answer, Refusal)
        assert answer.applied is Applied.UNKNOWN
        world.release()
        await until(lambda: proxy.service._table.get("events").ended.done())  # type: ignore[union-attr]
        refused = await proxy.refused("events", b"x")
        assert (refused.code, refused.applied) == (StatusCode.STREAM_UNAVAILABLE, Applied.NO)
        assert "probation" in refused.message
        assert isinstance(await other.write("events", b"b"), WriteReceipt), "the lock is free"
        await other.ask(ReleaseStream("events"))
        await asyncio.sleep(61)
        assert isinstance(await proxy.write("events", b"c"), WriteReceipt)


@virtual_time
async def test_the_time_out_holds_for_what_waits_for_its_log_as_well() -> None:
    async with proxies() as world:
        proxy = await world.proxy(service_timeout_ms=300, probation_timeout_ms=1000)
        world.tree.stall()
        asked = proxy.asked(WriteRecords("events", (b"x",)))
        asyncio.get_running_loop().call_later(2, world.tree.resume)
        (refused,) = await answers([asked])
        assert isinstance(refused, Refusal)
        assert refused.applied is Applied.NO
        await until(lambda: proxy.service.streams_cached == 0)
        assert isinstance(await proxy.write("events", b"a"), WriteReceipt)
        assert await world.payloads("events") == [b"a"]


@virtual_time
async def test_a_time_out_is_measured_for_each_request_and_not_for_the_stream() -> None:
    async with proxies() as world:
        proxy = await world.proxy(service_timeout_ms=300)
        for _ in range(20):
            await proxy.written("events", b"a")
            await asyncio.sleep(0.1)
        assert proxy.service.streams_owned == ["events"]


# ---- given up ------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_released_stream_is_free_when_the_answer_comes() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        written = [first.asked(WriteRecords("events", (b"%d" % n,))) for n in range(3)]
        released = first.asked(ReleaseStream("events"))
        *receipts, done = await answers([*written, released])
        assert all(isinstance(one, WriteReceipt) for one in receipts)
        assert done == Done()
        assert isinstance(await second.write("events", b"3"), WriteReceipt)
        assert await first.ask(ReleaseStream("never-here")) == Done()
        assert await world.payloads("events") == [b"0", b"1", b"2", b"3"]


@virtual_time
async def test_a_release_that_takes_long_is_answered_as_in_doubt_and_goes_on() -> None:
    async with proxies() as world:
        proxy = await world.proxy(writer_close_timeout_ms=100)
        await proxy.write("events", b"a")
        world.hold()
        slow = proxy.asked(WriteRecords("events", (b"b",)))
        answer = await proxy.ask(ReleaseStream("events"))
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.applied) == (StatusCode.FLUSH_TIMEOUT, Applied.UNKNOWN)
        world.release()
        assert isinstance((await answers([slow]))[0], WriteReceipt)
        await until(lambda: proxy.service.streams_cached == 0)
        assert await world.payloads("events") == [b"a", b"b"]


@virtual_time
async def test_what_another_process_has_taken_meanwhile_is_not_deleted() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        world.tree.expire(first.namespace.store.session_id)
        await second.write("events", b"b")
        answer = await first.ask(DeleteStream("events"))
        assert isinstance(answer, Refusal)
        assert await world.payloads("events") == [b"a", b"b"]


# ---- hand-over -----------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_stream_is_moved_and_its_requests_follow_in_order() -> None:
    async with proxies() as world:
        source, target = await world.proxy(1), await world.proxy(2)
        await source.write("events", b"0")
        world.hold()
        before = [source.asked(WriteRecords("events", (b"%d" % n,))) for n in range(1, 4)]
        moved = source.asked(MoveStream("events", target.location))
        await until(lambda: not source.service.streams_owned)
        behind = [source.asked(WriteRecords("events", (b"%d" % n,))) for n in range(4, 7)]
        early = target.asked(WriteRecords("events", (b"early",)))
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in (*behind, early)), "they wait until it is handed over"
        world.release()
        assert all(isinstance(one, WriteReceipt) for one in await answers(before))
        assert await moved == Done()
        for refused in await answers(behind):
            assert isinstance(refused, Refusal)
            assert (refused.code, refused.location) == (StatusCode.FOUND, target.location)
            assert refused.applied is Applied.NO
        again = [target.asked(WriteRecords("events", (b"%d" % n,))) for n in range(4, 7)]
        assert all(isinstance(one, WriteReceipt) for one in await answers([early, *again]))
        assert await world.payloads("events") == [b"0", b"1", b"2", b"3", b"early", b"4", b"5", b"6"]
        assert (await source.refused("events", b"x")).location == target.location


@virtual_time
async def test_a_stream_may_be_moved_back_at_once() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        for source, target in ((first, second), (second, first), (first, second)):
            assert await source.ask(MoveStream("events", target.location)) == Done()
            assert isinstance(await target.write("events", b"b"), WriteReceipt)
            assert await owner_of(world, "events") == [target]


@virtual_time
async def test_a_move_is_answered_by_what_the_target_says_of_the_stream_then() -> None:
    async with proxies() as world:
        first, second, third = [await world.proxy(number) for number in (1, 2, 3)]
        await first.write("events", b"a")
        asked_peers, came = world.peers.call, asyncio.Event()

        async def gone_on(location: str, request: Request, timeout_ms: int = 10_000) -> Answer:
            if isinstance(request, Heartbeat) and location == second.location and not came.is_set():
                came.set()
                await until(lambda: second.service.streams_owned == ["events"])
                assert await second.ask(MoveStream("events", third.location)) == Done()
            return await asked_peers(location, request, timeout_ms)

        world.peers.call = gone_on  # type: ignore[method-assign]
        found = await first.ask(MoveStream("events", second.location))
        assert isinstance(found, Refusal)
        assert (found.code, found.location) == (StatusCode.FOUND, third.location)

        async def lost(location: str, request: Request, timeout_ms: int = 10_000) -> Answer:
            if isinstance(request, Heartbeat):
                return refusal_of(ServiceUnavailableError("it is away"))
            return await asked_peers(location, request, timeout_ms)

        world.peers.call = lost  # type: ignore[method-assign]
        unknown = await third.ask(MoveStream("events", first.location))
        assert isinstance(unknown, Refusal)
        assert unknown.applied is Applied.UNKNOWN
        assert f"given up here for {first.location}, which does not serve it yet: it is away" in unknown.message
        assert isinstance(await first.write("events", b"b"), WriteReceipt)


@virtual_time
async def test_a_target_that_does_not_take_the_stream_leaves_it_where_it_is() -> None:
    async with proxies() as world:
        source, target = await world.proxy(1), await world.proxy(2)
        await source.write("events", b"a")
        world.features.set("region_stop_accept_new_stream", 1)
        refused = await source.ask(MoveStream("events", target.location))
        assert isinstance(refused, Refusal)
        assert refused.code is StatusCode.REGION_UNAVAILABLE
        away = await source.ask(MoveStream("events", "1;9;nobody:1"))
        assert isinstance(away, Refusal)
        assert away.code is StatusCode.SERVICE_UNAVAILABLE
        assert isinstance(await source.write("events", b"b"), WriteReceipt)
        assert await source.ask(MoveStream("events", source.location)) == Done()
        assert source.service.streams_owned == ["events"]
        elsewhere = await target.ask(MoveStream("events", source.location))
        assert isinstance(elsewhere, Refusal)
        assert elsewhere.code is StatusCode.STREAM_UNAVAILABLE


@virtual_time
async def test_who_takes_a_stream_that_is_never_given_up_says_who_has_it() -> None:
    async with proxies() as world:
        source, target = await world.proxy(1), await world.proxy(2, take_timeout_ms=1000)
        await source.write("events", b"a")
        assert await target.ask(TakeStream("events", source.location)) == Done()
        waits = target.asked(WriteRecords("events", (b"x",)))
        (refused,) = await answers([waits])
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.location) == (StatusCode.FOUND, source.location)
        assert isinstance(await source.write("events", b"b"), WriteReceipt)


# ---- shutdown ------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_shutdown_hands_its_streams_over_to_where_they_belong() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        names = [f"events-{n}" for n in range(50)]
        for name in names:
            await first.write(name, b"a")
            world.places.places[name] = second.location
        world.places.places[names[0]] = first.location
        del world.places.places[names[1]]
        asked = [first.asked(WriteRecords(name, (b"b",))) for name in names]
        await first.service.shut_down()
        assert all(isinstance(one, WriteReceipt) for one in await answers(asked))
        assert first.service.status is ProxyStatus.DOWN
        assert first.service.streams_owned == []
        for name in names[2:]:
            refused = await first.refused(name, b"x")
            assert (refused.code, refused.location) == (StatusCode.FOUND, second.location)
        for name in (*names[:2], "never-here"):
            assert (await first.refused(name, b"x")).code is StatusCode.SERVICE_UNAVAILABLE
        for name in names:
            assert isinstance(await second.write(name, b"c"), WriteReceipt)
        assert await world.payloads(names[7]) == [b"a", b"b", b"c"]


@virtual_time
async def test_a_stream_is_served_in_a_shutdown_until_it_is_its_turn_and_then_waits_to_hear_where_it_is() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        names = [f"events-{n}" for n in range(8)]
        for name in names:
            await first.write(name, b"a")
            world.places.places[name] = second.location
        ending = asyncio.ensure_future(first.service.shut_down())
        said = []
        await asyncio.sleep(0)
        while not ending.done():
            said += [first.asked(WriteRecords(name, (b"b",))) for name in names]
            await asyncio.sleep(0)
        done = await answers(said)
        assert any(isinstance(one, WriteReceipt) for one in done), "those whose turn comes later are served"
        refused = [one for one in done if isinstance(one, Refusal)]
        assert {(one.code, one.location) for one in refused} == {(StatusCode.FOUND, second.location)}
        assert (await first.refused("never-here", b"x")).code is StatusCode.SERVICE_UNAVAILABLE


@virtual_time
async def test_a_shutdown_closes_what_nobody_takes_and_is_bounded_in_time() -> None:
    async with proxies() as world:
        proxy = await world.proxy(shutdown_timeout_ms=500)
        await proxy.write("events", b"a")
        await proxy.write("stuck", b"a")
        world.hold()
        stuck = proxy.asked(WriteRecords("stuck", (b"b",)))
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await proxy.service.shut_down()
        assert asyncio.get_running_loop().time() - began < 1
        world.release()
        assert isinstance((await answers([stuck]))[0], WriteReceipt)


@virtual_time
async def test_who_asks_while_a_stream_is_opened_by_a_proxy_that_ends_is_answered() -> None:
    async with proxies() as world:
        proxy = await world.proxy(shutdown_timeout_ms=500)
        world.tree.stall()
        asked = proxy.asked(WriteRecords("events", (b"a",)))
        asyncio.get_running_loop().call_later(0.2, world.tree.resume)
        await proxy.service.shut_down()
        (refused,) = await answers([asked])
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.applied) == (StatusCode.SERVICE_UNAVAILABLE, Applied.NO)
        await proxy.service.close()
        assert proxy.service.streams_cached == 0
