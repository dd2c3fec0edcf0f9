"""Metadata between Java and us: each reads what the other wrote, down to the same bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers.interop.clusters import InteropCluster, JavaBookies, both_versions

from dlspark.testing.java_process import JavaTool
from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry, Cookie
from metadata.bookkeeper.ledger_metadata import DigestType, Ensemble, LedgerMetadata, LedgerState
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.store import MetadataStore
from metadata.zookeeper.client import ZooKeeperStore

_roots = count(1)

OPEN_LEDGER = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ensembles=(Ensemble(0, ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")),),
    digest_type=DigestType.CRC32C,
    password=b"pw",
    custom={"application": b"dlspark", "component": b"interop"},
    ctime_ms=1_700_000_000_000,
)
CLOSED_LEDGER = OPEN_LEDGER.with_ensemble(7, ("10.0.0.1:3181", "10.0.0.4:3181", "10.0.0.3:3181")).closed(41, 4200)


@pytest.fixture
def root() -> str:
    return f"/metadata-{next(_roots)}"


@pytest.fixture
async def store(zk: str) -> AsyncIterator[MetadataStore]:
    connected = await ZooKeeperStore.connect(zk)
    yield connected
    await connected.close()


async def tree(store: MetadataStore, path: str) -> dict[str, bytes]:
    """Every znode at and below `path` with its data."""
    found = {path: (await store.get(path))[0]}
    for child in (await store.children(path))[0]:
        found |= await tree(store, f"{path}/{child}")
    return found


@contextmanager
def one_java_bookie(java: JavaTool, zk: str, root: str, directory: Path) -> Iterator[str]:
    bookies = JavaBookies(java, zk, root, directory, 1)
    try:
        yield bookies.cluster.bookies[0]
    finally:
        bookies.stop_all()


@both_versions
async def test_a_tree_that_java_initialised_is_accepted_as_it_is(
    java: JavaTool, zk: str, root: str, store: MetadataStore
) -> None:
    assert await java.ask("cluster.init", zk=zk, root=root) is True
    before = await tree(store, root)
    await LedgerStore(store, root).format()
    assert await tree(store, root) == before


@both_versions
async def test_a_tree_that_we_initialised_is_accepted_by_java(
    java: JavaTool, zk: str, root: str, store: MetadataStore, tmp_path: Path
) -> None:
    await LedgerStore(store, root).format()
    before = await tree(store, root)
    assert await java.ask("cluster.init", zk=zk, root=root) is False
    assert await tree(store, root) == before
    with one_java_bookie(java, zk, root, tmp_path) as bookie:
        assert [address.bookie_id for address in await BookieRegistry(store, root).writable()] == [bookie]


@both_versions
async def test_a_java_bookie_is_known_by_its_registration_and_cookie(
    java: JavaTool, zk: str, root: str, store: MetadataStore, tmp_path: Path
) -> None:
    with one_java_bookie(java, zk, root, tmp_path) as bookie:
        registry = BookieRegistry(store, root)
        host, port = bookie.split(":")
        assert await registry.writable() == [BookieAddress(bookie, host, int(port))]
        assert await registry.resolve(bookie) == BookieAddress(bookie, host, int(port))
        cookie = await registry.read_cookie(bookie)
        assert cookie is not None
        assert cookie.value.bookie_id == bookie
        assert cookie.value.instance_id == await registry.instance_id()
        assert cookie.value.journal_dirs == (str(tmp_path / "bookie-0" / "journal"),)
        raw, _ = await store.get(f"{root}/cookies/{bookie}")
        assert cookie.value.encode() == raw
        on_disk = (tmp_path / "bookie-0" / "ledgers" / "current" / "VERSION").read_bytes()
        assert Cookie.decode(on_disk).matches(cookie.value)


@both_versions
async def test_ledger_metadata_written_by_java_is_the_same_bytes_when_we_encode_it(
    java: JavaTool, theirs: InteropCluster, store: MetadataStore
) -> None:
    ask, ledgers = theirs.on(java), LedgerStore(store, theirs.root)
    for digest, name in ((DigestType.CRC32, "CRC32"), (DigestType.HMAC, "MAC"), (DigestType.DUMMY, "DUMMY")):
        created = await ask("ledger.create", digest=name, password="pw", custom={"application": "interop"})
        path = ledgers.path(created["ledger"])
        while_open, _ = await store.get(path)
        metadata = (await ledgers.read(created["ledger"])).value
        assert metadata.digest_type is digest
        assert metadata.password == b"pw"
        assert metadata.custom == {"application": b"interop"}
        assert set(metadata.last_ensemble.bookies) <= set(theirs.bookies)
        assert metadata.encode() == while_open
        await ask("ledger.write", handle=created["handle"], count=3, size=10)
        await ask("ledger.close", handle=created["handle"])
        closed, _ = await store.get(path)
        metadata = (await ledgers.read(created["ledger"])).value
        assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 2, 30)
        assert metadata.encode() == closed


def as_java_tells(metadata: LedgerMetadata) -> dict[str, Any]:
    return {
        "state": metadata.state.name,
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": None if metadata.digest_type is None else metadata.digest_type.name,
        "version": metadata.format_version,
        "ensembles": {str(ensemble.first_entry): list(ensemble.bookies) for ensemble in metadata.ensembles},
        "custom": {key: value.decode() for key, value in metadata.custom.items()},
    }


@both_versions
@pytest.mark.parametrize("format_version", [1, 2, 3])
async def test_java_reads_every_version_of_ledger_metadata_that_we_write(
    java: JavaTool, zk: str, root: str, store: MetadataStore, format_version: int
) -> None:
    ledgers = LedgerStore(store, root)
    await ledgers.format()
    in_recovery = OPEN_LEDGER.with_state(LedgerState.IN_RECOVERY)
    for metadata in (OPEN_LEDGER, in_recovery, CLOSED_LEDGER):
        written = replace(metadata, format_version=format_version)
        if format_version == 1:  # knows one quorum, no digest, no custom metadata
            written = replace(written, ack_quorum=3, digest_type=None, password=None, custom={}, ctime_ms=None)
        ledger_id = await ledgers.generate_id()
        await store.create(ledgers.path(ledger_id), written.encode(), make_parents=True)
        assert await java.ask("ledger.metadata", zk=zk, root=root, ledger=ledger_id) == as_java_tells(written)
        assert (await ledgers.read(ledger_id)).value.encode() == written.encode()


async def test_ids_are_drawn_from_one_sequence_by_both(
    java: JavaTool, theirs: InteropCluster, store: MetadataStore
) -> None:
    ask, ledgers = theirs.on(java), LedgerStore(store, theirs.root)
    drawn = []
    for _ in range(3):
        drawn.append((await ask("ledger.create"))["ledger"])
        drawn.append(await ledgers.generate_id())
    assert drawn == sorted(set(drawn))


@both_versions
async def test_ledgers_with_long_ids_are_found_by_both(
    java: JavaTool, zk: str, root: str, store: MetadataStore
) -> None:
    ledgers = LedgerStore(store, root)
    await ledgers.format()
    ids = [5, 2**31 - 2, 2**31 - 1, 2**31, 2**40, 2**62]
    for ledger_id in ids:
        await ledgers.create(ledger_id, OPEN_LEDGER)
    assert sorted(await java.ask("ledger.ids", zk=zk, root=root)) == ids
    assert [ledger_id async for ledger_id in ledgers.ids()] == ids
    for ledger_id in ids:
        found = await java.ask("ledger.metadata", zk=zk, root=root, ledger=ledger_id)
        assert found == as_java_tells(OPEN_LEDGER)


def binding_of(either_cluster: InteropCluster) -> Binding:
    return Binding.for_cluster(either_cluster.zk, either_cluster.root)


@both_versions
async def test_a_namespace_bound_by_java_holds_the_text_that_we_write(
    java: JavaTool, theirs: InteropCluster, root: str, store: MetadataStore
) -> None:
    uri = f"distributedlog://{theirs.zk}{root}"
    await java.ask("dl.bind", zk=theirs.zk, root=theirs.root, uri=uri)
    text, _ = await store.get(root)
    assert binding_of(theirs).encode() == text
    assert (await NamespaceStore(store, root).resolve()).encode() == text


@both_versions
async def test_logs_created_by_either_are_the_same_znodes(
    java: JavaTool, theirs: InteropCluster, root: str, store: MetadataStore
) -> None:
    await NamespaceStore(store, root).bind(binding_of(theirs))
    namespace = await java.ask("dl.open", uri=f"distributedlog://{theirs.zk}{root}")
    logs = LogStore(store, root)
    await java.ask("dl.create", namespace=namespace, log="of-java")
    await logs.create("of-us")
    by_java = await tree(store, f"{root}/of-java")
    by_us = await tree(store, f"{root}/of-us")
    assert {path.replace("of-us", "of-java"): data for path, data in by_us.items()} == by_java
    assert await java.ask("dl.list", namespace=namespace) == ["of-java", "of-us"] == await logs.list()
    await java.ask("dl.delete", namespace=namespace, log="of-us")
    await logs.delete_tree("of-java")
    assert await java.ask("dl.list", namespace=namespace) == [] == await logs.list()
    await java.ask("dl.close", namespace=namespace)


@both_versions
async def test_segments_of_java_are_the_same_text_when_we_encode_them(
    java: JavaTool, theirs: InteropCluster, root: str, store: MetadataStore
) -> None:
    await NamespaceStore(store, root).bind(binding_of(theirs))
    namespace = await java.ask("dl.open", uri=f"distributedlog://{theirs.zk}{root}")
    logs = LogStore(store, root)
    await java.ask("dl.create", namespace=namespace, log="log")
    for first in (0, 10):
        writer = await java.ask("dl.writer", namespace=namespace, log="log")
        await java.ask("dl.write", writer=writer, txid=100 + first, count=10, size=20)
        assert await segment_texts(store, logs) == [segment.encode() for segment in await logs.segments("log")]
        await java.ask("dl.close_writer", writer=writer)
    assert await segment_texts(store, logs) == [segment.encode() for segment in await logs.segments("log")]
    facts = [(s.lssn, s.first_txid, s.last_txid, s.record_count, s.in_progress) for s in await logs.segments("log")]
    assert facts == [(1, 100, 109, 10, False), (2, 110, 119, 10, False)]
    state = await logs.open("log")
    assert (state.max_lssn.value, state.max_txid.value) == (2, 119)
    await java.ask("dl.close", namespace=namespace)


async def segment_texts(store: MetadataStore, logs: LogStore) -> list[bytes]:
    """The data of the log's segment znodes, by segment number; their names must be those that we would give."""
    paths = logs.paths("log")
    segments: list[SegmentMetadata] = await logs.segments("log")
    names, _ = await store.children(paths.ledgers)
    assert sorted(names) == sorted(segment.znode_name for segment in segments)
    return [(await store.get(paths.segment(segment)))[0] for segment in segments]
