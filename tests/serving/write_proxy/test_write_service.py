"""What a write proxy does with requests: records, producers, conditions, limits, checks; on real writers in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.serving.proxy_world import ProxyWorld, answers, proxies
from helpers.virtual_time import virtual_time

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import encode_record_set
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Applied,
    BeginEpoch,
    BulkReceipt,
    CreateStream,
    DeleteStream,
    Done,
    EpochBegun,
    FindOwner,
    Handshake,
    Heartbeat,
    MoveStream,
    OwnerFound,
    ProducerStamp,
    ProxyInfo,
    ProxyStatus,
    ReadBatch,
    ReadFrom,
    Reason,
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
from dlspark.serving.protocol.request_checks import request_checksum
from dlspark.serving.write_proxy.streams.execution import bulk_answer
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.permissions import Permissions

# ---- records -------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_record_is_answered_with_its_position_and_read_with_the_time() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        assert await proxy.write("events", b"a") == WriteReceipt(DLSN(1, 1, 0), 1), "behind what is known of producers"
        assert await proxy.write("events", memoryview(b"b")) == WriteReceipt(DLSN(1, 2, 0), 1)
        now = world.clock.now_ms()
        assert [payload for _, payload in await world.records("events")] == [b"a", b"b"]
        assert all(0 <= now - txid < 1000 for txid, _ in await world.records("events"))


@virtual_time
async def test_requests_keep_their_order_across_the_opening_of_the_log() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        asked = [proxy.asked(WriteRecords("events", (b"%d" % n,))) for n in range(50)]
        await asyncio.sleep(0)
        asked += [proxy.asked(WriteRecords("events", (b"%d" % n,))) for n in range(50, 60)]
        await asked[0]
        asked += [proxy.asked(WriteRecords("events", (b"%d" % n,))) for n in range(60, 100)]
        receipts = await answers(asked)
        assert all(isinstance(one, WriteReceipt) for one in receipts), receipts
        assert await world.payloads("events") == [b"%d" % n for n in range(100)]


def stored(world: ProxyWorld) -> int:
    """Entries that all nodes have together."""
    return sum(len(ledger.entries) for bookie in world.bookies for ledger in bookie.ledgers.values())


@virtual_time
async def test_a_request_that_finds_nothing_under_way_is_sent_in_its_turn_and_what_comes_behind_it_is_one_entry() -> (
    None
):
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"first")
        receipts = await answers(proxy.asked(WriteRecords("events", (b"%d" % n,))) for n in range(20))
        assert receipts == [WriteReceipt(DLSN(1, 2, 0), 1), *(WriteReceipt(DLSN(1, 3, n), 1) for n in range(19))]
        again = await answers(proxy.asked(WriteRecords("events", (b"%d" % n,))) for n in range(20))
        assert again == [WriteReceipt(DLSN(1, 4, n), 1) for n in range(20)], (
            "several came last, and come together again"
        )


@virtual_time
@pytest.mark.parametrize("given", [{}, {"atomic": True}, {"stamp": ProducerStamp("p", 0, 0)}], ids=str)
async def test_nodes_have_a_request_alone_a_turn_after_it_came(given: dict[str, object]) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"first")
        before = stored(world)
        asked = proxy.asked(WriteRecords("events", (b"alone",), **given))  # type: ignore[arg-type]
        await asyncio.sleep(0)  # at whose end the ledger's client sends what was written in it
        await asyncio.sleep(0)  # in which that reaches nodes in memory; over a socket it leaves in the turn before
        assert stored(world) == before + 3
        assert isinstance(await asked, WriteReceipt)


@virtual_time
async def test_while_entries_are_under_way_what_comes_is_collected() -> None:
    async with proxies() as world:
        proxy = await world.proxy(entries_under_way=2)
        await proxy.write("events", b"first")
        world.hold()
        asked = []
        for n in range(10):
            asked.append(proxy.asked(WriteRecords("events", (b"%d" % n,))))
            await asyncio.sleep(0.001)
        assert not any(one.done() for one in asked)
        world.release()
        entries = [one.dlsn.entry_id for one in await answers(asked)]  # type: ignore[union-attr]
        assert entries == [2, 3] + [4] * 8


@virtual_time
async def test_several_payloads_have_results_of_their_own() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"first")
        assert await proxy.write("events", b"a", b"b") == BulkReceipt((DLSN(1, 2, 0), DLSN(1, 2, 1)))
        answer = await proxy.write("events", b"c", b"x" * 1_100_000, b"d")
        assert isinstance(answer, BulkReceipt)
        stored, long, behind = answer.results
        assert stored == DLSN(1, 3, 0)
        assert isinstance(long, Refusal)
        assert isinstance(behind, Refusal)
        assert (long.code, long.applied) == (StatusCode.TOO_LARGE_RECORD, Applied.WRONG)
        assert (behind.code, behind.applied) == (StatusCode.WRITE_CANCELLED, Applied.NO)
        assert await world.payloads("events") == [b"first", b"a", b"b", b"c"]


def refusal(code: StatusCode, applied: Applied = Applied.NO) -> Refusal:
    return Refusal(code, "no", applied=applied)


HERE = DLSN(1, 0, 0)


@pytest.mark.parametrize("code", [StatusCode.FOUND, StatusCode.ALREADY_CLOSED, StatusCode.LOCKING_EXCEPTION])
def test_the_header_of_a_bulk_is_refused_where_its_first_record_fails_for_ownership(code: StatusCode) -> None:
    others = refusal(StatusCode.WRITE_CANCELLED)
    assert bulk_answer([refusal(code), others]) == refusal(code)
    assert bulk_answer([HERE, refusal(code)]) == BulkReceipt((HERE, refusal(code)))
    for perhaps in (refusal(StatusCode.BK_TRANSMIT_ERROR, Applied.UNKNOWN), HERE):
        answer = bulk_answer([refusal(code), perhaps])
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.applied) == (code, Applied.UNKNOWN), "one of its records may be in the log"


@pytest.mark.parametrize(
    "code", [code for code in StatusCode if code not in (StatusCode.FOUND, 502, 504)], ids=lambda code: code.name
)
def test_any_other_failure_of_the_first_record_is_its_own(code: StatusCode) -> None:
    assert bulk_answer([refusal(code), HERE]) == BulkReceipt((refusal(code), HERE))


@virtual_time
async def test_ids_never_decrease_though_the_clock_and_the_owner_change() -> None:
    async with proxies() as world:
        first, second = await world.proxy(1), await world.proxy(2)
        await first.write("events", b"a")
        world.clock.behind_ms = 60_000
        await first.write("events", b"b")
        await first.ask(ReleaseStream("events"))
        await second.write("events", b"c")
        given = world.clock.now_ms() + 100_000
        await second.written("events", b"d", b"e", atomic=True, transaction_ids=(given, given + 1))
        await second.write("events", b"f")
        late = await second.refused("events", b"x", transaction_ids=(5,))
        assert (late.code, late.applied) == (StatusCode.TRANSACTION_OUT_OF_ORDER, Applied.WRONG)
        await second.write("events", b"g")
        records = await world.records("events")
        ids = [txid for txid, _ in records]
        assert ids == sorted(ids)
        assert [payload for _, payload in records] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
        assert ids[3:] == [given, given + 1, given + 1, given + 1]


@virtual_time
async def test_record_sets_are_written_as_they_come_and_damaged_ones_refused() -> None:
    sets = RequestContext(is_record_set=True)
    encoded, other = encode_record_set([b"a", b"b"]), encode_record_set([b"c"])
    async with proxies() as world:
        proxy = await world.proxy()
        assert await proxy.write("events", encoded, context=sets) == WriteReceipt(DLSN(1, 1, 0), 2)
        bulk = await proxy.write("events", other, b"damaged", encoded, context=sets)
        assert isinstance(bulk, BulkReceipt)
        assert [isinstance(one, DLSN) for one in bulk.results] == [True, False, True]
        whole = await proxy.written("events", encoded, other, context=sets, stamp=ProducerStamp("p", 0, 0))
        assert whole.records == 3
        refused = await proxy.refused("events", b"damaged", context=sets, atomic=True)
        assert refused.applied is Applied.WRONG
        assert await world.payloads("events") == [b"a", b"b", b"c", b"a", b"b", b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "fields",
    [
        {"payloads": ()},
        {"payloads": (b"a",), "transaction_ids": (1, 2)},
        {"payloads": (b"a",), "stamp": ProducerStamp("p", 0, -1)},
        {"payloads": (b"a",), "stamp": ProducerStamp("p", -1, 0)},
        {"payloads": (b"a",), "stamp": ProducerStamp("", 0, 0)},
        {"payloads": (b"a",), "transaction_ids": (-5,)},
    ],
)
@virtual_time
async def test_what_is_wrong_in_itself_is_refused_and_ends_no_stream(fields) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"before")
        answer = await proxy.ask(WriteRecords("events", **fields))
        assert isinstance(answer, Refusal)
        assert answer.applied is Applied.WRONG
        assert proxy.service.streams_owned == ["events"]
        assert (await proxy.written("events", b"after")).dlsn == DLSN(1, 2, 0)


# ---- producers and conditions --------------------------------------------------------------------------------------


@virtual_time
async def test_the_records_of_a_stamped_request_lie_in_the_slots_behind_its_first() -> None:
    """Also where others lie before it in the entry: what clients are told of the first one's position is enough."""
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.ask(BeginEpoch("events", "p"))
        asked = [
            proxy.asked(WriteRecords("events", (b"before",))),
            proxy.asked(WriteRecords("events", (b"0", b"1", b"2"), stamp=ProducerStamp("p", 0, 0))),
            proxy.asked(WriteRecords("events", (b"behind",))),
        ]
        _, stamped, _ = await answers(asked)
        assert isinstance(stamped, WriteReceipt)
        assert stamped.dlsn is not None
        assert stamped.dlsn.slot_id > 0
        await proxy.ask(Heartbeat("events", to_readers=True))
        async with await (await proxy.namespace.open_log("events")).open_reader("earliest") as reader:
            found = {}
            while len(found) < 5:
                found |= {record.payload: record.dlsn for record in await reader.read_available(10, wait=True)}
        segment, entry, slot = stamped.dlsn
        assert [found[b"%d" % n] for n in range(3)] == [DLSN(segment, entry, slot + n) for n in range(3)]


