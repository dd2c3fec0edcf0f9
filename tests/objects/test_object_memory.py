"""The store in memory: its faults, by order and by seed, and what becomes of what is late."""

from __future__ import annotations

import random

import pytest
from helpers.cold.places import get, names, open_uploads, put
from helpers.virtual_time import virtual_time

from dlspark.objects.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectOutcomeUnknownError,
    RangeShortError,
    StoreUnavailableError,
)
from dlspark.objects.memory import PART_BYTES, MemoryBucket, MemoryObjectStore
from dlspark.objects.memory_faults import MOST_REQUESTS_LATE, POSSIBLE, ObjectFault, ObjectFaults, StoreCall
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError

ROOT = "s3://memory/cold"
URL = f"{ROOT}/ns/a.parquet"
BIG = bytes(2 * PART_BYTES + 1)


def bucket_of(seed: int = 1, **rates: float) -> MemoryBucket:
    now = iter(range(1_000_000))
    faults = ObjectFaults(random.Random(seed), {ObjectFault[name]: rate for name, rate in rates.items()})
    return MemoryBucket(lambda: next(now), faults)


def opened(bucket: MemoryBucket) -> MemoryObjectStore:
    return MemoryObjectStore(bucket, ROOT)


@virtual_time
@pytest.mark.parametrize("data", [b"small", BIG], ids=["put", "upload"])
@pytest.mark.parametrize("fault", [ObjectFault.CUT, ObjectFault.ANSWER_LOST, ObjectFault.LATE, ObjectFault.TORN])
async def test_a_commit_that_is_unknown_is_there_as_its_fault_says(fault: ObjectFault, data: bytes) -> None:
    bucket = bucket_of()
    store = opened(bucket)
    bucket.faults.order(StoreCall.PUT if data == b"small" else StoreCall.COMMIT, fault)
    with pytest.raises(ObjectOutcomeUnknownError):
        await put(store, URL, data)
    there = bucket.objects.get(URL)
    if fault is ObjectFault.TORN:
        assert there is not None
        assert 0 < len(there) < len(data)
    else:
        assert there == (data if fault is ObjectFault.ANSWER_LOST else None)
    bucket.settle()
    if fault is ObjectFault.LATE:
        assert bucket.objects[URL] == data


@virtual_time
async def test_a_refused_commit_is_not_applied() -> None:
    bucket = bucket_of()
    bucket.faults.order(StoreCall.PUT, ObjectFault.REFUSED)
    with pytest.raises(StoreUnavailableError):
        await put(opened(bucket), URL, b"x")
    bucket.settle()
    assert bucket.objects == {}


@virtual_time
async def test_what_is_late_comes_some_requests_later_and_not_over_another_object() -> None:
    bucket = bucket_of()
    store = opened(bucket)
    bucket.faults.order(StoreCall.PUT, ObjectFault.LATE, ObjectFault.LATE)
    for name in ("a", "b"):
        with pytest.raises(ObjectOutcomeUnknownError):
            await put(store, f"{ROOT}/{name}", name.encode())
    bucket.faults.order(StoreCall.PUT, ObjectFault.ANSWER_LOST)
    with pytest.raises(ObjectOutcomeUnknownError):
        await put(store, f"{ROOT}/a", b"first")
    for _ in range(MOST_REQUESTS_LATE):
        await names(store)
    assert bucket.objects == {f"{ROOT}/a": b"first", f"{ROOT}/b": b"b"}


@virtual_time
async def test_a_late_end_of_an_upload_that_was_aborted_makes_no_object() -> None:
    bucket = bucket_of()
    store = opened(bucket)
    bucket.faults.order(StoreCall.COMMIT, ObjectFault.LATE)
    with pytest.raises(ObjectOutcomeUnknownError):
        await put(store, URL, BIG)
    (upload,) = [one async for one in store.uploads(f"{ROOT}/")]
    await store.abort_upload(upload)
    bucket.settle()
    assert (bucket.objects, bucket.open_uploads) == ({}, [])


@virtual_time
async def test_an_upload_that_was_begun_with_its_answer_lost_stays_open_until_it_is_swept() -> None:
    bucket = bucket_of()
    store = opened(bucket)
    bucket.faults.order(StoreCall.BEGIN, ObjectFault.ANSWER_LOST)
    writer = await store.create(URL)
    with pytest.raises(StoreUnavailableError):
        await writer.write(BIG)
    await writer.abort()
    assert await open_uploads(store) == [URL]


