"""One suite for every object store: in memory, a folder, two S3 servers, HDFS."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from helpers.cold.places import ObjectPlace, get, names, open_uploads, put
from helpers.paths import ROOT
from helpers.waiting import until

from dlspark.objects import memory, s3
from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    RangeShortError,
)
from dlspark.objects.store import ObjectStore
from metadata.foundation.errors import InvariantViolation, OpenedElsewhereError

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def store(place: ObjectPlace) -> AsyncIterator[ObjectStore]:
    opened = place.open()
    yield opened
    await opened.close()


def random_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


# -------------------------------------------------------------------- writing


@pytest.mark.parametrize("size", [0, 1, 70_000])
async def test_a_small_object_is_there_whole_once_it_is_committed(store: ObjectStore, size: int) -> None:
    url = f"{store.root}/ns/log/1-2-abc.parquet"
    data = random_bytes(size)
    writer = await store.create(url)
    await writer.write(data[: size // 2])
    await writer.write(memoryview(data)[size // 2 :])
    assert await names(store) == set()
    await writer.commit()
    assert await names(store) == {url}
    assert await get(store, url) == data
    info = await store.head(url)
    assert (info.url, info.bytes) == (url, size)
    assert info.modified_ms > 1_700_000_000_000
    assert await open_uploads(store) == []


async def test_a_big_object_goes_in_parts_and_comes_back_the_same(store: ObjectStore, place: ObjectPlace) -> None:
    url = f"{store.root}/ns/log/big.parquet"
    data = random_bytes(3 * place.part_bytes + 12_345)
    await put(store, url, data, piece=777_777)
    assert await get(store, url) == data
    assert (await store.head(url)).bytes == len(data)
    assert await open_uploads(store) == []


async def test_an_object_of_exactly_some_parts(store: ObjectStore, place: ObjectPlace) -> None:
    url = f"{store.root}/even.parquet"
    data = random_bytes(2 * place.part_bytes)
    await put(store, url, data, piece=place.part_bytes)
    assert await get(store, url) == data


@pytest.mark.parametrize("parts", [0, 2])
async def test_an_aborted_object_leaves_nothing(store: ObjectStore, place: ObjectPlace, parts: int) -> None:
    url = f"{store.root}/ns/log/gone.parquet"
    writer = await store.create(url)
    await writer.write(random_bytes(parts * place.part_bytes + 5))
    await writer.abort()
    await writer.abort()
    assert await names(store) == set()
    assert await open_uploads(store) == []
    with pytest.raises(ObjectNotFoundError, match=r"gone\.parquet"):
        await store.head(url)
    with pytest.raises(InvariantViolation):
        await writer.commit()


async def test_a_name_that_is_taken_is_not_overwritten(store: ObjectStore) -> None:
    url = f"{store.root}/once.parquet"
    await put(store, url, b"first")
    writer = await store.create(url)
    await writer.write(b"second")
    with pytest.raises(ObjectExistsError, match=r"once\.parquet"):
        await writer.commit()
    await writer.abort()
    assert await get(store, url) == b"first"
    assert await open_uploads(store) == []


async def test_a_cancelled_write_can_be_aborted(store: ObjectStore, place: ObjectPlace) -> None:
    url = f"{store.root}/cancelled.parquet"
    writer = await store.create(url)
    piece = random_bytes(2 * place.part_bytes + 1)

    async def write() -> None:
        for _ in range(2):
            await writer.write(piece)

    task = asyncio.ensure_future(write())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await writer.abort()
    assert await names(store) == set()
    assert await open_uploads(store) == []


WRITES_FOR_EVER = """
import asyncio, json, sys
from dlspark.objects.opening import open_store
async def main():
    store = open_store(sys.argv[1] + "/", json.loads(sys.argv[2]))
    writer = await store.create(sys.argv[1] + "/ns/log/killed.parquet")
    part = bytes(int(sys.argv[3]))
    for _ in range(3):
        await writer.write(part)
    while not [one async for one in store.uploads(sys.argv[1] + "/")]:
        await asyncio.sleep(0.01)
    print("begun", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_writer_that_is_killed_leaves_no_object_and_what_it_leaves_is_swept(
    store: ObjectStore, place: ObjectPlace
) -> None:
    if place.is_shared:
        child = start_child(place, WRITES_FOR_EVER, str(place.part_bytes))
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == b"begun\n"
        child.send_signal(signal.SIGKILL)
        child.communicate()
    else:
        lost = await store.create(f"{store.root}/ns/log/killed.parquet")
        await lost.write(random_bytes(3 * place.part_bytes))
    assert await names(store) == set()
    uploads = [one async for one in store.uploads(f"{store.root}/ns/")]
    assert [one.url for one in uploads] == [f"{store.root}/ns/log/killed.parquet"]
    assert uploads[0].started_ms > 1_200_000_000_000, "moto says the same time of all: 2010"
    assert [one async for one in store.uploads(f"{store.root}/other/")] == []
    await store.abort_upload(uploads[0])
    assert await open_uploads(store) == []
    await store.abort_upload(uploads[0])


async def test_an_upload_that_is_aborted_under_its_writer_makes_no_object(
    store: ObjectStore, place: ObjectPlace
) -> None:
    url = f"{store.root}/aborted.parquet"
    writer = await store.create(url)
    for _ in range(2):
        await writer.write(random_bytes(place.part_bytes))
    # HDFS's data node makes the file soon after it was asked to.
    await until(lambda: open_uploads(store), "the upload is listed")
    (upload,) = [one async for one in store.uploads(f"{store.root}/")]
    await store.abort_upload(upload)
    with pytest.raises(ObjectStoreError):
        await writer.commit()
    await writer.abort()
    assert await names(store) == set()


# -------------------------------------------------------------------- reading


async def test_ranges_come_in_the_order_in_which_they_were_asked_for(store: ObjectStore) -> None:
    url = f"{store.root}/ranges.parquet"
    data = random_bytes(3_000_000)
    await put(store, url, data)
    rng = random.Random(5)
    ranges = [(offset, rng.randrange(5_000)) for offset in (rng.randrange(2_990_000) for _ in range(200))]
    ranges += [(0, 1), (2_999_999, 1), (0, 3_000_000), (0, 0), (3_000_000, 0), (1_500_000, 1_500_000), (0, 1)]
    found = await store.read(url, ranges)
    assert [bytes(one) for one in found] == [data[offset : offset + length] for offset, length in ranges]
    assert await store.read(url, []) == []


@pytest.mark.parametrize("past", [(99, 2), (100, 1), (5_000, 10), (500_000, 10), (0, 101)])
async def test_a_range_past_the_end_is_an_error_and_never_fewer_bytes(
    store: ObjectStore, past: tuple[int, int]
) -> None:
    url = f"{store.root}/short.parquet"
    await put(store, url, random_bytes(100))
    with pytest.raises(RangeShortError, match=r"short\.parquet"):
        await store.read(url, [(0, 10), past])
    with pytest.raises(InvariantViolation):
        await store.read(url, [(-1, 10)])


async def test_what_is_not_there_is_told_as_that(store: ObjectStore) -> None:
    url = f"{store.root}/nowhere/missing.parquet"
    with pytest.raises(ObjectNotFoundError, match=r"missing\.parquet"):
        await store.read(url, [(0, 1)])
    with pytest.raises(ObjectNotFoundError):
        await store.head(url)
    await store.delete(url)


async def test_many_readers_of_one_object_at_once(store: ObjectStore) -> None:
    url = f"{store.root}/shared.parquet"
    data = random_bytes(1_000_000)
    await put(store, url, data)

    async def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(2):
            ranges = [(rng.randrange(900_000), rng.randrange(100_000)) for _ in range(4)]
            found = await store.read(url, ranges)
            assert [bytes(one) for one in found] == [data[offset : offset + size] for offset, size in ranges]

    await asyncio.gather(*(read(seed) for seed in range(16)))


# -------------------------------------------------------------------- listing and deleting


async def test_deleting(store: ObjectStore) -> None:
    kept, gone = f"{store.root}/ns/log/kept.parquet", f"{store.root}/ns/log/gone.parquet"
    await put(store, kept, b"kept")
    await put(store, gone, b"gone")
    await store.delete(gone)
    await store.delete(gone)
    assert await names(store) == {kept}
    with pytest.raises(ObjectNotFoundError):
        await store.read(gone, [(0, 1)])
    await store.delete(kept)
    assert await names(store) == set()
    await put(store, kept, b"again, as far as the store is concerned")
    assert await names(store) == {kept}


async def test_a_listing_has_what_lies_below_its_folder_however_deep(store: ObjectStore) -> None:
    urls = {f"{store.root}/{name}.parquet" for name in ("top", "a/one", "a/b/two", "a-b/three", "ab/four", "a/b/c/d/e")}
    for url in urls:
        await put(store, url, b"x")
    assert await names(store) == urls
    assert await names(store, f"{store.root}/a/") == {one for one in urls if one.startswith(f"{store.root}/a/")}
    assert await names(store, store.root) == urls
    assert await names(store, f"{store.root}/nothing/") == set()
    with pytest.raises(ObjectAddressError):
        await names(store, f"{store.root}/a")


async def listed(store: ObjectStore, count: int) -> None:
    """Put objects, and find each of them once."""
    urls = [f"{store.root}/ns/log-{number % 2}/{number:06d}.parquet" for number in range(count)]

    async def put_some(first: int) -> None:
        for url in urls[first::12]:
            await put(store, url, url[-14:].encode())

    await asyncio.gather(*(put_some(first) for first in range(12)))
    found = [one async for one in store.list(f"{store.root}/ns/")]
    assert sorted(one.url for one in found) == sorted(urls)
    assert {one.bytes for one in found} == {14}


async def test_a_listing_of_many_pages(store: ObjectStore, place: ObjectPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, s3):
        monkeypatch.setattr(module, "PAGE", 20)
    # HDFS's own pages are of 20 here: its log folders have more than one each.
    await listed(store, 44 if place.is_slow else 301)


async def test_a_listing_of_more_than_a_thousand(store: ObjectStore, place: ObjectPlace) -> None:
    """It is what a server's page holds."""
    if place.is_slow:
        pytest.skip("a listing of many pages is tried with small pages")
    await listed(store, 1_203)


# -------------------------------------------------------------------- addresses


ODD_NAMES = [
    "/a/../../b.parquet",
    "/../b.parquet",
    "/./b.parquet",
    "//b.parquet",
    "/a//b.parquet",
    "/",
    "",
    "/.hidden.parquet",
    "/a/",
    "/b\u00fccher.parquet",
    "/a b.parquet",
    "/a%2Fb.parquet",
    "/a\\b.parquet",
    "/a\nb.parquet",
    "/a\0b.parquet",
    "/a?b.parquet",
    "/a#b.parquet",
    "/a~b.parquet",
    "x/b.parquet",
    "/" + "n" * 201,
    "/a" * 500,
]


async def test_what_cannot_be_an_objects_name_is_refused_by_every_call(store: ObjectStore) -> None:
    for name in ODD_NAMES:
        url = f"{store.root}{name}"
        for call in (store.create, store.head, store.delete):
            with pytest.raises(ObjectAddressError):
                await call(url)
        with pytest.raises(ObjectAddressError):
            await store.read(url, [(0, 1)])
        with pytest.raises(ObjectAddressError):
            await store.head(f"s3://elsewhere{name}")
    assert await names(store) == set()


async def test_every_character_that_a_name_may_have_is_kept(store: ObjectStore) -> None:
    urls = {f"{store.root}/n=a+b/c@d,e-f_g/{name}.parquet" for name in ("A..b", "=", "+", "@", ",x", "-", "_")}
    for url in urls:
        await put(store, url, url.encode())
    assert await names(store) == urls
    for url in urls:
        assert await get(store, url) == url.encode()
        await store.delete(url)
    assert await names(store) == set()


# -------------------------------------------------------------------- processes and loops


FORKS = """
import asyncio, json, os, sys
from dlspark.objects.opening import open_store
from metadata.foundation.errors import OpenedElsewhereError
root, options = sys.argv[1], json.loads(sys.argv[2])
url = root + "/forked.parquet"
async def parent():
    store = open_store(root, options)
    writer = await store.create(url)
    await writer.write(b"parent")
    await writer.commit()
    child = os.fork()
    if not child:
        try:
            for call in (store.head, store.delete, store.create):
                try:
                    await call(url)
                except OpenedElsewhereError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(3)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    assert (await store.head(url)).bytes == 6
    await store.close()
asyncio.run(parent())
async def anew():
    try:
        store = open_store(root, options)
    except OpenedElsewhereError as error:
        assert "fork" in str(error)
    else:
        assert (await store.head(url)).bytes == 6
child = os.fork()
if not child:
    try:
        asyncio.run(asyncio.wait_for(anew(), 60))
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(5)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
"""


async def test_a_store_is_refused_in_a_fork_and_never_hangs(place: ObjectPlace) -> None:
    if not place.is_shared:
        pytest.skip("nothing in it could hang")
    child = start_child(place, FORKS)
    output, _ = await asyncio.to_thread(child.communicate, timeout=100)
    assert (child.returncode, output) == (0, b"done\n")


async def test_a_store_is_refused_on_another_loop_and_after_it_was_closed(place: ObjectPlace) -> None:
    store = place.open()
    url = f"{store.root}/a.parquet"
    with pytest.raises(OpenedElsewhereError):
        await asyncio.to_thread(asyncio.run, store.head(url))  # type: ignore[arg-type]
    await store.close()
    await store.close()
    with pytest.raises(InvariantViolation, match="closed"):
        await store.head(url)


def start_child(place: ObjectPlace, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    return subprocess.Popen(
        [*command, place.root, json.dumps(dict(place.options)), *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, **place.environment, "PYTHONPATH": str(ROOT)},
    )
