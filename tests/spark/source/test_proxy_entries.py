"""A task's entries through read proxies: those of storage nodes, byte for byte, whatever the proxies do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from helpers.spark.memory_read_proxies import ProxyFleet, Tamper
from helpers.spark.memory_world import DriverWorld
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.cold.reading.cold_files import shared_cold_files
from dlspark.errors import (
    InvalidEntryError,
    OperationNotServedError,
    PositionGapError,
    ProxyUnreachableError,
    ReadError,
)
from dlspark.serving.client.fleet import NoProxiesError
from dlspark.serving.process.membership import (
    FRAMES,
    READ_PROXIES,
    Announcement,
    ProxyEndpoint,
    ProxyMember,
    proxy_member,
)
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.read_proxy.balance import ReadBalance
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.spark.connection import announced_proxies
from dlspark.spark.errors import DeletedDataLossError, RecreatedDataLossError, TruncatedDataLossError
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.offsets import Offsets
from dlspark.spark.source.partition_reader import LogPartition, hosts_of
from dlspark.spark.source.planning import Partition
from dlspark.spark.source.proxy_entries import READ_BYTES, ProxyEntries, TaskProxies
from dlspark.spark.source.span_entries import SpanEntries, StoredEntries
from dlspark.spark.source.task_tokens import TaskGrant, TaskToken
from metadata.distributedlog.segments import TruncationStatus
from metadata.security.proofs import NotAuthenticatedError
from metadata.zookeeper.memory import MemoryStore
from storage_node.client.reader import ReplicaReader

A, B = "proxy-a:8100", "proxy-b:8100"
PATIENT_MS = 60_000

Entries = list[tuple[str, int, int, bytes]]


@pytest.fixture
async def fleet(driver_world: DriverWorld) -> AsyncIterator[ProxyFleet]:
    """Two read proxies of the world's namespace."""
    made = ProxyFleet(driver_world)
    for address in (A, B):
        await made.add(address)
    yield made
    await made.stop()


async def planned(driver: SourceDriver, start: Offsets | None = None, end: Offsets | None = None) -> list[Partition]:
    begin = start or await driver.resolve(driver.query.start)
    return await driver.plan(begin, end or await driver.latest())


async def taken(source: SpanEntries, spans: Partition) -> Entries:
    try:
        return [
            (span.log, span.lssn, entry_id, bytes(payload))
            for span in spans
            async for entry_id, payload in source.entries(span)
        ]
    finally:
        await source.close()


async def direct(driver: SourceDriver, spans: Partition) -> Entries:
    reader = ReplicaReader(settings=driver.client_settings)
    try:
        return await taken(StoredEntries(reader, lambda: shared_cold_files().hold()), spans)
    finally:
        await reader.close()


async def through(
    fleet: ProxyFleet, spans: Partition, *, outage_ms: int = PATIENT_MS, addresses: Sequence[str] = (A, B)
) -> Entries:
    proxies = TaskProxies(addresses, outage_ms, fleet.connect)
    try:
        return await taken(ProxyEntries(proxies, spans), spans)
    finally:
        await proxies.close()


@pytest.mark.parametrize("other_runs", [True, False])
async def test_a_task_is_sent_to_the_proxy_that_has_room_and_served_where_it_cannot_go(
    driver_world: DriverWorld, fleet: ProxyFleet, other_runs: bool
) -> None:
    """Also where each proxy is asked once, and the list has one."""
    balance = fleet[A].service.balance = ReadBalance(1.0)
    balance.use_members([ProxyHost(B)])
    balance.heard(B, 0)
    fleet[B].up = other_runs
    for log in ("first", "second", "third"):
        await driver_world.create(log)
        await driver_world.write(log, range(25))
        driver = await driver_world.driver(Scope.SOURCE_BATCH, log=log)
        (spans,) = await planned(driver)
        outage_ms = 0 if other_runs else PATIENT_MS
        assert await through(fleet, spans, outage_ms=outage_ms, addresses=(A,)) == await direct(driver, spans)
    asked = {log: {one.stream for one in fleet[log].asked} for log in (A, B)}
    assert asked == {A: {"first", "second", "third"}, B: {"second"} if other_runs else set()}
    assert fleet[A].service.figures().logs == (2 if other_runs else 3)


