"""The thin client over proxies in memory: what is written, once and in order, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from helpers.serving.memory_proxies import MemoryProxies
from helpers.virtual_time import virtual_time
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.writing.producers import Producers
from dlspark.errors import (
    AlreadyClosedError,
    ConditionError,
    EndOfStreamError,
    InvalidRecordError,
    OverCapacityError,
    ProducerFencedError,
    ProxyUnreachableError,
    RecordTooLongError,
)
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.fleet import StaticFleet
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.protocol.operations import (
    Applied,
    BeginEpoch,
    Handshake,
    Heartbeat,
    Refusal,
    StatusCode,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import request_checksum
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.foundation.errors import CallerError, OutcomeUnknownError

THREE = ("a:1", "b:1", "c:1")
_SEEDS = count(1)


class LoopClock:
    """The loop's time as both clocks."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time()


class SuspendedClock(LoopClock):
    """A clock that went on while the loop's time stood still."""

    def __init__(self) -> None:
        self.suspended_s = 0.0

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self.suspended_s


def bits(number: int) -> int:
    """As random as tests need: never the same twice."""
    return next(_SEEDS) % (1 << number)


async def opened(fleet: MemoryProxies, **values: object) -> AsyncClient:
    settings = ThinClientSettings.from_mapping(values)
    hosts = StaticFleet(tuple(fleet.proxies))
    client = AsyncClient([hosts], settings, fleet.connect, clock=LoopClock(), random_bits=bits)
    await client.open()
    return client


def written(fleet: MemoryProxies, stream: str = "x") -> list[bytes]:
    return fleet.log(stream).payloads


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


# ---------------------------------------------------------------------- writing


@virtual_time
async def test_records_that_are_sent_together_travel_together_and_each_gets_its_place():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    producer = client.producer("x")
    places = await asyncio.gather(*(producer.send(payload) for payload in numbered(100)))
    assert written(fleet) == numbered(100)
    assert places == [record.dlsn for record in fleet.log("x").records]
    assert len([one for one in fleet.requests if isinstance(one, WriteRecords)]) == 1
    assert client.counters.records == 100
    await client.close()


@virtual_time
async def test_a_record_whose_caller_waits_goes_at_once_where_nothing_is_under_way_and_others_collect_behind_it():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    producer = client.producer("x")
    await producer.write(b"first")
    before = client.counters.attempts
    alone = asyncio.ensure_future(producer.write(b"alone"))
    others = [asyncio.ensure_future(producer.write(payload)) for payload in numbered(20)]
    for started in range(1, 3):
        await asyncio.sleep(0)  # each of them has come as far as to its own wait
        assert client.counters.attempts == before + started
    await asyncio.gather(alone, *others)
    assert written(fleet) == [b"first", b"alone", *numbered(20)]
    assert [len(one.payloads) for one in fleet.requests if isinstance(one, WriteRecords)] == [1, 1, 20]
    await client.close()


@virtual_time
async def test_callers_whose_records_came_back_together_write_again_together():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    producer = client.producer("x")

    async def write_on(writer: int) -> None:
        for number in range(5):
            await producer.write(b"%d-%d" % (writer, number))

    await asyncio.gather(*(write_on(writer) for writer in range(8)))
    sizes = [len(one.payloads) for one in fleet.requests if isinstance(one, WriteRecords)]
    assert sum(sizes) == 40
    assert len(sizes) <= 10, "not each time one alone, and then the others"
    await producer.write(b"alone again")
    before = client.counters.attempts
    alone = asyncio.ensure_future(producer.write(b"at once"))
    await asyncio.sleep(0)
    assert client.counters.attempts == before + 1
    await alone
    await client.close()


def forget(fleet: MemoryProxies, stream: str = "x") -> None:
    """The segments go that said what the log's producers have written."""
    fleet.log(stream).producers = Producers()
    fleet.log(stream).producers.lose()