@virtual_time
async def test_a_producers_request_is_written_once_and_whole() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        begun = await proxy.ask(BeginEpoch("events", "p"))
        assert begun == EpochBegun(0, 0)
        first = await proxy.written("events", b"a", b"b", stamp=ProducerStamp("p", 0, 0))
        again = await proxy.written("events", b"a", b"b", stamp=ProducerStamp("p", 0, 0))
        assert (again.dlsn, again.records, again.repeated) == (first.dlsn, 2, True)
        gap = await proxy.refused("events", b"c", stamp=ProducerStamp("p", 0, 2))
        assert (gap.reason, gap.actual, gap.applied) == (Reason.SEQUENCE_GAP, 1, Applied.NO)
        assert await proxy.ask(BeginEpoch("events", "p")) == EpochBegun(1, 0)
        assert await proxy.ask(BeginEpoch("events", "p", 1)) == EpochBegun(1, 0)
        await proxy.written("events", b"d", stamp=ProducerStamp("p", 1, 0))
        assert await proxy.ask(BeginEpoch("events", "p", 1)) == EpochBegun(1, 1)
        fenced = await proxy.refused("events", b"e", stamp=ProducerStamp("p", 0, 1))
        assert fenced.reason is Reason.PRODUCER_FENCED
        assert (await proxy.ask(BeginEpoch("events", "p", -1))).applied is Applied.WRONG  # type: ignore[union-attr]
        assert proxy.service.streams_owned == ["events"]
        assert await world.payloads("events") == [b"a", b"b", b"d"]


