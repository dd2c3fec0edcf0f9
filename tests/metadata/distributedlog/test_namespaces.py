"""Namespace URIs and bindings."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.reference_vectors import vectors
from hypothesis import given
from hypothesis import strategies as st

from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceInUseError, NamespaceStore, NamespaceUri, NotBoundError
from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
ONE = Binding.for_cluster("127.0.0.1:7000", "/ledgers")
ONE_BODY = VECTORS["binding body, one ensemble"].decode()
FULL = Binding(
    bk_servers="127.0.0.1:7000",
    ledgers_path="/ledgers",
    dl_servers="127.0.0.1:7000",
    encode_region_id=True,
    acl_root_path='.acl"\\x',
    first_lssn=1000,
    federated=True,
    quorums=(3, 2, 1),
)
FULL_BODY = VECTORS["binding body, everything and ours"].decode()
JAVAS, JAVAS_BODY = replace(FULL, quorums=None), VECTORS["binding body, everything"].decode()


@pytest.mark.parametrize(
    ("uri", "servers", "path", "text"),
    [
        ("distributedlog://h:2181/ns", "h:2181", "/ns", None),
        ("distributedlog-bk://h:2181/a/b/c", "h:2181", "/a/b/c", "distributedlog://h:2181/a/b/c"),
        ("distributedlog-BK://h:1/ns/", "h:1", "/ns", "distributedlog://h:1/ns"),
        ("distributedlog://a:1;b:2;c:3/ns", "a:1,b:2,c:3", "/ns", None),
        ("distributedlog://a:1,b:2/ns", "a:1,b:2", "/ns", "distributedlog://a:1;b:2/ns"),
        ("distributedlog://zk1/ns", "zk1:2181", "/ns", "distributedlog://zk1:2181/ns"),
        ("distributedlog://[::1]:2181/ns", "[::1]:2181", "/ns", None),
        (" distributedlog://h:1/ns ", "h:1", "/ns", "distributedlog://h:1/ns"),
    ],
)
def test_uris_are_read_and_written(uri: str, servers: str, path: str, text: str | None) -> None:
    parsed = NamespaceUri.parse(uri)
    assert (parsed.servers, parsed.path) == (servers, path)
    assert str(parsed) == (text or uri)
    assert NamespaceUri.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/ns",
        "h:2181/ns",
        "distributedlog:/ns",
        "distributedlog:///ns",
        "distributedlog://h:2181",
        "distributedlog://h:2181/",
        "distributedlog://h:port/ns",
        "distributedlog://h:0/ns",
        "distributedlog://h:70000/ns",
        "distributedlog://a:1;;b:2/ns",
        "distributedlog://user@h:1/ns",
        "distributedlog://h:1/ns//x",
        "distributedlog://h:1/../x",
        "distributedlog://h:1/ns?x=1",
        "distributedlog://h:1/ns#x",
        "distributedlog-mem://h:1/ns",
        "kafka://h:1/ns",
        "xdistributedlog-bk://h:1/ns",
    ],
)
def test_other_uris_are_refused_with_the_right_form(uri: str) -> None:
    with pytest.raises(CallerError) as caught:
        NamespaceUri.parse(uri)
    assert "distributedlog://host:port/path" in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_uri_or_a_callers_mistake(text: str) -> None:
    for uri in (text, f"distributedlog://{text}"):
        try:
            found = NamespaceUri.parse(uri)
        except CallerError:
            continue
        assert NamespaceUri.parse(str(found)) == found


@pytest.mark.parametrize(
    ("binding", "body"),
    [
        pytest.param(ONE, ONE_BODY, id="binding body, one ensemble"),
        pytest.param(FULL, FULL_BODY, id="binding body with everything"),
        pytest.param(JAVAS, JAVAS_BODY, id="binding body with everything of Java's"),
    ],
)
def test_a_binding_has_the_bytes_of_the_vectors(binding: Binding, body: str) -> None:
    assert binding.body() == body
    assert binding.encode() == b"1\nBKDL\n" + body.encode()
    assert Binding.decode(binding.encode(), "/ns") == binding


def test_absent_fields_have_their_defaults() -> None:
    data = b'1\nBKDL\n{"1":{"str":"a:1"},"2":{"str":"/l"},"6":{"str":"b:1"}}'
    binding = Binding.decode(data, "/ns")
    assert binding == Binding(bk_servers="a:1", ledgers_path="/l", dl_servers="b:1")
    assert binding.effective_first_lssn == 1
    assert FULL.effective_first_lssn == 1000


def test_a_body_on_several_lines_is_joined() -> None:
    data = b'1\r\nBKDL\r\n{"1":{"str":"a:1"},\n"2":{"str":"/l"},\r\n"6":{"str":"b:1"}}\n'
    assert Binding.decode(data, "/ns").ledgers_path == "/l"


@pytest.mark.parametrize(
    "data",
    [
        b"junk",
        b"\xff\xff",
        b"2\nBKDL\n" + ONE_BODY.encode(),
        b"1\nBKXX\n" + ONE_BODY.encode(),
        b"1\nBKDL\n",
        b"1\nBKDL\n[]",
        b"1\nBKDL\n{",
        b"1\nBKDL\n" + b"[" * 100_000,
        b"1\nBKDL\n{}",
        b'1\nBKDL\n{"1":{"str":"a"},"2":{"str":"/l"}}',
        b'1\nBKDL\n{"1":{"i64":1},"2":{"str":"/l"},"6":{"str":"b"}}',
        b'1\nBKDL\n{"1":"a","2":{"str":"/l"},"6":{"str":"b"}}',
        b'1\nBKDL\n{"1":{"str":3},"2":{"str":"/l"},"6":{"str":"b"}}',
        ONE.encode().replace(b'"3":{"tf":1}', b'"3":{"tf":true}'),
        ONE.encode().replace(b'"3":{"tf":1}', b'"3":{"tf":2}'),
        FULL.encode().replace(b'{"i64":1000}', b'{"i64":"x"}'),
    ],
)
def test_what_is_no_binding_is_corrupt_and_names_its_path(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        Binding.decode(data, "/ns")
    assert caught.value.path == "/ns"


@given(
    st.builds(
        Binding,
        bk_servers=st.text(min_size=1, max_size=9),
        ledgers_path=st.text(min_size=1, max_size=9),
        dl_servers=st.text(min_size=1, max_size=9),
        sanity_check_txid=st.booleans(),
        encode_region_id=st.booleans(),
        acl_root_path=st.none() | st.text(max_size=9),
        first_lssn=st.none() | st.integers(1, 2**62),
        federated=st.booleans(),
        quorums=st.none() | st.tuples(*[st.integers(1, 1000)] * 3),
    )
)
def test_every_binding_comes_back(binding: Binding) -> None:
    assert Binding.decode(binding.encode(), "/ns") == binding


@pytest.mark.parametrize("text", ["", "3", "3,2", "3,2,x", "3,2,1,0"])
def test_quorums_that_are_no_three_numbers_are_corrupt(text: str) -> None:
    data = replace(ONE, quorums=(3, 2, 1)).encode().replace(b"3,2,1", text.encode())
    with pytest.raises(CorruptDataError, match="quorums"):
        Binding.decode(data, "/ns")


@pytest.mark.parametrize("quorums", [(0, 0, 0), (1, 2, 1), (2, 1, 2), (2, 2, 0)])
def test_quorums_that_cannot_be_are_not_bound(quorums: tuple[int, int, int]) -> None:
    with pytest.raises(CallerError, match="nothing was bound"):
        replace(ONE, quorums=quorums).check("/ns")


# ---- the store -------------------------------------------------------------------------------------------------------


async def test_a_bound_namespace_resolves_also_from_below(store: MetadataStore, root: str) -> None:
    namespace = NamespaceStore(store, f"{root}/messaging/ns")
    with pytest.raises(NotBoundError) as caught:
        await namespace.resolve()
    assert caught.value.path == f"{root}/messaging/ns"
    await namespace.bind(ONE)
    assert await namespace.resolve() == ONE
    assert await NamespaceStore(store, f"{root}/messaging/ns/deep/er").resolve() == ONE
    assert (await store.get(f"{root}/messaging"))[0] == b""
    with pytest.raises(NotBoundError):
        await NamespaceStore(store, f"{root}/messaging").resolve()


async def test_binding_again_replaces_and_unbinding_empties(store: MetadataStore, root: str) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    await namespace.bind(ONE)
    other = Binding.for_cluster("h:1", "/other")
    await namespace.bind(other, create=False)
    assert await namespace.resolve() == other
    await namespace.unbind()
    assert (await store.get(f"{root}/ns"))[0] == b""
    with pytest.raises(NotBoundError):
        await namespace.resolve()


async def test_without_create_the_path_must_exist(store: MetadataStore, root: str) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    for call in (namespace.bind(ONE, create=False), namespace.unbind()):
        with pytest.raises(NotBoundError):
            await call
    assert await store.exists(f"{root}/ns") is None


async def test_a_federated_namespace_does_not_become_a_plain_one(store: MetadataStore, root: str) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    await namespace.bind(FULL)
    with pytest.raises(CallerError, match="federated"):
        await namespace.bind(ONE)
    assert await namespace.resolve() == FULL


async def test_foreign_data_is_neither_resolved_nor_overwritten(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/ns", b"somebody else's")
    namespace = NamespaceStore(store, f"{root}/ns")
    for call in (namespace.resolve(), namespace.bind(ONE), NamespaceStore(store, f"{root}/ns/x").resolve()):
        with pytest.raises(CorruptDataError) as caught:
            await call
        assert caught.value.path == f"{root}/ns"
    assert (await store.get(f"{root}/ns"))[0] == b"somebody else's"


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
async def test_binding_survives_a_lost_answer(fault: Fault) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if name in ("create", "get") and len(met) < 3:
            met.append(name)
            return fault
        return None

    tree.inject = inject
    namespace = NamespaceStore(store, "/a/ns")
    await namespace.bind(ONE)
    assert len(met) == 3
    assert await namespace.resolve() == ONE


def test_the_root_is_no_namespace() -> None:
    with pytest.raises(CallerError):
        NamespaceStore(MemoryStore(MemoryTree()), "/")


@pytest.mark.parametrize(
    "change",
    [
        {"bk_servers": "no port"},
        {"dl_servers": "a:1,,b:2"},
        {"bk_reader_servers": "http://a:1"},
        {"dl_reader_servers": "a:x"},
        {"ledgers_path": "ledgers"},
        {"ledgers_path": "/led//gers"},
        {"acl_root_path": "acl"},
        {"acl_root_path": "."},
        {"acl_root_path": ".a/b"},
        {"acl_root_path": ".subnamespaces"},
        {"acl_root_path": ".allocation_pool"},
        {"acl_root_path": ".sinks"},
        {"acl_root_path": ".a\x00"},
        {"first_lssn": 0},
        {"first_lssn": 2**63},
    ],
)
async def test_a_binding_that_makes_no_sense_is_refused(
    change: dict[str, object], store: MetadataStore, root: str
) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    with pytest.raises(CallerError):
        await namespace.bind(replace(ONE, **change))  # type: ignore[arg-type]
    assert await store.exists(f"{root}/ns") is None
    await namespace.bind(ONE)
    with pytest.raises(CallerError):
        await namespace.update(lambda binding: replace(binding, **change))  # type: ignore[arg-type]
    assert await namespace.resolve() == ONE


async def test_an_update_changes_what_it_says_and_nothing_else(store: MetadataStore, root: str) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    for path in (namespace, NamespaceStore(store, f"{root}/ns/below")):
        with pytest.raises(NotBoundError):
            await path.update(lambda binding: binding)
        await namespace.bind(replace(FULL, acl_root_path=".acl"))
    changed = await namespace.update(lambda binding: replace(binding, first_lssn=7))
    assert changed == await namespace.resolve() == replace(FULL, acl_root_path=".acl", first_lssn=7)


async def test_an_update_builds_on_what_another_has_just_stored(store: MetadataStore, root: str) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    await namespace.bind(ONE)

    async def raise_first_lssn() -> None:
        await namespace.update(lambda binding: replace(binding, first_lssn=binding.effective_first_lssn + 1))

    await asyncio.gather(*(raise_first_lssn() for _ in range(5)))
    assert (await namespace.resolve()).first_lssn == 6


async def test_the_binding_is_found_with_the_path_that_has_it(store: MetadataStore, root: str) -> None:
    await NamespaceStore(store, f"{root}/ns").bind(ONE)
    assert await NamespaceStore(store, f"{root}/ns/a/b").find() == (ONE, f"{root}/ns")
    nested = replace(ONE, first_lssn=5)
    await NamespaceStore(store, f"{root}/ns/a").bind(nested)
    assert await NamespaceStore(store, f"{root}/ns/a/b").find() == (nested, f"{root}/ns/a")


@pytest.mark.parametrize("place", ["log", ".subnamespaces/NS_0000000000/log"])
async def test_a_namespace_with_logs_is_unbound_only_by_force(store: MetadataStore, root: str, place: str) -> None:
    namespace = NamespaceStore(store, f"{root}/ns")
    await namespace.bind(replace(ONE, acl_root_path=".acl"))
    await store.create(f"{root}/ns/.acl")
    await store.create(f"{root}/ns/{place}", make_parents=True)
    with pytest.raises(NamespaceInUseError, match=r"\(log\)"):
        await namespace.unbind()
    assert (await namespace.resolve()).acl_root_path == ".acl"
    await namespace.unbind(force=True)
    with pytest.raises(NotBoundError):
        await namespace.resolve()
    assert await store.exists(f"{root}/ns/{place}") is not None


async def test_a_federated_namespace_has_its_index_from_the_start(store: MetadataStore, root: str) -> None:
    federated = replace(ONE, federated=True)
    await NamespaceStore(store, f"{root}/new").bind(federated)
    await NamespaceStore(store, f"{root}/grown").bind(ONE)
    assert await store.exists(f"{root}/grown/.subnamespaces") is None
    await NamespaceStore(store, f"{root}/grown").bind(federated)
    for name in ("new", "grown"):
        assert (await store.get(f"{root}/{name}/.subnamespaces"))[0] == b""