@virtual_time
async def test_clients_old_and_new_go_on_where_the_log_has_forgotten_its_producers():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    await client.producer("x").send(b"a")
    forget(fleet)
    await client.producer("x").send(b"b")
    other = await opened(fleet)
    assert await other.write("x", b"c")
    assert written(fleet) == [b"a", b"b", b"c"]
    for one in (client, other):
        await one.close()


@virtual_time
async def test_what_was_in_doubt_when_the_log_forgot_it_stays_so_and_is_not_written_again():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet)
    producer = client.producer("x")
    await producer.send(b"a")
    fleet["a:1"].lose_answers = 1
    future = producer.send(b"b")
    await until(lambda: written(fleet) == [b"a", b"b"], "it is written")
    forget(fleet)
    with pytest.raises(OutcomeUnknownError):
        await future
    await producer.send(b"c")
    assert written(fleet) == [b"a", b"b", b"c"]
    await client.close()


@virtual_time
async def test_what_waits_for_others_grows_by_itself_and_never_beyond_its_bounds():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, batchMaxRecords=50)
    producer = client.producer("x")
    await producer.send(b"first")
    fleet["a:1"].hold = True
    futures = []
    for payload in numbered(1000):
        futures.append(producer.send(payload))
        await asyncio.sleep(0)
    fleet["a:1"].release()
    await asyncio.gather(*futures)
    sizes = [len(one.payloads) for one in fleet["a:1"].of(WriteRecords)]
    assert written(fleet) == [b"first", *numbered(1000)]
    assert max(sizes) == 50
    assert len(sizes) <= 1 + 5 + 1000 / 50
    await client.close()


@virtual_time
async def test_a_linger_makes_records_wait_for_each_other_and_flush_does_not():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, lingerMs=100)
    producer = client.producer("x")
    for payload in numbered(10):
        producer.send(payload)
        await asyncio.sleep(0.005)
    assert not written(fleet)
    await asyncio.sleep(0.2)
    assert written(fleet) == numbered(10)
    assert len(fleet["a:1"].of(WriteRecords)) == 1
    began = asyncio.get_running_loop().time()
    producer.send(b"now")
    await producer.flush()
    assert asyncio.get_running_loop().time() - began < 0.05
    assert written(fleet)[-1] == b"now"
    await client.close()


@virtual_time
async def test_requests_carry_checksums_unless_they_are_not_to():
    for wanted in (True, False):
        fleet = MemoryProxies("a:1")
        client = await opened(fleet, checksum=wanted)
        await client.write("x", b"one")
        await client.truncate("x", DLSN(1, 0, 0))
        await client.heartbeat("x")
        asked = [one for one in fleet.requests if not isinstance(one, Handshake)]
        assert len(asked) == 4
        for request in asked:
            assert request.context.checksum == (request_checksum(request) if wanted else None)
        await client.close()


@virtual_time
async def test_a_payload_that_the_caller_changes_afterwards_is_written_as_it_was():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet)
    buffer = bytearray(b"before")
    future = client.producer("x").send(buffer)
    buffer[:] = b"behind"
    await future
    assert written(fleet) == [b"before"]
    await client.close()


@virtual_time
async def test_what_no_record_can_be_is_refused_at_once_and_nothing_is_asked():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet)
    with pytest.raises(RecordTooLongError):
        client.producer("x").send(bytes(2_000_000))
    with pytest.raises(InvalidRecordError):
        client.producer("x").send("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRecordError):
        await client.append("x", [])
    assert not fleet.requests
    await client.close()


@virtual_time
async def test_appends_on_conditions_are_whole_and_go_behind_what_was_sent_before():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet)
    producer = client.producer("x")
    before = [producer.send(payload) for payload in numbered(3)]
    assert await producer.append([b"four", b"five"], expected_position=3) == fleet.log("x").records[3].dlsn
    await asyncio.gather(*before)
    assert written(fleet) == [*numbered(3), b"four", b"five"]
    with pytest.raises(ConditionError) as caught:
        await client.append("x", [b"six"], expected_position=3)
    assert caught.value.actual == 5
    await client.set_fencing_token("x", b"mine")
    with pytest.raises(ConditionError):
        await client.append("x", [b"six"], fencing_token=b"yours")
    await client.append("x", [b"six"], fencing_token=b"mine")
    assert written(fleet)[-1] == b"six"
    await client.close()