@virtual_time
async def test_a_client_that_begins_too_many_producers_is_refused_and_others_are_not() -> None:
    async with proxies() as world:
        proxy = await world.proxy(producers_per_client=2)
        for name in ("p", "q"):
            assert await proxy.ask(BeginEpoch("events", name)) == EpochBegun(0, 0)
        await proxy.written("events", b"a", stamp=ProducerStamp("p", 0, 0))
        for request in (BeginEpoch("events", "r"), WriteRecords("events", (b"x",), stamp=ProducerStamp("r", 0, 0))):
            refused = await proxy.ask(request)
            assert isinstance(refused, Refusal)
            assert (refused.code, refused.error) == (StatusCode.OVER_CAPACITY, "TooManyProducersError")
            assert refused.applied is Applied.NO
        assert await proxy.asked(BeginEpoch("events", "r"), Caller("elsewhere:1")) == EpochBegun(0, 0)
        await proxy.written("events", b"b")
        assert await world.payloads("events") == [b"a", b"b"]


@virtual_time
async def test_two_that_begin_an_epoch_at_once_get_two() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        begun = await answers(proxy.asked(BeginEpoch("events", "p")) for _ in range(4))
        assert sorted(one.epoch for one in begun) == [0, 1, 2, 3]  # type: ignore[union-attr]


