"""Stores behind a proxy that cuts, refuses and loses answers: what became of a write is told as it is.

The servers are a real S3 and HDFS; with --rounds a mock of S3, too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from helpers.cold.fault_proxy import FaultPlan, HttpFault, RunningProxy, running_proxy
from helpers.cold.places import ServedPlace, get, names, open_uploads, put
from helpers.rounds import with_rounds

from dlspark.objects.errors import ObjectNotFoundError, ObjectOutcomeUnknownError, StoreUnavailableError
from dlspark.objects.opened_store import ReadPolicy
from dlspark.objects.store import ObjectStore
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError

pytestmark = pytest.mark.timeout(180)

QUICK = ReadPolicy(attempts=5, first_pause_s=0.001, longest_pause_s=0.01)
BEFORE = [HttpFault.CUT_BEFORE, *(one for one in HttpFault if one.name.startswith("REFUSED"))]
AFTER = [HttpFault.CUT_AFTER, *(one for one in HttpFault if one.name.startswith("DONE"))]


@pytest.fixture(params=["seaweed", "hdfs", *with_rounds("moto")])
def disturbed(request: pytest.FixtureRequest) -> ServedPlace:
    """Give a place of each server."""
    place = request.getfixturevalue(f"{request.param}_place")
    assert isinstance(place, ServedPlace)
    return place


@pytest.fixture
def proxy(disturbed: ServedPlace) -> Iterator[RunningProxy]:
    with running_proxy(disturbed.options["endpoint"]) as running:
        yield running


@pytest.fixture
async def store(disturbed: ServedPlace, proxy: RunningProxy) -> AsyncIterator[ObjectStore]:
    """Give the store as it is through the proxy."""
    behind = replace(disturbed, options={**disturbed.options, "endpoint": proxy.endpoint})
    opened = behind.open(QUICK)
    yield opened
    await opened.close()


@pytest.fixture
async def direct(disturbed: ServedPlace) -> AsyncIterator[ObjectStore]:
    """Give the store as it is."""
    opened = disturbed.open()
    yield opened
    await opened.close()


def makes_object(store: ObjectStore, *, big: bool = False) -> str:
    """Return a pattern of the request that makes an object."""
    if store.root.startswith("hdfs:"):
        return "op=RENAME"
    return r"^POST .*uploadId=" if big else r"^PUT [^?]*$"


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER, HttpFault.LATE], ids=lambda fault: fault.name)
async def test_a_commit_whose_answer_is_lost_is_told_as_unknown(
    store: ObjectStore, direct: ObjectStore, proxy: RunningProxy, fault: HttpFault
) -> None:
    url = f"{store.root}/ns/log/a.parquet"
    proxy.plan.order(makes_object(store), fault)
    writer = await store.create(url)
    await writer.write(b"all of it")
    with pytest.raises(ObjectOutcomeUnknownError, match=r"a\.parquet.*Look whether"):
        await writer.commit()
    assert await names(direct) == ({url} if fault.is_done else set())
    if fault is HttpFault.LATE:
        proxy.settle()
        # A rename that comes late finds that its temporary file was taken away.
        assert await names(direct) == (set() if store.root.startswith("hdfs:") else {url})
    if await names(direct):
        assert await get(direct, url) == b"all of it"
    await writer.abort()
    assert await open_uploads(direct) == []


@pytest.mark.parametrize(
    "fault", [HttpFault.CUT_BEFORE, HttpFault.CUT_AFTER, HttpFault.DONE_503], ids=lambda fault: fault.name
)
async def test_the_end_of_a_big_object_is_told_as_unknown_and_what_is_left_is_taken_away(
    store: ObjectStore, direct: ObjectStore, disturbed: ServedPlace, proxy: RunningProxy, fault: HttpFault
) -> None:
    url = f"{store.root}/big.parquet"
    data = random.Random(3).randbytes(disturbed.part_bytes + 1000)
    proxy.plan.order(makes_object(store, big=True), fault)
    writer = await store.create(url)
    await writer.write(data)
    with pytest.raises(ObjectOutcomeUnknownError):
        await writer.commit()
    await writer.abort()
    assert await names(direct) == ({url} if fault.is_done else set())
    if fault.is_done:
        assert await get(direct, url) == data
    assert await open_uploads(direct) == []


@pytest.mark.parametrize(
    "fault",
    [HttpFault.CUT_BEFORE, HttpFault.CUT_AFTER, HttpFault.REFUSED_503, HttpFault.DONE_500],
    ids=lambda fault: fault.name,
)
async def test_a_deletion_whose_answer_is_lost_is_told_as_unknown(
    store: ObjectStore, direct: ObjectStore, proxy: RunningProxy, fault: HttpFault
) -> None:
    url = f"{store.root}/a.parquet"
    await put(direct, url, b"x")
    proxy.plan.order("^DELETE ", fault)
    with pytest.raises(ObjectOutcomeUnknownError):
        await store.delete(url)
    assert await names(direct) == (set() if fault.is_done else {url})
    await store.delete(url)
    assert await names(direct) == set()


async def test_parts_are_put_again_and_none_twice(
    store: ObjectStore, disturbed: ServedPlace, proxy: RunningProxy
) -> None:
    if store.root.startswith("hdfs:"):
        pytest.skip("HDFS has no parts")
    url = f"{store.root}/parts.parquet"
    data = random.Random(4).randbytes(3 * disturbed.part_bytes)
    proxy.plan.order("partNumber=1", HttpFault.CUT_AFTER, HttpFault.REFUSED_503)
    proxy.plan.order("partNumber=2", HttpFault.CUT_BEFORE)
    proxy.plan.order("partNumber=3", HttpFault.DONE_500, HttpFault.REFUSED_500)
    await put(store, url, data)
    assert proxy.plan.ordered == []
    assert await get(store, url) == data
    assert await open_uploads(store) == []


async def test_an_upload_that_could_not_be_begun_makes_no_object(
    store: ObjectStore, direct: ObjectStore, disturbed: ServedPlace, proxy: RunningProxy
) -> None:
    pattern = "op=CREATE" if store.root.startswith("hdfs:") else r"^POST .*\?uploads"
    url = f"{store.root}/a.parquet"
    for fault in (HttpFault.CUT_BEFORE, HttpFault.REFUSED_503):
        proxy.plan.order(pattern, fault)
        with pytest.raises(StoreUnavailableError):
            await put(store, url, bytes(2 * disturbed.part_bytes))
    assert await names(direct) == set()


async def test_reads_are_tried_again_and_then_told_as_unavailable(
    store: ObjectStore, direct: ObjectStore, proxy: RunningProxy
) -> None:
    url = f"{store.root}/a.parquet"
    data = random.Random(5).randbytes(200_000)
    await put(direct, url, data)
    passing = [HttpFault.REFUSED_503, HttpFault.CUT_BEFORE, HttpFault.CUT_IN_ANSWER, HttpFault.REFUSED_500]
    proxy.plan.order("^(GET|HEAD) ", *passing)
    assert await get(store, url) == data
    proxy.plan.order("^GET ", *passing)
    assert await names(store) == {url}
    proxy.plan.order("^GET ", *passing)
    assert await open_uploads(store) == []
    proxy.plan.rates = {HttpFault.REFUSED_503: 1.0}
    before = len(proxy.plan.requests)
    with pytest.raises(StoreUnavailableError, match="503"):
        await store.read(url, [(0, 10)])
    assert len(proxy.plan.requests) - before == QUICK.attempts
    for call in (store.head(url), names(store), open_uploads(store)):
        with pytest.raises(StoreUnavailableError):
            await call


async def test_in_rounds_of_faults_what_was_told_is_what_is(
    store: ObjectStore, direct: ObjectStore, disturbed: ServedPlace, proxy: RunningProxy, rounds: int | None
) -> None:
    """A write that returned is there, one that was not applied is not, one that is unknown is there whole or not."""
    rng = random.Random(11)
    proxy.plan.rng = rng
    proxy.plan.rates = {fault: 0.02 for fault in HttpFault if fault is not HttpFault.LATE}
    told = {"done": 0, "not": 0, "unknown": 0}
    for number in range(rounds or 12):
        url = f"{store.root}/ns/{number}.parquet"
        data = rng.randbytes(rng.choice([10, 1000, disturbed.part_bytes + 10]))
        writer = None
        try:
            writer = await store.create(url)
            await writer.write(data)
            await writer.commit()
            outcome = "done"
        except NotAppliedError:
            outcome = "not"
        except OutcomeUnknownError:
            outcome = "unknown"
        if outcome != "done" and writer is not None:
            await writer.abort()
        told[outcome] += 1
        try:
            there: bytes | None = await get(direct, url)
        except ObjectNotFoundError:
            there = None
        assert there in {"done": [data], "not": [None], "unknown": [data, None]}[outcome], (number, outcome)
        if there is not None:
            assert bytes((await _persistently(store, url, len(data)))[0]) == data
    assert told["done"]
    proxy.plan.stop()
    async for upload in store.uploads(f"{store.root}/"):
        await store.abort_upload(upload)
    assert await open_uploads(direct) == []


async def _persistently(store: ObjectStore, url: str, size: int) -> list[memoryview]:
    while True:
        try:
            return await store.read(url, [(0, size)])
        except StoreUnavailableError:
            await asyncio.sleep(0)


def test_a_plan_replays_by_its_seed() -> None:
    def drawn(seed: int) -> list[HttpFault | None]:
        plan = FaultPlan(random.Random(seed), dict.fromkeys(HttpFault, 0.05), only="^PUT")
        return [plan.draw(f"{method} /a") for method in ("PUT", "GET") for _ in range(50)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert all(fault is None for fault in drawn(1)[50:])