# ---------------------------------------------------------------------- owners


@virtual_time
async def test_a_redirect_is_followed_and_the_owner_remembered():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    first = await client.owner("x")
    owner = next(one for one in THREE if one != first)
    fleet.owners["x"] = owner
    for payload in numbered(5):
        await client.write("x", payload)
    assert written(fleet) == numbered(5)
    assert len(fleet[owner].of(WriteRecords)) == 5
    assert sum(len(fleet[one].of(BeginEpoch)) for one in THREE) == 2
    await client.close()


@virtual_time
async def test_who_owns_what_is_learnt_from_handshakes():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    for number in range(20):
        fleet.owners[f"s{number}"] = THREE[number % 3]
    await client.owner("other")
    await asyncio.sleep(0.1)
    for number in range(20):
        await client.write(f"s{number}", b"x")
    refused = client.counters.attempts - client.counters.requests
    assert refused == 0
    await client.close()


@virtual_time
async def test_proxies_that_name_each_other_for_ever_cost_a_bounded_number_of_requests():
    fleet = MemoryProxies("a:1", "b:1")
    fleet["a:1"].claims["x"], fleet["b:1"].claims["x"] = "b:1", "a:1"
    client = await opened(fleet, requestTimeoutMs=5000)
    with pytest.raises(ProxyUnreachableError):
        await client.write("x", b"one")
    assert len(fleet.requests) < 300
    assert not written(fleet)
    client2 = await opened(fleet, maxRedirects=3, requestTimeoutMs=5000)
    with pytest.raises(OwnershipAcquireFailedError, match="after 4 attempts"):
        await client2.create("x")
    await client.close()
    await client2.close()


@virtual_time
async def test_a_proxy_that_dies_is_passed_over_and_nothing_is_lost_or_written_twice():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    producer = client.producer("x")
    futures = []
    for number, payload in enumerate(numbered(300)):
        futures.append(producer.send(payload))
        await asyncio.sleep(0.001)
        if number in (100, 200):
            fleet[fleet.owners["x"]].stop()
    await asyncio.gather(*futures)
    assert written(fleet) == numbered(300)
    await client.close()


@pytest.mark.parametrize("lost", [1, 2, 7])
@virtual_time
async def test_lost_answers_do_not_write_a_producer_s_records_twice(lost: int):
    fleet = MemoryProxies("a:1")
    client = await opened(fleet)
    producer = client.producer("x")
    futures = []
    for number, payload in enumerate(numbered(200)):
        futures.append(producer.send(payload))
        await asyncio.sleep(0.001)
        if number in (50, 120):
            fleet["a:1"].lose_answers = lost
    places = await asyncio.gather(*futures)
    assert written(fleet) == numbered(200)
    assert places == [record.dlsn for record in fleet.log("x").records]
    await client.close()


@virtual_time
async def test_what_slept_with_the_machine_is_in_doubt_and_not_sent_again():
    fleet, clock = MemoryProxies("a:1", "b:1"), SuspendedClock()
    client = AsyncClient(
        [StaticFleet(tuple(fleet.proxies))], ThinClientSettings(), fleet.connect, clock=clock, random_bits=bits
    )
    await client.open()
    await client.write("x", b"one")
    owner = fleet[fleet.owners["x"]]
    owner.silent = True
    waits = asyncio.ensure_future(client.write("x", b"two"))
    await asyncio.sleep(0.1)
    clock.suspended_s = 30 * 24 * 3600
    owner.silent = False
    owner.drop_connections()
    with pytest.raises(OutcomeUnknownError):
        await waits
    sent = [request for request in owner.of(WriteRecords) if b"two" in request.payloads]
    assert len(sent) == 1
    await client.close()