@virtual_time
async def test_conditions_are_refused_with_what_was_found() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        first = await proxy.written("events", b"a", expected_position=0)
        moved = await proxy.refused("events", b"x", expected_position=0)
        assert (moved.code, moved.actual) == (StatusCode.ILLEGAL_STATE, 1)
        assert isinstance(await proxy.write("events", b"b", expected_position=first.dlsn), WriteReceipt)
        asked: list[Request] = [
            SetFencingToken("events", b"mine"),
            WriteRecords("events", (b"c",), fencing_token=b"mine"),
            SetFencingToken("events", b"x", expected=b"theirs"),
            SetFencingToken("events", b"yours", expected=b"mine"),
            WriteRecords("events", (b"x",), fencing_token=b"mine"),
        ]
        done, written, wrong, other, fenced = await answers(map(proxy.asked, asked))
        assert isinstance(written, WriteReceipt), "in line with what came before"
        assert (done, other) == (Done(), Done())
        for one, actual in ((wrong, b"mine"), (fenced, b"yours")):
            assert isinstance(one, Refusal)
            assert (one.error, one.actual) == ("ConditionError", actual.hex())
        assert await world.payloads("events") == [b"a", b"b", b"c"]


@virtual_time
async def test_gaps_are_allowed_where_the_proxy_is_set_so() -> None:
    async with proxies() as world:
        proxy = await world.proxy(gaps_allowed=True)
        assert isinstance(await proxy.write("events", b"a", stamp=ProducerStamp("p", 0, 7)), WriteReceipt)
        assert (await proxy.refused("events", b"b", stamp=ProducerStamp("p", 0, 3))).applied is Applied.UNKNOWN


# ---- heartbeats, truncation ----------------------------------------------------------------------------------------


@virtual_time
async def test_a_heartbeat_owns_the_stream_and_may_be_seen_by_readers() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        assert await proxy.ask(Heartbeat("events")) == Done()
        assert proxy.service.streams_owned == ["events"]
        beat = await proxy.ask(Heartbeat("events", to_readers=True))
        assert isinstance(beat, Done)
        assert beat.dlsn is not None
        await proxy.write("events", b"a")
        assert await world.payloads("events") == [b"a"]


@virtual_time
async def test_a_truncation_says_how_far_it_went() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"a", b"b")
        await proxy.ask(ReleaseStream("events"))
        await proxy.write("events", b"c")
        done = await proxy.ask(TruncateStream("events", DLSN(2, 0, 0)))
        assert done == Done(DLSN(2, 0, 0))
        assert await world.payloads("events") == [b"c"]


# ---- checks --------------------------------------------------------------------------------------------------------


def summed(request: Request, error: int = 0) -> Request:
    """The request with its checksum, plus an error."""
    context = RequestContext(checksum=(request_checksum(request) or 0) + error)
    if isinstance(request, WriteRecords):
        return request.within(context)
    return replace(request, context=context)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "request_",
    [
        WriteRecords("events", (b"a",)),
        WriteRecords("events", (b"a", b"b")),
        Heartbeat("events"),
        TruncateStream("events", DLSN(1, 0, 0)),
        CreateStream("events"),
        ReleaseStream("events"),
    ],
    ids=lambda one: type(one).__name__,
)
@virtual_time
async def test_a_wrong_checksum_is_refused_before_anything_is_done(request_) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        before = world.requests.total()
        wrong = await proxy.ask(summed(request_, error=1))
        assert isinstance(wrong, Refusal)
        assert wrong.code is StatusCode.CHECKSUM_FAILED
        assert world.requests.total() == before
        assert proxy.service.streams_cached == 0
        assert not isinstance(await proxy.ask(summed(request_)), Refusal)