async def large_log(driver_world: DriverWorld, name: str = "large", entries: int = 60) -> str:
    """Entries of 100 KB: several deliveries."""
    await driver_world.create(name)
    async with await (await driver_world.namespace.open_log(name)).open_writer() as writer:
        for number in range(entries):
            await writer.write_batch(np.array([number]), pa.array([bytes([number]) * 100_000], type=pa.binary()))
    return name


async def test_any_range_has_the_entries_that_storage_nodes_have(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await driver_world.create()
    for part in range(6):
        await driver_world.write(name, range(part * 35, part * 35 + 35), entry=3 + part)
    await driver_world.write(name, range(210, 230), keep_open=True)
    choose = random.Random(20)
    proxies = TaskProxies((A, B), PATIENT_MS, fleet.connect)
    for cut in ({}, {"minPartitions": 7}, {"maxRecordsPerPartition": 4}, {"maxRecordsPerPartition": 50}):
        driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name, **cut)
        (view,) = (await driver.views()).values()
        end = (await driver.latest())[name]
        total = await view.count(DLSN.INITIAL, end)
        for _ in range(6):
            low, high = sorted(choose.sample(range(total + 1), 2))
            first = await view.advance(DLSN.INITIAL, end, low)
            last = await view.advance(DLSN.INITIAL, end, high)
            plan = await planned(driver, Offsets({name: first}), Offsets({name: last}))
            assert plan
            for spans in plan:
                assert await taken(ProxyEntries(proxies, spans), spans) == await direct(driver, spans)
    await proxies.close()


@pytest.mark.parametrize("behind", [False, True])
async def test_a_sealed_log_is_read_to_its_mark(driver_world: DriverWorld, fleet: ProxyFleet, behind: bool) -> None:
    """Also where the writer has put a control record behind the mark, as others do."""
    name = await driver_world.create()
    await driver_world.write(name, range(25), keep_open=True)
    await driver_world.seal(name)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    whole = await direct(driver, spans)
    if behind:
        (span,) = spans
        # The plan names one entry more than there is: the mark comes first.
        spans = (replace(span, last_entry=span.last_entry + 1),)
    assert await through(fleet, spans) == whole