@virtual_time
async def test_a_stopped_proxy_s_streams_go_elsewhere_once_it_has_been_silent():
    fleet = MemoryProxies("a:1", "b:1")
    client = await opened(fleet)
    await client.write("x", b"one")
    owner = fleet.owners["x"]
    fleet[owner].silent = True
    fleet.owners["x"] = next(one for one in fleet.proxies if one != owner)
    began = asyncio.get_running_loop().time()
    await client.write("x", b"two")
    assert written(fleet) == [b"one", b"two"]
    assert asyncio.get_running_loop().time() - began < 15
    await client.close()


@virtual_time
async def test_without_a_producer_a_write_whose_answer_was_lost_is_in_doubt_and_not_sent_again():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, idempotentProducer=False)
    await client.write("x", b"one")
    fleet["a:1"].lose_answers = 1
    with pytest.raises(OutcomeUnknownError):
        await client.write("x", b"two")
    await asyncio.sleep(1)
    assert written(fleet) == [b"one", b"two"]
    assert not fleet["a:1"].of(BeginEpoch)
    await client.close()


# ---------------------------------------------------------------------- refusals


@virtual_time
async def test_a_refusal_that_another_proxy_would_repeat_is_the_caller_s_at_once():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet)
    await client.write("x", b"one")
    fleet[fleet.owners["x"]].refusals.append(Refusal(StatusCode.REQUEST_DENIED, "no", applied=Applied.WRONG))
    with pytest.raises(RequestDeniedError):
        await client.write("x", b"two")
    await client.write("x", b"three")
    fleet.log("x").sealed = True
    with pytest.raises(EndOfStreamError):
        await client.write("x", b"four")
    assert written(fleet) == [b"one", b"three"]
    await client.close()


@virtual_time
async def test_a_request_that_no_proxy_takes_fails_when_its_time_is_up_and_says_that_nothing_was_done():
    fleet = MemoryProxies()
    fleet.add("a:1").up = False
    client = await opened(fleet, requestTimeoutMs=3000)
    began = asyncio.get_running_loop().time()
    with pytest.raises(ProxyUnreachableError):
        await client.write("x", b"one")
    assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.3)
    with pytest.raises(ProxyUnreachableError):
        await client.owner("x")
    fleet["a:1"].up = True
    await client.write("x", b"two")
    assert written(fleet) == [b"two"]
    await client.close()


@virtual_time
async def test_a_record_that_is_not_answered_in_time_is_in_doubt_and_the_next_ones_are_written():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, requestTimeoutMs=2000)
    await client.write("x", b"one")
    fleet["a:1"].hold = True
    with pytest.raises(OutcomeUnknownError):
        await client.write("x", b"two")
    fleet["a:1"].release()
    await client.write("x", b"three")
    assert written(fleet) == [b"one", b"two", b"three"]
    await client.close()


@virtual_time
async def test_fail_fast_does_not_ask_others():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet, streamFailfast=True)
    await client.write("x", b"one")
    owner = fleet.owners["x"]
    fleet[owner].refusals.append(Refusal(StatusCode.LOCKING_EXCEPTION, "the lock is lost", error="LockingError"))
    before = len(fleet.requests)
    with pytest.raises(Exception, match="the lock is lost"):
        await client.create("x")
    assert len(fleet.requests) == before + 1
    await client.close()


# ---------------------------------------------------------------------- producers


