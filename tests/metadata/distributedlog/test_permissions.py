"""Access control of logs: the entries' format, and what holds for a log."""

from __future__ import annotations

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from metadata.distributedlog.permissions import ALLOW_ALL, Action, Permissions, PermissionStore, RequestDeniedError
from metadata.foundation.errors import CorruptDataError
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
DENY_WRITE = Permissions(deny_write=True)
maybe = st.none() | st.booleans()


@pytest.fixture
async def permissions(store: MetadataStore, root: str) -> PermissionStore:
    await store.create(f"{root}/ns")
    return PermissionStore(store, f"{root}/ns/.acl")


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (Permissions(deny_write=True, deny_truncate=True, deny_delete=False), "deny write and truncate, allow delete"),
        (ALLOW_ALL, "empty access control"),
        (Permissions(deny_acquire=True, deny_release=False), "deny acquire, allow release"),
    ],
)
def test_permissions_have_the_bytes_of_the_vectors(entry: Permissions, name: str) -> None:
    assert entry.encode() == VECTORS[name]
    assert Permissions.decode(VECTORS[name], "/acl") == entry


@given(st.builds(Permissions, maybe, maybe, maybe, maybe, maybe))
def test_every_entry_comes_back(entry: Permissions) -> None:
    assert Permissions.decode(entry.encode(), "/acl") == entry


def test_nothing_and_absent_fields_allow_everything() -> None:
    for data in (b"", b"{}", b'{"1":{"tf":0}}'):
        assert not any(Permissions.decode(data, "/acl").denies(action) for action in Action)


def test_each_field_denies_its_own_action() -> None:
    for action in Action:
        entry = Permissions.decode(b'{"%d":{"tf":1}}' % action.value, "/acl")
        assert [one for one in Action if entry.denies(one)] == [action]


@pytest.mark.parametrize("data", [b"\xff", b"1", b"[]", b'{"1":1}', b'{"1":{"str":"x"}}', b'{"2":{"tf":true}}'])
def test_what_is_no_entry_is_corrupt_and_allows_nothing_by_accident(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        Permissions.decode(data, "/acl")
    assert caught.value.path == "/acl"


async def test_without_any_entry_everything_is_allowed(permissions: PermissionStore) -> None:
    assert await permissions.get() is None
    assert await permissions.of("log") == ALLOW_ALL
    assert await permissions.logs() == []
    await permissions.check("log", *Action)


async def test_a_logs_entry_replaces_the_default_one_whole(permissions: PermissionStore) -> None:
    await permissions.set(DENY_WRITE)
    await permissions.set(Permissions(deny_delete=True), "own")
    assert await permissions.of("other") == DENY_WRITE
    assert await permissions.of("own") == Permissions(deny_delete=True)
    with pytest.raises(RequestDeniedError, match="denies write") as caught:
        await permissions.check("other", Action.ACQUIRE, Action.WRITE)
    assert (caught.value.code, caught.value.log) == (403, "other")
    await permissions.check("own", Action.ACQUIRE, Action.WRITE)
    assert await permissions.logs() == ["own"]


async def test_the_entries_are_where_upstream_has_them(
    permissions: PermissionStore, store: MetadataStore, root: str
) -> None:
    await permissions.set(DENY_WRITE)
    await permissions.set(ALLOW_ALL, "log")
    assert (await store.get(f"{root}/ns/.acl"))[0] == b'{"1":{"tf":1}}'
    assert (await store.get(f"{root}/ns/.acl/log"))[0] == b"{}"
    await store.put(f"{root}/ns/.acl/log", b"", -1)  # as upstream may leave it: an entry that allows everything
    assert await permissions.of("log") == ALLOW_ALL


async def test_a_deleted_entry_gives_way_to_the_default(permissions: PermissionStore) -> None:
    await permissions.set(DENY_WRITE)
    await permissions.set(ALLOW_ALL, "log")
    assert await permissions.delete("log")
    assert not await permissions.delete("log")
    assert await permissions.of("log") == DENY_WRITE


async def test_an_entry_of_a_nested_log_says_nothing_of_the_log_it_is_nested_in(permissions: PermissionStore) -> None:
    await permissions.set(DENY_WRITE)
    await permissions.set(ALLOW_ALL, "a/b")
    assert await permissions.of("a/b") == ALLOW_ALL
    assert await permissions.of("a") == DENY_WRITE
    assert not await permissions.delete("a")
    await permissions.set(Permissions(deny_delete=True), "a")
    assert await permissions.delete("a")
    assert await permissions.of("a") == DENY_WRITE
    assert await permissions.of("a/b") == ALLOW_ALL


@pytest.mark.parametrize("waiting", [None, ALLOW_ALL])
@pytest.mark.parametrize(("old", "new"), [("old", "new"), ("a/b", "c/d/e"), ("a/b", "a/c"), ("a/b", "a")])
async def test_an_entry_moves_with_its_log(
    permissions: PermissionStore, store: MetadataStore, old: str, new: str, waiting: Permissions | None
) -> None:
    await permissions.set(DENY_WRITE, old)
    if waiting is not None:
        await permissions.set(waiting, new)
    await store.multi(await permissions.move_ops(old, new))
    assert (await permissions.get(old), await permissions.get(new)) == (None, DENY_WRITE)
    assert await permissions.move_ops("nobody's", new) == []


async def test_moving_an_entry_leaves_those_of_nested_logs(permissions: PermissionStore, store: MetadataStore) -> None:
    await permissions.set(DENY_WRITE, "a")
    await permissions.set(Permissions(deny_delete=True), "a/b")
    await store.multi(await permissions.move_ops("a", "c"))
    assert await permissions.get("a") is None
    assert await permissions.get("a/b") == Permissions(deny_delete=True)
    assert await permissions.get("c") == DENY_WRITE


@pytest.mark.parametrize("fault", list(Fault))
async def test_an_entry_is_set_across_a_lost_answer(fault: Fault) -> None:
    tree = MemoryTree()
    permissions = PermissionStore(MemoryStore(tree), "/ns/.acl")
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if len(met) < 4 and name in ("create", "put"):
            met.append(name)
            return fault
        return None

    tree.inject = inject
    await permissions.set(DENY_WRITE, "log")
    assert await permissions.of("log") == DENY_WRITE
    assert len(met) == 4
