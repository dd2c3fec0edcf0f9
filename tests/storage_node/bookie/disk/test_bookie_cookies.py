"""Who may start where: every row of docs/reference/wire.md#cookies-at-start."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.bookie.harness import BookieCluster, entry

from metadata.bookkeeper.bookies import BookieRegistry, Cookie
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.disk.cookies import COOKIE_FILE
from storage_node.bookie.node.identity import name_bookie
from storage_node.errors import BookieConfigurationError, CookieMismatchError
from storage_node.protocol.schema import Status


def folders(cluster: BookieCluster, *names: str) -> list[Path]:
    return [cluster.tmp_path / "a" / name / "current" for name in names]


def wipe(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


async def delete_cookie(cluster: BookieCluster) -> None:
    store = MemoryStore(cluster.tree)
    await BookieRegistry(store).delete_cookie("a")
    await store.close()


async def stored_cookie(cluster: BookieCluster) -> Cookie | None:
    store = MemoryStore(cluster.tree)
    found = await BookieRegistry(store).read_cookie("a")
    await store.close()
    return None if found is None else found.value


async def test_no_cookie_anywhere_is_a_new_bookie_files_first_then_the_znode(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    written = {(folder / COOKIE_FILE).read_bytes() for folder in folders(cluster, "journal", "ledgers")}
    cookie = await stored_cookie(cluster)
    assert cookie is not None
    assert written == {cookie.encode()}


async def test_a_start_that_wrote_some_files_and_no_znode_is_begun_again(cluster: BookieCluster) -> None:
    """A crash between the files: some have a cookie that is equal, the others are empty."""
    await cluster.stop(await cluster.start())
    await delete_cookie(cluster)
    wipe(folders(cluster, "ledgers")[0])
    wipe_but_version = folders(cluster, "journal")[0]
    for path in wipe_but_version.iterdir():
        if path.name != COOKIE_FILE:
            path.unlink()
    await cluster.stop(await cluster.start())
    assert await stored_cookie(cluster) is not None


async def test_no_znode_and_a_directory_without_cookie_that_is_not_empty_is_refused(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    await delete_cookie(cluster)
    (folders(cluster, "ledgers")[0] / COOKIE_FILE).unlink()
    with pytest.raises(CookieMismatchError, match="not empty"):
        await cluster.start()


async def test_no_znode_but_cookies_everywhere_is_refused(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    await delete_cookie(cluster)
    with pytest.raises(CookieMismatchError, match="no cookie in metadata"):
        await cluster.start()


async def test_equal_cookies_everywhere_start(cluster: BookieCluster) -> None:
    first = await cluster.start()
    bookie_id = first.address.bookie_id
    await cluster.stop(first)
    assert (await cluster.start()).address.bookie_id == bookie_id


@pytest.mark.parametrize("emptied", [("journal",), ("ledgers",), ("journal", "ledgers")])
async def test_an_empty_disk_under_a_registered_identity_is_refused(
    cluster: BookieCluster, emptied: tuple[str, ...]
) -> None:
    await cluster.stop(await cluster.start())
    for folder in folders(cluster, *emptied):
        wipe(folder)
    for options in ({}, {"allow_storage_expansion": True}):
        with pytest.raises(CookieMismatchError, match="wiped"):
            await cluster.start(**options)


DIFFERENT: dict[str, Callable[[BookieCluster], dict[str, object]]] = {
    "bookie id": lambda cluster: {"bookie_id": "b"},
    "journal directories": lambda cluster: {"journal_directories": (str(cluster.tmp_path / "a" / "other"),)},
    "a further journal": lambda cluster: {
        "journal_directories": (str(cluster.tmp_path / "a" / "journal"), str(cluster.tmp_path / "a" / "j2"))
    },
    "ledger directories": lambda cluster: {"ledger_directories": (str(cluster.tmp_path / "a" / "other"),)},
    "a further ledger directory": lambda cluster: {
        "ledger_directories": (str(cluster.tmp_path / "a" / "ledgers"), str(cluster.tmp_path / "a" / "l2"))
    },
}


@pytest.mark.parametrize("what", DIFFERENT)
async def test_a_difference_anywhere_is_refused_and_named(cluster: BookieCluster, what: str) -> None:
    await cluster.stop(await cluster.start())
    with pytest.raises(CookieMismatchError, match="there and"):
        await cluster.start(**DIFFERENT[what](cluster))


async def test_another_clusters_metadata_is_refused(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    store = MemoryStore(cluster.tree)
    await store.put("/ledgers/INSTANCEID", b"another-cluster", -1)
    await store.close()
    with pytest.raises(CookieMismatchError, match="instance id"):
        await cluster.start()


async def test_expansion_admits_new_empty_ledger_directories_and_keeps_what_was_stored(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) == Status.EOK
    await cluster.stop(bookie)
    ledgers = tuple(str(cluster.tmp_path / "a" / name) for name in ("ledgers", "l2", "l3"))
    bookie = await cluster.start(ledger_directories=ledgers, allow_storage_expansion=True)
    assert (await (await cluster.connect(bookie)).read(5, 0)).status == Status.EOK
    await cluster.stop(bookie)
    cookie = await stored_cookie(cluster)
    assert cookie is not None
    assert cookie.ledger_dirs == ledgers
    bookie = await cluster.start(ledger_directories=ledgers)
    assert (await (await cluster.connect(bookie)).read(5, 0)).status == Status.EOK
    await cluster.stop(bookie)
    wipe(folders(cluster, "l2")[0])
    with pytest.raises(CookieMismatchError, match="wiped"):
        await cluster.start(ledger_directories=ledgers, allow_storage_expansion=True)


async def test_expansion_admits_no_directory_with_files_no_journal_and_none_less(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    home = cluster.tmp_path / "a"
    (home / "l2" / "current").mkdir(parents=True)
    (home / "l2" / "current" / "letter.txt").write_text("not ours")
    both = (str(home / "ledgers"), str(home / "l2"))
    with pytest.raises(CookieMismatchError, match="not empty"):
        await cluster.start(ledger_directories=both, allow_storage_expansion=True)
    journals = (str(home / "journal"), str(home / "j2"))
    with pytest.raises(CookieMismatchError, match="journal directories"):
        await cluster.start(journal_directories=journals, allow_storage_expansion=True)
    with pytest.raises(CookieMismatchError, match="ledger directories"):
        await cluster.start(ledger_directories=(str(home / "l3"),), allow_storage_expansion=True)


async def test_an_expansion_interrupted_anywhere_is_finished_by_the_next_start(cluster: BookieCluster) -> None:
    await cluster.stop(await cluster.start())
    before = (folders(cluster, "ledgers")[0] / COOKIE_FILE).read_bytes()
    ledgers = tuple(str(cluster.tmp_path / "a" / name) for name in ("ledgers", "l2"))
    options = {"ledger_directories": ledgers, "allow_storage_expansion": True}
    await cluster.stop(await cluster.start(**options))
    after = (folders(cluster, "ledgers")[0] / COOKIE_FILE).read_bytes()
    places = [folder / COOKIE_FILE for folder in folders(cluster, "journal", "ledgers", "l2")]
    for written in range(3):
        for index, place in enumerate(places):
            place.write_bytes(after if index < written else before)
        store = MemoryStore(cluster.tree)
        registry = BookieRegistry(store)
        found = await registry.read_cookie("a")
        assert found is not None
        await registry.write_cookie(Cookie.decode(before), found.version)
        await store.close()
        if places[2].read_bytes() == before:
            wipe(places[2].parent)
        await cluster.stop(await cluster.start(**options))
        assert {place.read_bytes() for place in places} == {after}


# ------------------------------------------------------------------------------------------- names


def test_the_id_comes_from_the_settings_and_only_then_from_the_machine(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(**options: object) -> str:
        return name_bookie(cluster.settings(**{"bookie_id": None, **options}), 3181).bookie_id

    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    monkeypatch.setattr(socket, "getfqdn", lambda address: "machine.example")
    assert settings(bookie_id="mine") == "mine"
    assert settings(advertised_address="outside", use_host_name_as_bookie_id=True) == "outside:3181"
    assert settings(listening_address="10.9.9.9") == "10.9.9.9:3181"
    assert settings(listening_address="::1") == "[::1]:3181"
    assert settings(advertised_address="2001:db8::7") == "[2001:db8::7]:3181"
    assert settings(listening_address="10.9.9.9", use_host_name_as_bookie_id=True) == "machine.example:3181"
    assert settings(listening_address="") == "10.1.2.3:3181"
    assert settings(listening_address="0.0.0.0", use_host_name_as_bookie_id=True) == "machine:3181"
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    assert settings(listening_address="") == "machine:3181"
    with pytest.raises(BookieConfigurationError, match="loopback"):
        settings(listening_address="127.0.0.1", allow_loopback=False)