@virtual_time
async def test_a_client_of_the_same_name_fences_the_one_before_and_that_one_says_so():
    fleet = MemoryProxies("a:1")
    old, new = await opened(fleet, producerName="job"), await opened(fleet, producerName="job")
    await old.write("x", b"old")
    await new.write("x", b"new")
    producer = old.producer("x")
    with pytest.raises(ProducerFencedError):
        await producer.send(b"late")
    later = [producer.send(b"later") for _ in range(3)]
    await asyncio.wait_for(producer.close(), 1)
    assert all(isinstance(one.exception(), ProducerFencedError) for one in later), "refused, and not left waiting"
    assert written(fleet) == [b"old", b"new"]
    await old.close()
    await new.close()


@virtual_time
async def test_clients_without_a_name_do_not_fence_each_other():
    fleet = MemoryProxies("a:1")
    clients = [await opened(fleet) for _ in range(10)]
    for number in range(5):
        await asyncio.gather(*(client.write("x", b"%d" % number) for client in clients))
    assert len(written(fleet)) == 50
    assert len(set(fleet.log("x").producers.names())) == 10
    for client in clients:
        await client.close()


@virtual_time
async def test_a_handle_is_the_same_until_it_is_closed_and_another_may_follow():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet)
    first = client.producer("x")
    assert client.producer("x") is first
    assert client.producer("x", "other") is not first
    await first.send(b"one")
    await first.close()
    with pytest.raises(AlreadyClosedError):
        first.send(b"no")
    second = client.producer("x")
    assert second is not first
    assert second.name != first.name
    await second.send(b"two")
    assert written(fleet) == [b"one", b"two"]
    await client.close()


# ---------------------------------------------------------------------- bounds, callers, closing


@virtual_time
async def test_what_waits_is_bounded_writes_wait_for_room_and_sends_are_refused():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, maxPendingBytes=1000)
    await client.write("x", b"first")
    fleet["a:1"].hold = True
    producer = client.producer("x")
    for _ in range(8):
        producer.send(bytes(100))
    with pytest.raises(OverCapacityError):
        producer.send(bytes(100))
    waiting = [asyncio.create_task(client.write("y", b"%d" % number)) for number in range(30)]
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    waiting[3].cancel()
    fleet["a:1"].release()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one for one in done if isinstance(one, BaseException)] == [done[3]]
    assert written(fleet, "y") == [b"%d" % number for number in range(30) if number != 3]
    await client.close()


@virtual_time
async def test_a_caller_that_cancels_takes_its_record_back_only_where_it_was_not_sent():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, lingerMs=1000)
    lingering = asyncio.create_task(client.write("x", b"back"))
    await asyncio.sleep(0.1)
    lingering.cancel()
    await asyncio.sleep(2)
    assert not written(fleet)
    fleet["a:1"].hold = True
    sent = asyncio.create_task(client.write("x", b"gone"))
    await asyncio.sleep(2)
    sent.cancel()
    await asyncio.sleep(1)
    fleet["a:1"].release()
    await client.write("x", b"next")
    assert written(fleet) == [b"gone", b"next"]
    assert client.producer("x").pending == 0
    await client.close()


@virtual_time
async def test_closing_writes_what_was_sent():
    fleet = MemoryProxies(*THREE)
    client = await opened(fleet, lingerMs=500)
    futures = [client.producer(f"s{number % 7}").send(payload) for number, payload in enumerate(numbered(100))]
    await client.close()
    await client.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert sum(len(log.records) for log in fleet.logs.values()) == 100
    with pytest.raises(AlreadyClosedError):
        await client.write("x", b"late")
    with pytest.raises(AlreadyClosedError):
        await client.create("x")
    with pytest.raises(AlreadyClosedError):
        client.reader("x")
    assert all(not proxy.links for proxy in fleet.proxies.values())