@virtual_time
async def test_a_feature_has_checksums_believed() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        world.features.set("service_checksum_disabled", 100)
        assert isinstance(await proxy.ask(summed(WriteRecords("events", (b"a",)), error=1)), WriteReceipt)


ACL = replace(Binding.for_cluster("memory:2181"), acl_root_path=".acl")


@pytest.mark.parametrize(
    ("denied", "requests"),
    [
        ("deny_truncate", [TruncateStream("events", DLSN(1, 0, 0))]),
        ("deny_delete", [DeleteStream("events")]),
        ("deny_acquire", [CreateStream("events"), Heartbeat("events"), TakeStream("events", "1;9;other:1")]),
        ("deny_release", [ReleaseStream("events"), MoveStream("events", "1;9;other:1")]),
        ("deny_write", [WriteRecords("events", (b"x",)), BeginEpoch("events", "p"), SetFencingToken("events", b"t")]),
    ],
)
@virtual_time
async def test_what_access_control_denies_is_refused_also_while_the_stream_is_served(denied, requests) -> None:
    async with proxies(ACL) as world:
        proxy = await world.proxy(permissions_refresh_ms=500)
        await proxy.write("events", b"a")
        await proxy.namespace.access_control.set(Permissions(**{denied: True}), "events")
        await asyncio.sleep(1)
        for request in requests:
            answer = await proxy.ask(request)
            assert isinstance(answer, Refusal), request
            assert (answer.code, answer.applied) == (StatusCode.REQUEST_DENIED, Applied.WRONG), request
        assert proxy.service.streams_owned == ["events"]
        await proxy.namespace.access_control.delete("events")
        await asyncio.sleep(1)
        assert isinstance(await proxy.write("events", b"b"), WriteReceipt)
        assert await world.payloads("events") == [b"a", b"b"]


@virtual_time
async def test_a_log_that_may_not_be_written_is_not_opened_again_and_again() -> None:
    async with proxies(ACL) as world:
        proxy = await world.proxy()
        await proxy.namespace.access_control.set(Permissions(deny_write=True))
        assert (await proxy.refused("events", b"x")).code is StatusCode.REQUEST_DENIED
        before = world.requests.total()
        assert (await proxy.refused("events", b"x")).code is StatusCode.REQUEST_DENIED
        assert world.requests.total() == before
        await proxy.namespace.access_control.set(Permissions())
        await asyncio.sleep(2)
        assert isinstance(await proxy.write("events", b"a"), WriteReceipt)


# ---- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["rps_hard_service", "rps_hard_write", "bps_hard_service", "bps_hard_write"])
@virtual_time
async def test_over_a_hard_limit_writes_are_refused_and_their_stream_lives_on(setting) -> None:
    async with proxies() as world:
        proxy = await world.proxy(**{setting: 2})
        await proxy.write("events", b"ab")
        burst = await answers(proxy.asked(WriteRecords("events", (b"abcdef",))) for _ in range(10))
        refused = [one for one in burst if isinstance(one, Refusal)]
        assert {(one.code, one.applied) for one in refused} == {(StatusCode.OVER_CAPACITY, Applied.NO)}
        assert 7 <= len(refused) < 11
        assert proxy.service.streams_owned == ["events"]
        assert await proxy.ask(Heartbeat("events")) == Done(), "only writes are charged"
        await asyncio.sleep(30)
        assert isinstance(await proxy.write("events", b"a"), WriteReceipt)


@pytest.mark.parametrize("setting", ["rps_hard_service", "rps_hard_write", "bps_hard_service", "bps_hard_write"])
@virtual_time
async def test_in_dark_mode_hard_limits_are_only_counted(setting) -> None:
    async with proxies() as world:
        proxy = await world.proxy(dark_mode=True, **{setting: 1})
        burst = await answers(proxy.asked(WriteRecords("events", (b"ab",))) for _ in range(10))
        assert all(isinstance(one, WriteReceipt) for one in burst)
        assert sum(proxy.service.limit_counts.values()) == 9