async def test_many_small_segments_come_by_few_questions(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await driver_world.create()
    for part in range(30):
        await driver_world.write(name, range(part * 5, part * 5 + 5))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    assert len(spans) == 30
    assert await through(fleet, spans) == await direct(driver, spans)
    asked = fleet[A].asked + fleet[B].asked
    assert len(asked) <= 31
    assert not (fleet[A].asked and fleet[B].asked), "one proxy reads a log for all"


async def test_nothing_is_asked_for_behind_the_plan(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await large_log(driver_world)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name, maxBytesPerPartition=1_000_000)
    plan = await planned(driver)
    assert len(plan) >= 6
    for spans in plan[:2]:
        await through(fleet, spans)
    asked = [request.start for request in fleet[A].asked + fleet[B].asked]
    assert all(isinstance(start, DLSN) and start < plan[1][-1].stop for start in asked)
    assert all(0 < request.max_bytes <= READ_BYTES for request in fleet[A].asked + fleet[B].asked)


async def test_two_logs_of_one_task_are_read_one_after_the_other(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    for name in ("one", "two"):
        await driver_world.create(name)
        await driver_world.write(name, range(12), entry=4)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, subscribe="one,two")
    (spans,) = await planned(driver)
    found = await through(fleet, spans)
    assert found == await direct(driver, spans)
    assert [log for log, *_ in found] == sorted(log for log, *_ in found)
    assert all(proxy.service.figures().readers == 0 for proxy in fleet.proxies.values())


async def test_a_proxy_that_dies_in_the_middle_is_gone_on_without(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await large_log(driver_world)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    whole = await direct(driver, spans)
    for proxy in fleet.proxies.values():
        proxy.deaths = [3]
    found = asyncio.ensure_future(through(fleet, spans))
    await until(lambda: any(not proxy.up for proxy in fleet.proxies.values()), every_s=0)
    (dead,) = (proxy for proxy in fleet.proxies.values() if not proxy.up)
    (other,) = (proxy for proxy in fleet.proxies.values() if proxy.up)
    other.deaths.clear()
    assert await found == whole
    assert other.asked, "the other one went on"
    assert isinstance(other.asked[0].start, DLSN)
    assert other.asked[0].start > DLSN.INITIAL
    assert dead.asked


async def test_the_same_proxy_again_will_do(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await large_log(driver_world)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    whole = await direct(driver, spans)
    proxy = fleet[A]
    proxy.deaths = [2, 2]
    found = asyncio.ensure_future(through(fleet, spans, addresses=[A]))
    for _ in range(2):
        await until(lambda: not proxy.up, every_s=0)
        proxy.up = True
    assert await found == whole


async def test_a_proxy_that_stands_still_is_gone_on_without(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    """It takes the time of an attempt to notice: 12 seconds."""
    name = await driver_world.create()
    await driver_world.write(name, range(25))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    whole = await direct(driver, spans)
    assert await through(fleet, spans) == whole
    (asked,) = (proxy for proxy in fleet.proxies.values() if proxy.asked)
    asked.silent = True
    assert await through(fleet, spans) == whole


@pytest.mark.parametrize("outage_ms", [0, 300])
async def test_without_any_proxy_the_task_fails_with_all_that_were_asked(
    driver_world: DriverWorld, fleet: ProxyFleet, outage_ms: int
) -> None:
    name = await large_log(driver_world)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    proxies = TaskProxies((A, B, "nowhere:1"), outage_ms, fleet.connect)
    source = ProxyEntries(proxies, spans)
    for proxy in fleet.proxies.values():
        proxy.deaths = [2]
    found: list[int] = []

    async def read() -> None:
        async for entry_id, _ in source.entries(spans[0]):
            found.append(entry_id)

    with pytest.raises(ProxyUnreachableError) as caught:
        await read()
    assert found == list(range(len(found))) != []
    for said in (A, B, "nowhere:1", name, "dlspark proxy read", f"1:{len(found)}:0"):
        assert said in str(caught.value)
    await source.close()
    await proxies.close()


def without(number: int) -> Tamper:
    return lambda parts: [*parts[:number], *parts[number + 1 :]] if len(parts) > number + 1 else parts


TAMPERED: dict[str, tuple[Tamper, type[Exception], str]] = {
    "an entry is passed over": (without(2), PositionGapError, "is missing"),
    "an entry comes twice": (lambda parts: [parts[0], *parts], PositionGapError, "is missing"),
    "two entries change places": (lambda parts: [*parts[1::-1], *parts[2:]], TruncatedDataLossError, "is missing"),
    "the first one does not come": (lambda parts: parts[1:], TruncatedDataLossError, "is missing"),
    "the last one does not come": (lambda parts: parts[:-1], PositionGapError, "is missing"),
    "nothing comes": (lambda parts: [], TruncatedDataLossError, "went on to .* without it"),
    "another ledger": (
        lambda parts: [replace(part, ledger_id=part.ledger_id + 1) for part in parts],
        RecreatedDataLossError,
        "created again",
    ),
    "another segment": (
        lambda parts: [replace(part, lssn=part.lssn + 1) for part in parts],
        TruncatedDataLossError,
        "is missing",
    ),
}


@pytest.mark.parametrize("kind", TAMPERED)
async def test_what_is_not_the_plan_is_refused(driver_world: DriverWorld, fleet: ProxyFleet, kind: str) -> None:
    """A proxy is believed the bytes of an entry, whose digest it has checked, and nothing else."""
    name = await driver_world.create()
    await driver_world.write(name, range(100))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    tamper, error, says = TAMPERED[kind]
    for proxy in fleet.proxies.values():
        proxy.tamper = tamper
    with pytest.raises(error, match=says) as caught:
        await through(fleet, spans)
    assert name in str(caught.value)


async def test_a_hole_in_the_middle_of_a_log_is_a_gap_and_no_truncation(
    driver_world: DriverWorld, fleet: ProxyFleet
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(100))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver, Offsets({name: DLSN(1, 3, 0)}))
    for proxy in fleet.proxies.values():
        proxy.tamper = lambda parts: parts[1:]
    with pytest.raises(PositionGapError, match=r"Entry 1:3 is missing.*1:4.*readAheadSkipBrokenEntries"):
        await through(fleet, spans)


@pytest.mark.parametrize(
    ("refused", "raised"),
    [
        (InvalidEntryError("the envelope has no magic"), InvalidEntryError),
        (PositionGapError("record 7 follows record 5"), PositionGapError),
        (OperationNotServedError("a write proxy does not serve reads"), OperationNotServedError),
    ],
)
async def test_what_no_other_proxy_would_answer_otherwise_is_raised_at_once(
    driver_world: DriverWorld, fleet: ProxyFleet, refused: Exception, raised: type[Exception]
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    for proxy in fleet.proxies.values():
        proxy.refusal = refusal_of(refused)
    with pytest.raises(raised, match=refused.message) as caught:  # type: ignore[attr-defined]
        await through(fleet, spans)
    assert name in str(caught.value)
    assert len(fleet[A].asked + fleet[B].asked) == 1


async def test_what_may_pass_is_waited_for_and_then_said(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    for proxy in fleet.proxies.values():
        proxy.refusal = refusal_of(ReadError("storage nodes did not answer for 120 s"))
    with pytest.raises(
        (ReadError, ProxyUnreachableError), match=rf"asked were: {A}, {B} .*storage nodes did not answer"
    ):
        await through(fleet, spans, outage_ms=200)
    reading = asyncio.ensure_future(through(fleet, spans))
    await until(lambda: len(fleet[A].asked + fleet[B].asked) >= 8)
    for proxy in fleet.proxies.values():
        proxy.refusal = None
    assert await reading == await direct(driver, spans)


async def marked(driver_world: DriverWorld, name: str, indexes: Iterable[int]) -> None:
    for index in indexes:
        await driver_world.truncate(name, index, TruncationStatus.TRUNCATED)


@pytest.mark.parametrize("first", [0, 1])
async def test_what_was_truncated_since_the_plan_is_data_loss(
    driver_world: DriverWorld, fleet: ProxyFleet, first: int
) -> None:
    name = await driver_world.create()
    for part in range(4):
        await driver_world.write(name, range(part * 10, part * 10 + 10), entry=2)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    await marked(driver_world, name, range(2))
    with pytest.raises(TruncatedDataLossError, match=r"since the batch was planned.*failOnDataLoss=false"):
        await through(fleet, spans[first:])
    (again,) = await planned(await driver_world.driver(Scope.SOURCE_BATCH, log=name))
    assert [span.lssn for span in again] == [3, 4]
    assert await through(fleet, again) == await direct(driver, again)


async def test_a_log_that_was_deleted_or_created_again_since_the_plan_is_data_loss(
    driver_world: DriverWorld, fleet: ProxyFleet
) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(30))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    await driver_world.namespace.delete_log(name)
    with pytest.raises(DeletedDataLossError, match="proxies of this namespace"):
        await through(fleet, spans)
    await driver_world.create(name)
    await driver_world.write(name, range(1_000, 1_030))
    with pytest.raises(RecreatedDataLossError, match="ledger"):
        await through(fleet, spans)


async def test_a_task_that_stops_early_leaves_nothing_behind(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await large_log(driver_world)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    before = asyncio.all_tasks()
    proxies = TaskProxies((A, B), PATIENT_MS, fleet.connect)
    for _ in range(3):
        source = ProxyEntries(proxies, spans)
        entries = source.entries(spans[0])
        assert (await anext(entries))[0] == 0
        await entries.aclose()
        await source.close()
    await proxies.close()
    await until(lambda: not {task for task in asyncio.all_tasks() - before if "client" in repr(task.get_coro())})
    assert all(not proxy.links for proxy in fleet.proxies.values())
    assert all(proxy.service.figures().readers == 0 for proxy in fleet.proxies.values())


# ---------------------------------------------------------------------- the driver


async def test_the_driver_hands_on_what_is_announced(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    with pytest.raises(NoProxiesError, match=r"no read proxy is announced .*dlspark proxy read.*--proxies"):
        await driver_world.driver(Scope.SOURCE_BATCH, log=name, proxy="discover")
    store = MemoryStore(driver_world.tree)
    folder = f"/dl/{READ_PROXIES}"
    foreign = Announcement(store, folder, ProxyMember(ProxyEndpoint("other", 1)))
    await foreign.begin()
    with pytest.raises(NoProxiesError, match=r"no read proxy that takes frames \(1 are announced that do not\)"):
        await driver_world.driver(Scope.SOURCE_BATCH, log=name, proxy="discover")
    members = [Announcement(store, folder, proxy_member(ProxyEndpoint("127.0.0.1", port), -1)) for port in (8100, 8101)]
    for member in members:
        await member.begin()
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name, proxy="discover")
    assert await driver.read_proxies() == ("127.0.0.1:8100", "127.0.0.1:8101")
    assert members[0].member.endpoints[FRAMES].port == 8100
    for member in members:
        await member.withdraw()
    waiting = asyncio.ensure_future(announced_proxies(driver_world.namespace, READ_PROXIES, 60_000))
    assert not (await asyncio.wait({waiting}, timeout=0.5))[0]
    late = Announcement(store, folder, proxy_member(ProxyEndpoint("::1", 8102), -1))
    await late.begin()
    assert await waiting == ("[::1]:8102",)
    await late.withdraw()
    hasty = await driver_world.driver(Scope.SOURCE_BATCH, log=name, proxy="a:1,b:2")
    assert await hasty.read_proxies() == ("a:1", "b:2")
    assert await (await driver_world.driver(Scope.SOURCE_BATCH, log=name)).read_proxies() == ()
    await store.close()


async def test_a_task_through_proxies_prefers_no_storage_nodes_host(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log=name)
    (spans,) = await planned(driver)
    assert hosts_of(spans) == ["127.0.0.1"]
    assert LogPartition(spans, driver.client_settings).value == "dlspark-hosts[127.0.0.1]"
    assert LogPartition(spans, driver.client_settings, [A]).value == "dlspark-hosts[]"


async def test_a_refusal_ends_the_task_and_the_use_of_its_proxies(driver_world: DriverWorld, fleet: ProxyFleet) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(25))
    (spans,) = await planned(await driver_world.driver(Scope.SOURCE_BATCH, log=name))
    proxies = TaskProxies((A, B), PATIENT_MS, fleet.connect)
    token = TaskToken(TaskGrant("etl", frozenset(), (name,)), "shown", 1_000.0, 60_000, 940.0)
    for address in (A, B):
        fleet[address].refusal = refusal_of(NotAuthenticatedError("the token is refused: it has expired"))
    with pytest.raises(NotAuthenticatedError, match=r"ended at 1970-01-01T00:16:40\+00:00.*it has expired"):
        await taken(ProxyEntries(proxies, spans, token), spans)
    assert proxies.refused
    assert sum(len(fleet[address].asked) for address in (A, B)) == 1
    await proxies.close()