@virtual_time
async def test_closing_over_a_dead_fleet_ends_with_each_record_s_outcome():
    fleet = MemoryProxies("a:1")
    client = await opened(fleet, requestTimeoutMs=3000)
    await client.write("x", b"one")
    fleet["a:1"].hold = True
    sent = client.producer("x").send(b"two")
    await asyncio.sleep(0.1)
    fleet["a:1"].stop()
    unsent = client.producer("y").send(b"three")
    began = asyncio.get_running_loop().time()
    await client.close()
    assert asyncio.get_running_loop().time() - began < 7
    assert isinstance(sent.exception(), OutcomeUnknownError)
    assert isinstance(unsent.exception(), ProxyUnreachableError)


@virtual_time
async def test_closing_that_is_cut_short_leaves_nothing_behind():
    fleet = MemoryProxies("a:1")
    fleet["a:1"].silent = True
    client = await opened(fleet, requestTimeoutMs=-1, attemptTimeoutMs=0)
    asking = asyncio.create_task(client.create("x"))
    await asyncio.sleep(0.1)
    await client.close()
    with pytest.raises(OutcomeUnknownError):
        await asking


# ---------------------------------------------------------------------- the rest


@virtual_time
async def test_operations_on_streams():
    fleet = MemoryProxies(*THREE)
    async with await opened(fleet) as client:
        await client.create("x")
        await client.write_bulk("x", numbered(10))
        assert await client.truncate("x", "1:0:3") == DLSN(1, 0, 3)
        owner = await client.owner("x")
        assert owner in THREE
        info = await client.handshake(owner)
        assert info.ownerships["x"] == owner
        await client.release("x")
        assert "x" not in fleet.owners
        await client.heartbeat("x", to_readers=True)
        assert any(isinstance(one, Heartbeat) and one.to_readers for one in fleet.requests)
        assert await client.begin_epoch("x", "someone") == 0
        assert await client.begin_epoch("x", "someone") == 1
        await client.accept_streams(owner, enabled=False)
        assert (await client.handshake(owner)).status.name == "WRITE_ONLY"
        await client.delete("x")
        assert "x" not in fleet.logs
        with pytest.raises(ProxyUnreachableError):
            await client.handshake("nowhere:1")


@virtual_time
async def test_readers_go_on_at_another_proxy_where_one_dies():
    fleet = MemoryProxies(*THREE)
    async with await opened(fleet) as client:
        for payload in numbered(50):
            fleet.log("x").append((payload,))
        got = []
        async with client.reader("x", max_bytes=20) as reader:
            while len(got) < 50:
                got.append((await reader.read_next()).payload)
                if len(got) in (10, 30):
                    serving = next(one for one in fleet.proxies.values() if len(one.links) > 0 and one.up)
                    serving.stop()
        assert got == numbered(50)


@virtual_time
async def test_readers_have_connections_of_their_own_that_end_with_them():
    fleet = MemoryProxies("a:1")
    async with await opened(fleet) as client:
        await client.write("x", b"one")
        readers = [client.reader("x") for _ in range(20)]
        for reader in readers:
            assert (await reader.read_next()).payload == b"one"
        assert len(fleet["a:1"].links) == 3
        for reader in readers[16:]:
            await reader.close()
        await asyncio.sleep(0.1)
        assert len(fleet["a:1"].links) == 2
        again = client.reader("x")
        await again.read_next()
        assert len(fleet["a:1"].links) == 3


@virtual_time
async def test_what_a_client_can_not_be_made_of():
    for where in ("", " , ", "host", "host:99999", "http://a:1", "distributedlog://zk", []):
        with pytest.raises(CallerError):
            await AsyncClient.connect(where)
    with pytest.raises(CallerError, match="requestTimeoutMs"):
        await AsyncClient.connect("a:1", {"requestTimeout": 3})


async def test_without_a_place_the_namespace_is_the_one_that_the_library_would_take(no_namespace, monkeypatch):
    with pytest.raises(CallerError, match=r"no namespace was named.*finagleNameStr"):
        await AsyncClient.connect()
    monkeypatch.setenv("DLSPARK_URI", "distributedlog://zk")
    with pytest.raises(CallerError, match="distributedlog://zk"):
        await AsyncClient.connect()