@pytest.mark.parametrize(
    ("feature", "settings"),
    [
        ("service_rate_limit_disabled", {"rps_hard_write": 1}),
        ("service_rate_limit_disabled", {"rps_hard_service": 1}),
        ("service_global_limiter_disabled", {"rps_hard_service": 1}),
    ],
)
@virtual_time
async def test_features_switch_limits_off(feature, settings) -> None:
    async with proxies() as world:
        proxy = await world.proxy(**settings)
        world.features.set(feature, 1)
        burst = await answers(proxy.asked(WriteRecords("events", (b"ab",))) for _ in range(5))
        assert all(isinstance(one, WriteReceipt) for one in burst)
        world.features.set(feature, 0)
        burst = await answers(proxy.asked(WriteRecords("events", (b"ab",))) for _ in range(5))
        assert any(isinstance(one, Refusal) for one in burst)


@virtual_time
async def test_limits_change_while_a_stream_is_served() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        settings = proxy.service._settings
        await proxy.write("events", b"a")
        proxy.service.use_settings(settings.with_values({"rpsHardWriteLimit": 1}))
        burst = await answers(proxy.asked(WriteRecords("events", (b"ab",))) for _ in range(3))
        assert [isinstance(one, Refusal) for one in burst] == [False, True, True]


@virtual_time
async def test_a_busy_proxy_serves_its_streams_and_takes_no_others() -> None:
    async with proxies() as world:
        proxy = await world.proxy(rps_acquire=1)
        for _ in range(20):
            await proxy.written("events", b"a")
        assert proxy.service.requests_per_second > 1
        assert (await proxy.refused("others", b"a")).code is StatusCode.TOO_MANY_STREAMS
        assert isinstance(await proxy.write("events", b"a"), WriteReceipt)
        await asyncio.sleep(120)
        assert isinstance(await proxy.write("others", b"a"), WriteReceipt)


@pytest.mark.parametrize("setting", ["max_cached_partitions", "max_acquired_partitions"])
@virtual_time
async def test_partitions_of_a_group_are_limited(setting) -> None:
    async with proxies() as world:
        converter = "DelimiterStreamPartitionConverter"
        proxy = await world.proxy(converter_class=converter, **{setting: 2})
        for name in ("flights_0", "flights_1", "trains_0"):
            await proxy.written(name, b"a")
        refused = await proxy.refused("flights_2", b"a")
        assert (refused.code, refused.applied) == (StatusCode.STREAM_UNAVAILABLE, Applied.NO)
        await proxy.ask(ReleaseStream("flights_0"))
        await proxy.written("flights_2", b"a")


@virtual_time
async def test_bytes_and_requests_under_way_are_bounded() -> None:
    async with proxies() as world:
        proxy = await world.proxy(max_bytes_under_way=1000, max_stream_requests=5)
        await proxy.write("events", b"a")
        world.hold()
        asked = [proxy.asked(WriteRecords("events", (b"x" * 400,))) for _ in range(3)]
        assert [one.done() for one in asked] == [False, False, True]
        assert asked[2].result().code is StatusCode.OVER_CAPACITY  # type: ignore[union-attr]
        small = [proxy.asked(WriteRecords("events", (b"x",))) for _ in range(4)]
        assert [one.done() for one in small] == [False, False, False, True]
        world.release()
        assert sum(isinstance(one, WriteReceipt) for one in await answers([*asked, *small])) == 5
        assert isinstance(await proxy.write("events", b"x" * 5000), WriteReceipt), "one is taken always"


# ---- who takes what ------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_proxy_that_takes_no_other_streams_serves_those_that_it_has() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"a")
        assert await proxy.ask(AcceptStreams(False)) == Done()
        assert proxy.service.status is ProxyStatus.WRITE_ONLY
        assert (await proxy.refused("others", b"a")).code is StatusCode.SERVICE_UNAVAILABLE
        assert isinstance(await proxy.write("events", b"a"), WriteReceipt)
        await proxy.ask(AcceptStreams(True))
        assert isinstance(await proxy.write("others", b"a"), WriteReceipt)
        world.features.set("region_stop_accept_new_stream", 1)
        assert (await proxy.refused("third", b"a")).code is StatusCode.REGION_UNAVAILABLE


