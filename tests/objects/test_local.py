"""Files as objects: what a file system may do wrong, what symbolic links may try, and what is durable when."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cold.places import folder_place, get, names, open_uploads, put
from helpers.waiting import until

from dlspark.objects import local
from dlspark.objects.errors import (
    ObjectNotFoundError,
    ObjectOutcomeUnknownError,
    ObjectStoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnreachedError,
)
from dlspark.objects.local import LocalStore
from dlspark.objects.opened_store import ReadPolicy
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectStore, OpenUpload
from metadata.foundation.errors import InvariantViolation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[ObjectStore]:
    opened = folder_place(folder).open(ReadPolicy(attempts=1))
    yield opened
    await opened.close()


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Have a call of the operating system fail."""

    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, call)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


async def test_a_path_and_its_address_are_one_place(folder: Path) -> None:
    os.mkdir(folder)
    for address in (str(folder), f"file://{folder}", f"file://localhost{folder}/"):
        store = open_store(address)
        assert isinstance(store, LocalStore)
        assert store.root == f"file://{folder}"
        await store.close()
    store = open_store(f"file://{folder}/ns/log/1-2-a.parquet")
    assert store.root == f"file://{folder}/ns/log"
    await store.close()


async def test_everything_is_synced_before_a_commit_returns_in_the_order_that_a_crash_needs(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noting(name: str) -> None:
        whole = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            first = arguments[0]
            is_folder = isinstance(first, int) and stat.S_ISDIR(os.fstat(first).st_mode)
            done.append(f"{name} folder" if is_folder else name)
            return whole(*arguments, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("mkdir", "write", "fdatasync", "link", "fsync"):
        noting(name)
    await put(store, f"{store.root}/ns/a.parquet", b"x")
    assert done == ["mkdir", "fsync folder", "write", "fdatasync", "link", "fsync folder"]


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [
        ("write", errno.ENOSPC, StoreRefusedError),
        ("write", errno.EDQUOT, StoreRefusedError),
        ("write", errno.EIO, StoreUnavailableError),
        ("write", errno.ENOTCONN, StoreUnreachedError),
        ("fdatasync", errno.EIO, StoreUnavailableError),
        ("fdatasync", errno.ENOSPC, StoreRefusedError),
        ("link", errno.EIO, StoreUnavailableError),
        ("link", errno.EPERM, StoreRefusedError),
        ("link", errno.EOPNOTSUPP, StoreRefusedError),
    ],
)
async def test_a_failure_before_the_name_is_made_leaves_nothing(
    store: ObjectStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type[ObjectStoreError],
) -> None:
    writer = await store.create(f"{store.root}/ns/a.parquet")
    await writer.write(b"x")
    failing(monkeypatch, call, number)
    with pytest.raises(kind, match=r"a\.parquet"):
        await writer.commit()
    await writer.abort()
    assert files_in(folder) == set()


async def test_an_object_whose_folder_was_not_synced_does_not_count(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{store.root}/a.parquet"
    writer = await store.create(url)
    await writer.write(b"x")
    failing(monkeypatch, "fsync", errno.EIO)
    # Not "unknown": whoever looks whether it is there sees it in the page cache.
    with pytest.raises(StoreUnavailableError, match="not durable"):
        await writer.commit()
    await writer.abort()
    assert files_in(folder) == {"a.parquet"}, "it is there, until power goes perhaps"
    with pytest.raises(ObjectOutcomeUnknownError):
        await store.delete(url)
    monkeypatch.undo()
    await store.delete(url)
    assert files_in(folder) == set()


async def test_a_temporary_name_that_stays_keeps_no_object_from_being_durable(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await store.create(f"{store.root}/a.parquet")
    await writer.write(b"x")
    synced: list[int] = []
    whole = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), whole(descriptor)))
    failing(monkeypatch, "unlink", errno.EIO)
    await writer.commit()
    assert len(synced) == 1
    monkeypatch.undo()
    assert len(await open_uploads(store)) == 1, "the sweep finds it"


