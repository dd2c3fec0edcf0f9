"""Registrations, discovery, cookies: vectors of docs/reference/znodes.md and the life of a registration."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.reference_vectors import vectors
from helpers.worlds.metadata import Heard, MetadataServer
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry, Cookie, UnknownBookieError, check_bookie_id
from metadata.bookkeeper.ledgers import LedgerStore, Versioned
from metadata.foundation.errors import BadVersionError, CallerError, CorruptDataError, NodeExistsError
from metadata.retry import reconnected
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
FIRST = BookieAddress("10.0.0.1:3181", "10.0.0.1", 3181)
NAMED = BookieAddress("bookie-1", "host.example", 4000)


@pytest.fixture
async def ledgers_root(store: MetadataStore, root: str) -> str:
    await LedgerStore(store, f"{root}/ledgers").format()
    return f"{root}/ledgers"


@pytest.fixture
def registry(store: MetadataStore, ledgers_root: str) -> BookieRegistry:
    return BookieRegistry(store, ledgers_root)


# ---- formats ---------------------------------------------------------------------------------------------------------


def test_vector_bookie_service_info() -> None:
    data = VECTORS["service info"]
    assert FIRST.encode() == data
    assert BookieAddress.decode(FIRST.bookie_id, FIRST.encode("1.2.3"), "p") == FIRST  # whatever else it tells
    assert BookieAddress.decode("10.0.0.1:3181", data, "p") == FIRST


COOKIE = Cookie("10.0.0.1:3181", ("/data/journal",), ("/data/l1", "/data/l2"), "8f2c4b7e-0000-4000-8000-000000000001")
COOKIE_TEXT = VECTORS["cookie"]


def test_vector_cookie() -> None:
    assert COOKIE.encode() == COOKIE_TEXT
    assert Cookie.decode(COOKIE_TEXT, "p") == COOKIE


def test_a_cookie_may_have_several_journals_index_directories_and_no_instance() -> None:
    cookie = Cookie("b", ("/j1", "/j2"), ("/l",), None, ("/i1", "/i2"))
    assert b'journalDir: "/j1,/j2"\n' in cookie.encode()
    assert b'indexDirs: "2\\t/i1\\t/i2"\n' in cookie.encode()
    assert Cookie.decode(cookie.encode(), "p") == cookie


def test_a_cookie_of_layout_3_is_four_plain_lines() -> None:
    old = Cookie("10.0.0.1:3181", ("/j",), ("/l",), None, None, 3)
    assert old.encode() == b"3\n10.0.0.1:3181\n/j\n1\t/l\n"
    assert Cookie.decode(old.encode(), "p") == old


def test_cookies_match_by_identity_not_by_text() -> None:
    assert COOKIE.matches(replace(COOKIE, index_dirs=COOKIE.ledger_dirs, layout_version=4))
    for change in (
        {"bookie_id": "other:1"},
        {"journal_dirs": ("/data/journal", "/more")},
        {"ledger_dirs": ("/data/l2", "/data/l1")},
        {"instance_id": None},
        {"index_dirs": ("/elsewhere",)},
    ):
        assert not COOKIE.matches(replace(COOKIE, **change))


def test_a_cookie_is_read_leniently() -> None:
    text = (
        b'5\n ledgerDirs:"2\\t/data/l1\\t/data/l2" journalDir: \'/data/journal\' future: 1 bookieHost:"10.0.0.1:3181"'
    )
    assert Cookie.decode(text, "p") == replace(COOKIE, instance_id=None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"5\n",
        b"2\nx\ny\nz\n",
        b"3\nhost\n",
        b"3\nhost\n/j\n2\t/l\n",
        COOKIE_TEXT.replace(b"2\\t", b"3\\t"),
        COOKIE_TEXT.replace(b"bookieHost", b"bookieGhost"),
        COOKIE_TEXT[:60],
        b"5\n\xff\xfe",
    ],
)
def test_what_is_no_cookie_is_corrupt_and_names_its_place(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        Cookie.decode(data, "/ledgers/cookies/b")
    assert caught.value.path == "/ledgers/cookies/b"


@given(st.binary(max_size=80))
def test_any_registration_is_an_address_or_a_typed_error(data: bytes) -> None:
    for decode in (lambda: BookieAddress.decode("b", data, "p"), lambda: Cookie.decode(b"5\n" + data, "p")):
        try:
            decode()
        except (CorruptDataError, UnknownBookieError):
            pass


@pytest.mark.parametrize(
    ("bookie_id", "address"),
    [
        ("10.0.0.1:3181", ("10.0.0.1", 3181)),
        ("host.example:1", ("host.example", 1)),
        ("[::1]:3181", ("::1", 3181)),
        ("::1:3181", ("::1", 3181)),
    ],
)
def test_an_id_without_registration_is_read_as_an_address(bookie_id: str, address: tuple[str, int]) -> None:
    found = BookieAddress.from_id(bookie_id)
    assert (found.host, found.port) == address


@pytest.mark.parametrize("bookie_id", ["bookie-1", "host:", ":3181", "host:port", "host:0", "host:65536"])
def test_an_id_that_is_no_address_is_unknown(bookie_id: str) -> None:
    with pytest.raises(UnknownBookieError) as caught:
        BookieAddress.from_id(bookie_id)
    assert caught.value.node == bookie_id


@pytest.mark.parametrize("bookie_id", ["", "readonly", "ReadOnly", "a/b", "a b", "a,b", "é"])
def test_bad_bookie_ids_are_refused(bookie_id: str) -> None:
    with pytest.raises(CallerError):
        check_bookie_id(bookie_id)


# ---- registration ----------------------------------------------------------------------------------------------------


async def test_a_registered_bookie_is_listed_and_resolved(
    store: MetadataStore, registry: BookieRegistry, ledgers_root: str
) -> None:
    await registry.register(FIRST)
    await registry.register(NAMED, readonly=True)
    assert await registry.writable() == [FIRST]
    assert await registry.readonly() == [NAMED]
    assert await registry.resolve("bookie-1") == NAMED
    assert (await store.get(f"{ledgers_root}/available/{FIRST.bookie_id}"))[1].ephemeral_owner == store.session_id
    await registry.unregister(FIRST.bookie_id)
    await registry.unregister(NAMED.bookie_id)
    assert (await registry.writable(), await registry.readonly()) == ([], [])
    with pytest.raises(UnknownBookieError):
        await registry.resolve("bookie-1")


async def test_a_change_of_mode_moves_the_registration(registry: BookieRegistry) -> None:
    await registry.register(FIRST)
    await registry.register(FIRST, readonly=True)
    assert (await registry.writable(), await registry.readonly()) == ([], [FIRST])
    await registry.register(FIRST)
    assert (await registry.writable(), await registry.readonly()) == ([FIRST], [])


async def test_registering_again_updates_the_address(registry: BookieRegistry) -> None:
    await registry.register(FIRST)
    moved = replace(FIRST, port=5000)
    await registry.register(moved)
    assert await registry.writable() == [moved]


async def test_lists_that_are_kept_are_read_again_after_a_change(registry: BookieRegistry) -> None:
    registry.keep_lists()
    assert await registry.writable() == []
    await registry.register(FIRST)
    await registry.resolve(FIRST.bookie_id)  # its answer comes after the event
    assert await registry.writable() == [FIRST]
    (await registry.writable()).clear()
    assert await registry.writable() == [FIRST]
    await registry.unregister(FIRST.bookie_id)
    assert await registry.writable() == []


async def test_a_predecessors_registration_is_waited_out(
    store: MetadataStore, other: MetadataStore, registry: BookieRegistry, ledgers_root: str
) -> None:
    await BookieRegistry(other, ledgers_root).register(FIRST)
    waiting = asyncio.ensure_future(registry.register(FIRST))
    await store.sync(ledgers_root)
    await store.sync(ledgers_root)
    assert not waiting.done()
    await other.close()
    await asyncio.wait_for(waiting, 60)
    path = f"{ledgers_root}/available/{FIRST.bookie_id}"
    assert (await store.get(path))[1].ephemeral_owner == store.session_id


async def test_a_predecessor_that_stays_is_an_error(
    store: MetadataStore, other: MetadataStore, ledgers_root: str
) -> None:
    await BookieRegistry(other, ledgers_root).register(FIRST)
    with pytest.raises(NodeExistsError, match="another session"):
        await BookieRegistry(store, ledgers_root, predecessor_timeout_ms=50).register(FIRST)
    path = f"{ledgers_root}/available/{FIRST.bookie_id}"
    assert (await store.get(path))[1].ephemeral_owner == other.session_id


async def test_an_expired_session_registers_again_by_itself(
    metadata_server: MetadataServer,
    store: MetadataStore,
    other: MetadataStore,
    registry: BookieRegistry,
    ledgers_root: str,
) -> None:
    await registry.register(FIRST, readonly=True)
    changes = Heard()
    view = BookieRegistry(other, ledgers_root)
    stop = view.watch(changes)
    await changes.wait(1)
    old = store.session_id
    await metadata_server.expire(store)
    path = f"{ledgers_root}/available/readonly/{FIRST.bookie_id}"

    async def registered_again() -> bool:
        assert await reconnected(store, 60_000)
        stat = await other.exists(path)
        return stat is not None and stat.ephemeral_owner == store.session_id != old

    await changes.until(registered_again)
    assert await view.readonly() == [FIRST]
    stop()


@pytest.mark.parametrize("readonly", [False, True])
async def test_a_bookie_that_changes_its_mode_while_it_is_registered_again_stays_registered(
    registry: BookieRegistry, readonly: bool
) -> None:
    # As the renewal after an expired session and the node's own change do it, step by step beside each other.
    await asyncio.gather(registry.register(FIRST, readonly=not readonly), registry.register(FIRST, readonly=readonly))
    assert await registry.readonly() == [FIRST] * readonly
    assert await registry.writable() == [FIRST] * (not readonly)


async def test_a_bookie_that_unregistered_stays_away_after_an_expiry(
    metadata_server: MetadataServer, store: MetadataStore, registry: BookieRegistry
) -> None:
    await registry.register(FIRST)
    await registry.unregister(FIRST.bookie_id)
    expired = Heard()
    store.on_session(expired)
    await metadata_server.expire(store)
    await expired.wait(2)
    assert await reconnected(store, 60_000)
    assert await registry.writable() == []


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
async def test_a_registration_survives_a_lost_answer(fault: Fault) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await LedgerStore(store).format()
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if name == "create" and not met:
            met.append(path)
            return fault
        return None

    tree.inject = inject
    registry = BookieRegistry(store)
    await registry.register(FIRST)
    assert met == ["/ledgers/available/10.0.0.1:3181"]
    assert await registry.writable() == [FIRST]


async def test_registering_in_a_cluster_that_was_never_formatted_is_a_clear_error(
    store: MetadataStore, root: str
) -> None:
    registry = BookieRegistry(store, f"{root}/nowhere")
    for call in (registry.register(FIRST), registry.writable()):
        with pytest.raises(CallerError, match="initialised"):
            await call


# ---- discovery -------------------------------------------------------------------------------------------------------


async def test_legacy_and_foreign_registrations_do_not_spoil_the_list(
    store: MetadataStore, registry: BookieRegistry, ledgers_root: str
) -> None:
    await registry.register(FIRST)
    available = f"{ledgers_root}/available"
    await store.create(f"{available}/10.0.0.9:3181")
    await store.create(f"{available}/opaque")
    await store.create(f"{available}/junk", b"\xff\xff")
    await store.put(f"{available}/readonly", b"junk", -1)
    assert await registry.writable() == [FIRST, BookieAddress("10.0.0.9:3181", "10.0.0.9", 3181)]
    with pytest.raises(CorruptDataError) as caught:
        await registry.resolve("junk")
    assert caught.value.path == f"{available}/junk"
    with pytest.raises(UnknownBookieError):
        await registry.resolve("opaque")
    assert await registry.resolve("10.0.0.8:1") == BookieAddress("10.0.0.8:1", "10.0.0.8", 1)


async def test_a_missing_readonly_folder_is_made(
    store: MetadataStore, registry: BookieRegistry, ledgers_root: str
) -> None:
    await store.delete(f"{ledgers_root}/available/readonly")
    assert await registry.readonly() == []
    assert await store.exists(f"{ledgers_root}/available/readonly") is not None


async def test_a_watch_hears_of_both_lists_until_it_is_ended(
    metadata_server: MetadataServer,
    store: MetadataStore,
    other: MetadataStore,
    registry: BookieRegistry,
    ledgers_root: str,
) -> None:
    changes, kept = Heard(), Heard()
    stop, stop_kept = registry.watch(changes), registry.watch(kept)
    await changes.wait(1)
    rival = BookieRegistry(other, ledgers_root)
    await rival.register(FIRST)
    await changes.wait(2)
    await rival.register(FIRST, readonly=True)

    async def moved() -> bool:
        return (await registry.writable(), await registry.readonly()) == ([], [FIRST])

    await changes.until(moved)
    stop()
    count = len(changes.items)
    await metadata_server.break_connection(store)
    await rival.unregister(FIRST.bookie_id)

    async def empty() -> bool:
        return await registry.readonly() == []

    await kept.until(empty)
    assert len(changes.items) == count
    stop_kept()


async def test_closing_the_store_ends_watch_and_renewal(store: MetadataStore, registry: BookieRegistry) -> None:
    changes = Heard()
    registry.watch(changes)
    await registry.register(FIRST)
    await changes.wait(1)
    before = asyncio.all_tasks()
    await store.close()
    await asyncio.sleep(0)
    left = [task for task in before if not task.done() and task is not asyncio.current_task()]
    assert not any("_run" in repr(task) or "_renew" in repr(task) for task in left)


# ---- identity --------------------------------------------------------------------------------------------------------


async def test_cookies_are_created_read_replaced_and_deleted(registry: BookieRegistry) -> None:
    assert await registry.read_cookie(COOKIE.bookie_id) is None
    assert await registry.write_cookie(COOKIE) == 0
    assert await registry.write_cookie(COOKIE) == 0
    assert await registry.read_cookie(COOKIE.bookie_id) == Versioned(COOKIE, 0)
    grown = replace(COOKIE, ledger_dirs=(*COOKIE.ledger_dirs, "/data/l3"))
    with pytest.raises(NodeExistsError):
        await registry.write_cookie(grown)
    with pytest.raises(BadVersionError):
        await registry.write_cookie(grown, 3)
    assert await registry.write_cookie(grown, 0) == 1
    assert await registry.read_cookie(COOKIE.bookie_id) == Versioned(grown, 1)
    with pytest.raises(BadVersionError):
        await registry.delete_cookie(COOKIE.bookie_id, 0)
    await registry.delete_cookie(COOKIE.bookie_id, 1)
    await registry.delete_cookie(COOKIE.bookie_id)
    assert await registry.read_cookie(COOKIE.bookie_id) is None


async def test_a_foreign_cookie_is_corrupt(store: MetadataStore, registry: BookieRegistry, ledgers_root: str) -> None:
    await store.create(f"{ledgers_root}/cookies/b", b"junk", make_parents=True)
    with pytest.raises(CorruptDataError) as caught:
        await registry.read_cookie("b")
    assert caught.value.path == f"{ledgers_root}/cookies/b"


async def test_the_instance_id_is_optional_text(
    store: MetadataStore, registry: BookieRegistry, ledgers_root: str
) -> None:
    instance = await registry.instance_id()
    assert instance is not None
    assert len(instance) == 36
    await store.put(f"{ledgers_root}/INSTANCEID", b"\xff", -1)
    with pytest.raises(CorruptDataError):
        await registry.instance_id()
    await store.delete(f"{ledgers_root}/INSTANCEID")
    assert await registry.instance_id() is None