@pytest.mark.parametrize("name", ["", "a//b", "/a", "<default>", "a/../b"])
@virtual_time
async def test_a_name_that_no_log_can_have_is_refused(name) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        requests = [WriteRecords(name, (b"a",)), CreateStream(name), DeleteStream(name), FindOwner(name)]
        for request in requests:
            answer = await proxy.ask(request)
            assert isinstance(answer, Refusal), request
            assert answer.code is StatusCode.INVALID_STREAM_NAME, request
        assert proxy.service.streams_cached == 0


@virtual_time
async def test_streams_are_created_and_deleted() -> None:
    async with proxies() as world:
        proxy = await world.proxy(log_settings={"create_log_if_missing": False})
        missing = await proxy.refused("events", b"a")
        assert (missing.code, missing.applied) == (StatusCode.LOG_NOT_FOUND, Applied.WRONG)
        assert (await proxy.ask(DeleteStream("events"))).code is StatusCode.LOG_NOT_FOUND  # type: ignore[union-attr]
        assert await proxy.ask(CreateStream("events")) == Done()
        assert await proxy.ask(CreateStream("events")) == Done()
        written = proxy.asked(WriteRecords("events", (b"a",)))
        deleted = proxy.asked(DeleteStream("events"))
        behind = proxy.asked(WriteRecords("events", (b"b",)))
        first, done, refused = await answers([written, deleted, behind])
        assert isinstance(first, WriteReceipt)
        assert done == Done()
        assert isinstance(refused, Refusal)
        assert refused.applied is Applied.NO
        assert not await proxy.namespace.log_exists("events")
        assert proxy.service.streams_cached == 0


@virtual_time
async def test_a_log_that_is_missing_is_not_created_to_be_deleted() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        answer = await proxy.ask(DeleteStream("events"))
        assert isinstance(answer, Refusal)
        assert answer.code is StatusCode.LOG_NOT_FOUND
        assert not await proxy.namespace.log_exists("events")
        assert isinstance(await proxy.write("events", b"a"), WriteReceipt)


@virtual_time
async def test_what_a_proxy_owns_is_told_by_the_streams_that_a_client_wants() -> None:
    async with proxies() as world:
        proxy = await world.proxy(region="3")
        for name in ("flights-1", "flights-2", "trains"):
            await proxy.write(name, b"a")
        info = await proxy.ask(Handshake("flights-.*"))
        assert isinstance(info, ProxyInfo)
        assert info.ownerships == {"flights-1": proxy.location, "flights-2": proxy.location}
        assert (info.status, info.location, info.region) == (ProxyStatus.WRITE_AND_ACCEPT, proxy.location, "3")
        everything = await proxy.ask(Handshake())
        assert len(everything.ownerships) == 3  # type: ignore[union-attr]
        assert (await proxy.ask(Handshake(ownerships=False))).ownerships == {}  # type: ignore[union-attr]
        for none in ("flights", "lights-1", ""):
            assert (await proxy.ask(Handshake(none))).ownerships == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("regex", ["(", "a)|(b", r"(a)\1", "(?=a)b", "x" * 3000, "a{100000}", "\ud800"])
@virtual_time
async def test_an_expression_that_is_none_is_refused(regex) -> None:
    async with proxies() as world:
        answer = await (await world.proxy()).ask(Handshake(regex))
        assert isinstance(answer, Refusal)
        assert answer.applied is Applied.WRONG


@virtual_time
async def test_an_expression_that_python_would_take_years_for_is_answered_at_once() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("a" * 60, b"x")
        info = await proxy.ask(Handshake("(a+)+b|(a|a)*c|.*.*.*.*.*d"))
        assert isinstance(info, ProxyInfo)
        assert info.ownerships == {}


@virtual_time
async def test_the_owner_is_this_proxy_or_the_one_where_the_stream_belongs() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        await proxy.write("events", b"a")
        assert await proxy.ask(FindOwner("events")) == OwnerFound(proxy.location)
        world.places.places["others"] = "1;5;proxy5:1"
        assert await proxy.ask(FindOwner("others")) == OwnerFound("1;5;proxy5:1")
        nobody = await proxy.ask(FindOwner("nobodys"))
        assert isinstance(nobody, Refusal)
        assert nobody.code is StatusCode.STREAM_UNAVAILABLE