@virtual_time
async def test_parts_are_put_again_and_count_once() -> None:
    bucket = bucket_of()
    store = opened(bucket)
    data = random.Random(2).randbytes(len(BIG))
    bucket.faults.order(StoreCall.PART, ObjectFault.ANSWER_LOST, ObjectFault.REFUSED, ObjectFault.CUT)
    await put(store, URL, data)
    assert bucket.objects[URL] == data


@virtual_time
async def test_reads_are_tried_again_and_what_is_wrong_with_their_bytes_is_not_hidden() -> None:
    bucket = bucket_of()
    store = opened(bucket)
    data = bytes(1000)
    await put(store, URL, data)
    bucket.faults.order(StoreCall.HEAD, ObjectFault.REFUSED, ObjectFault.CUT)
    bucket.faults.order(StoreCall.READ, ObjectFault.CUT)
    bucket.faults.order(StoreCall.LIST, ObjectFault.REFUSED)
    assert await get(store, URL) == data
    assert await names(store) == {URL}
    bucket.faults.order(StoreCall.READ, ObjectFault.SHORT)
    with pytest.raises(RangeShortError):
        await store.read(URL, [(0, 1000)])
    bucket.faults.order(StoreCall.READ, ObjectFault.FLIPPED)
    (flipped,) = await store.read(URL, [(0, 1000)])
    assert bytes(flipped).count(0) == 999
    assert bucket.objects[URL] == data
    bucket.faults.order(StoreCall.READ, *[ObjectFault.REFUSED] * 6)
    with pytest.raises(StoreUnavailableError):
        await store.read(URL, [(0, 1000)])
    bucket.faults.stop()
    assert await get(store, URL) == data


@virtual_time
async def test_a_taken_name_and_a_missing_one() -> None:
    bucket = bucket_of()
    store = opened(bucket)
    await put(store, URL, b"x")
    with pytest.raises(ObjectExistsError):
        await put(store, URL, b"y")
    with pytest.raises(ObjectNotFoundError):
        await store.head(f"{ROOT}/b")
    bucket.damage(URL, b"z")
    assert await get(store, URL) == b"z"


async def _run(seed: int) -> tuple[dict[str, bytes], list[str]]:
    """Write, read and delete under faults; return what is there, and what was told."""
    bucket = bucket_of(seed, **dict.fromkeys(("REFUSED", "CUT", "ANSWER_LOST", "LATE"), 0.05))
    store = opened(bucket)
    told = []
    for number in range(60):
        url = f"{ROOT}/{number}"
        data = bytes([number]) * (10 if number % 3 else 2 * PART_BYTES)
        writer = await store.create(url)
        try:
            await writer.write(data)
            await writer.commit()
            if number % 5 == 0:
                await store.delete(url)
            told.append("done")
        except NotAppliedError:
            told.append("not")
            await writer.abort()
            assert number % 5 == 0 or url not in bucket.objects
        except OutcomeUnknownError:
            told.append("unknown")
            await writer.abort()
            assert bucket.objects.get(url, data) == data
    bucket.settle()
    for number, outcome in enumerate(told):
        assert outcome != "done" or (f"{ROOT}/{number}" in bucket.objects) is bool(number % 5)
    return bucket.objects, told


@virtual_time
async def test_a_seed_replays_a_run() -> None:
    first = await _run(5)
    assert {"done", "not", "unknown"} == set(first[1])
    assert await _run(5) == first
    assert await _run(6) != first


@virtual_time
async def test_in_many_seeds_what_was_told_is_what_is() -> None:
    for seed in range(40):
        await _run(seed)


def test_only_what_a_call_can_meet_is_drawn_or_ordered() -> None:
    for call in StoreCall:
        faults = ObjectFaults(random.Random(1), dict.fromkeys(ObjectFault, 0.3))
        assert {faults.draw(call) for _ in range(400)} - {None} == set(POSSIBLE[call])
        for fault in set(ObjectFault) - set(POSSIBLE[call]):
            with pytest.raises(ValueError, match="cannot meet"):
                faults.order(call, fault)