async def test_a_folder_that_another_writer_has_made_is_synced_as_well(
    store: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ns").mkdir()
    failing(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(StoreUnavailableError, match="begin an object"):
        await store.create(f"{store.root}/ns/a.parquet")


async def test_a_root_that_is_not_there_is_never_made(folder: Path) -> None:
    store = open_store(str(folder), policy=ReadPolicy(attempts=1))
    url = f"{store.root}/ns/a.parquet"
    for call in (put(store, url, b"x"), store.head(url), names(store), store.delete(url)):
        with pytest.raises(StoreRefusedError, match="mount"):
            await call
    assert folder.name not in os.listdir(folder.parent)
    await store.close()


async def test_an_objects_own_folder_may_be_gone_with_it(store: ObjectStore, folder: Path) -> None:
    url = f"{store.root}/ns/log/a.parquet"
    await put(store, url, b"x")
    reader = open_store(url, policy=ReadPolicy(attempts=1))
    assert await get(reader, url) == b"x"
    await store.delete(url)
    assert os.listdir(folder) == []
    with pytest.raises(ObjectNotFoundError):
        await reader.read(url, [(0, 1)])
    with pytest.raises(ObjectNotFoundError):
        await reader.head(url)
    await reader.delete(url)
    assert await names(reader) == set()
    with pytest.raises(StoreRefusedError):
        await reader.create(url)
    await reader.close()


async def test_no_symbolic_link_below_the_root_is_followed(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.parquet").write_bytes(b"secret")
    (folder / "away").symlink_to(outside)
    (folder / "a.parquet").symlink_to(outside / "secret.parquet")
    for url in (f"{store.root}/away/secret.parquet", f"{store.root}/a.parquet"):
        with pytest.raises(StoreRefusedError, match="link"):
            await store.read(url, [(0, 1)])
        with pytest.raises(StoreRefusedError, match="link"):
            await store.head(url)
    for call in (put(store, f"{store.root}/away/new.parquet", b"x"), store.delete(f"{store.root}/away/secret.parquet")):
        with pytest.raises(StoreRefusedError, match="link"):
            await call
    assert await names(store) == set()
    assert files_in(outside) == {"secret.parquet"}
    await store.delete(f"{store.root}/a.parquet")
    assert (outside / "secret.parquet").read_bytes() == b"secret", "the link went, not what it led to"


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize(
    ("root", "below", "file", "warned"),
    [
        (0o700, 0o700, 0o600, False),
        (0o750, 0o750, 0o640, False),
        (0o770, 0o750, 0o640, False),
        (0o2770, 0o2770, 0o640, False),
        (0o2750, 0o2750, 0o640, False),
        (0o1777, 0o755, 0o644, True),
    ],
)
async def test_files_are_for_those_whom_the_root_lets_in_and_for_nobody_to_change(
    store: ObjectStore, folder: Path, root: int, below: int, file: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    os.chmod(folder, root)
    await put(store, f"{store.root}/ns/log/a.parquet", b"x")
    await put(store, f"{store.root}/ns/log/b.parquet", b"x")
    modes = [stat.S_IMODE(os.stat(folder / name).st_mode) for name in ("ns", "ns/log", "ns/log/a.parquet")]
    assert modes == [below, below, file]
    assert [f"chmod o-rwx {folder}" in said for said in caplog.messages] == [True] * warned


async def test_a_root_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    os.symlink(tmp_path / "disk", folder)
    store = open_store(str(folder))
    await put(store, f"{store.root}/a.parquet", b"x")
    assert files_in(tmp_path / "disk") == {"a.parquet"}
    await store.close()


async def test_what_is_no_file_is_no_object(store: ObjectStore, folder: Path) -> None:
    (folder / "folder.parquet").mkdir()
    os.mkfifo(folder / "pipe.parquet")
    for name in ("folder", "pipe"):
        with pytest.raises(ObjectNotFoundError):
            await store.read(f"{store.root}/{name}.parquet", [(0, 1)])
    (folder / "odd name.parquet").write_bytes(b"x")
    (folder / ".hidden").write_bytes(b"x")
    assert await names(store) == set()
    assert await open_uploads(store) == []


async def test_a_folder_that_becomes_empty_goes_and_writers_make_it_again(store: ObjectStore, folder: Path) -> None:
    """Writers and deletions in one folder at a time: no write fails because the folder went under it."""

    async def some(number: int) -> None:
        for turn in range(15):
            url = f"{store.root}/ns/log/{number}-{turn}.parquet"
            await put(store, url, b"x")
            assert await get(store, url) == b"x"
            await store.delete(url)

    await asyncio.gather(*(some(number) for number in range(6)))
    assert os.listdir(folder) == []


async def test_no_other_file_can_be_aborted_as_an_upload(store: ObjectStore, folder: Path) -> None:
    url = f"{store.root}/ns/a.parquet"
    await put(store, url, b"x")
    for name in ("a.parquet", ".0123456789abcdef.b.parquet", "../ns/a.parquet", ".hidden"):
        with pytest.raises(InvariantViolation):
            await store.abort_upload(OpenUpload(url, name, 0))
    assert await names(store) == {url}


async def test_a_writer_whose_store_was_closed_can_be_aborted(folder: Path) -> None:
    store = folder_place(folder).open()
    writer = await store.create(f"{store.root}/a.parquet")
    await writer.write(bytes(local.THREADS << 20))
    await store.close()
    await writer.abort()
    assert files_in(folder) == set()


async def test_a_writer_that_nobody_waits_for_is_dropped(store: ObjectStore, folder: Path) -> None:
    task = asyncio.ensure_future(store.create(f"{store.root}/a.parquet"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await put(store, f"{store.root}/b.parquet", b"x")
    await until(lambda: files_in(folder) == {"b.parquet"})