@virtual_time
async def test_what_a_write_proxy_does_not_serve_is_said() -> None:
    async with proxies() as world:
        answer = await (await world.proxy()).ask(ReadBatch("events", ReadFrom.OLDEST))
        assert isinstance(answer, Refusal)
        assert answer.code is StatusCode.NOT_IMPLEMENTED


# ---- those who wait no longer --------------------------------------------------------------------------------------


@virtual_time
async def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        world.tree.stall()
        late = proxy.asked(WriteRecords("events", (b"late",), RequestContext(timeout_ms=50)))
        patient = proxy.asked(WriteRecords("events", (b"patient",), RequestContext(timeout_ms=50_000)))
        gone = proxy.asked(WriteRecords("events", (b"gone",)), caller=(caller := Caller("gone:1")))
        asyncio.get_running_loop().call_later(0.2, world.tree.resume)
        proxy.service.caller_gone(caller)
        one, two, three = await answers([late, patient, gone])
        assert isinstance(two, WriteReceipt)
        for refused in (one, three):
            assert isinstance(refused, Refusal)
            assert (refused.code, refused.applied) == (StatusCode.WRITE_CANCELLED, Applied.NO)
        assert await world.payloads("events") == [b"patient"]


@virtual_time
async def test_an_answer_that_its_binding_does_not_take_harms_nobody() -> None:
    async with proxies() as world:
        proxy = await world.proxy()

        def broken(answer: object) -> None:
            raise RuntimeError("the binding is broken")

        proxy.service.submit(WriteRecords("events", (b"a",)), proxy.caller, broken)
        assert isinstance(await proxy.write("events", b"b"), WriteReceipt)
        assert await world.payloads("events") == [b"a", b"b"]


# ---- what is refused leaves nothing ----------------------------------------------------------------------------------

FAR = 2**62
"""A transaction id that is legal, and far above everybody else's."""


@pytest.mark.parametrize("opened", [True, False], ids=["open", "being opened"])
@pytest.mark.parametrize(
    "fields",
    [
        {"expected_position": 99, "transaction_ids": (FAR,)},
        {"fencing_token": b"other", "transaction_ids": (FAR,)},
        {"stamp": ProducerStamp("p", 0, 7), "transaction_ids": (FAR,)},
        {"payloads": (b"x" * 1_100_000,), "transaction_ids": (FAR,)},
        {"payloads": (b"x" * 1_100_000, b"x"), "transaction_ids": (FAR, FAR)},
        {"payloads": (b"x" * 1_100_000,), "transaction_ids": (FAR,), "atomic": True},
        {"payloads": (b"damaged",), "transaction_ids": (FAR,), "context": RequestContext(is_record_set=True)},
    ],
)
@virtual_time
async def test_a_refused_request_moves_nobodys_transaction_ids(fields, opened) -> None:
    async with proxies() as world:
        proxy = await world.proxy()
        if opened:
            await proxy.write("events", b"before")
        bad, plain = await answers(
            [
                proxy.asked(WriteRecords("events", **{"payloads": (b"x",), **fields})),
                proxy.asked(WriteRecords("events", (b"behind",))),
            ]
        )
        assert isinstance(plain, WriteReceipt)
        refusals = bad.results if isinstance(bad, BulkReceipt) else [bad]
        assert all(isinstance(one, Refusal) for one in refusals), bad
        await proxy.written("events", b"later")
        await proxy.ask(ReleaseStream("events"))
        other = await world.proxy(1)
        await other.written("events", b"another owner's")
        assert [txid for txid, _ in await world.records("events") if txid > world.clock.now_ms()] == []


@virtual_time
async def test_a_stream_whose_first_request_is_refused_is_not_kept() -> None:
    async with proxies() as world:
        proxy = await world.proxy(max_bytes_under_way=1000, max_streams=3)
        await proxy.write("events", b"a")
        world.hold()
        waiting = proxy.asked(WriteRecords("events", (b"x" * 900,)))
        for number in range(5):
            refused = await proxy.refused(f"other-{number}", b"x" * 400)
            assert refused.code is StatusCode.OVER_CAPACITY
        assert proxy.service.streams_cached == 1
        world.release()
        await waiting
        await proxy.written("other-9", b"x")
