"""Where storage nodes are, and which regions are disallowed: on each metadata store, under races and lost answers."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.reference_vectors import vectors

from metadata.bookkeeper.ledgers import LedgerLayout, LedgerStore
from metadata.bookkeeper.topology import Topology, TopologyStore, check_location, check_region
from metadata.foundation.errors import CallerError, CorruptDataError, MetadataUnavailableError
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")


@pytest.fixture
async def ledgers(store: MetadataStore, root: str) -> str:
    await LedgerStore(store, f"{root}/ledgers").format()
    return f"{root}/ledgers"


@pytest.fixture
def topology(store: MetadataStore, ledgers: str) -> TopologyStore:
    return TopologyStore(store, ledgers)


@pytest.fixture
def elsewhere(other: MetadataStore, ledgers: str) -> TopologyStore:
    return TopologyStore(other, ledgers)


async def test_a_cluster_without_announcements_has_an_empty_topology(topology: TopologyStore) -> None:
    assert await topology.read() == Topology()
    assert await topology.announce("10.0.0.1:3181", None) is False
    assert await topology.allow("eu") is False
    assert await topology.read() == Topology(), "what changes nothing makes no znode"


async def test_nodes_announce_and_operators_disallow_beside_each_other(
    topology: TopologyStore, elsewhere: TopologyStore, store: MetadataStore, ledgers: str
) -> None:
    assert await topology.announce("10.0.0.1:3181", "/eu/r1") is True
    assert await elsewhere.announce("10.0.0.2:3181", "/us/r1") is True
    assert await elsewhere.disallow("us") is True
    assert await topology.disallow("us") is False
    data, _ = await store.get(f"{ledgers}/underreplication/topology")
    assert data == VECTORS["topology"]
    found = await topology.read()
    assert found.location_of("10.0.0.1:3181") == "/eu/r1"
    assert found.location_of("10.0.0.3:3181") is None
    assert found.disallowed == {"us"}
    assert await topology.announce("10.0.0.1:3181", "/eu/r1") is False
    assert await topology.announce("10.0.0.1:3181", "/ap/r9") is True, "the node came back elsewhere"
    assert await topology.allow("us") is True
    assert await elsewhere.announce("10.0.0.2:3181", None) is True
    found = await elsewhere.read()
    assert (dict(found.nodes), found.disallowed) == ({"10.0.0.1:3181": "/ap/r9"}, frozenset())


async def test_all_nodes_of_a_cluster_start_at_once(topology: TopologyStore, elsewhere: TopologyStore) -> None:
    names = [f"10.0.0.{number}:3181" for number in range(30)]
    stores = (topology, elsewhere)
    await asyncio.gather(*(stores[n % 2].announce(name, f"/eu/r{n}") for n, name in enumerate(names)))
    found = await topology.read()
    assert dict(found.nodes) == {name: f"/eu/r{n}" for n, name in enumerate(names)}
    assert found.version == len(names) - 1, "each announcement was one change"


async def test_kept_topology_is_read_again_only_when_it_changed(
    topology: TopologyStore, elsewhere: TopologyStore, store: MetadataStore
) -> None:
    requests: list[str] = []
    store.observe(lambda operation, _path, _seconds, _error: requests.append(operation))
    topology.keep()
    assert await topology.read() == Topology()
    asked = len(requests)
    assert await topology.read() == Topology()
    assert len(requests) == asked
    for disallowed in ({"eu"}, {"eu", "us"}):  # its creation is heard of, and its change
        for region in disallowed:
            await elsewhere.disallow(region)
        await store.sync(topology.path)
        while (await topology.read()).disallowed != disallowed:
            await store.sync(topology.path)
    asked = len(requests)
    await topology.read()
    assert len(requests) == asked


async def test_without_a_session_nothing_that_is_kept_counts() -> None:
    tree = MemoryTree()
    store, operator = MemoryStore(tree), MemoryStore(tree)
    await LedgerStore(store).format()
    topology = TopologyStore(store)
    topology.keep()
    await TopologyStore(operator).disallow("eu")
    assert (await topology.read()).disallowed == {"eu"}
    await store.close()
    with pytest.raises(MetadataUnavailableError):
        await topology.read()


@pytest.mark.parametrize("operation", ["get", "create", "put"])
@pytest.mark.parametrize("fault", list(Fault))
async def test_an_announcement_survives_lost_requests_and_answers(fault: Fault, operation: str) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await LedgerStore(store).format()
    topology = TopologyStore(store, rng=random.Random(1))
    faults: list[Fault] = []

    def inject(_session: int, name: str, path: str) -> Fault | None:
        return faults.pop() if faults and name == operation and path == topology.path else None

    tree.inject = inject
    faults.append(fault)
    assert await topology.announce("10.0.0.1:3181", "/eu/r1"), "news, also where it is found done after a lost answer"
    assert await topology.disallow("eu")
    assert not faults, "it was met"
    found = await topology.read()
    assert dict(found.nodes) == {"10.0.0.1:3181": "/eu/r1"}
    assert found.disallowed == {"eu"}
    assert found.version == 1, "a change whose answer was lost was not made twice"


async def test_a_cluster_that_is_not_there_is_not_made(store: MetadataStore, root: str) -> None:
    with pytest.raises(CallerError, match="no BookKeeper cluster"):
        await TopologyStore(store, f"{root}/absent").disallow("eu")
    assert await store.exists(f"{root}/absent") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"v":2,"nodes":{},"regions":{}}',
        b'{"v":1,"nodes":{}}',
        b'{"v":1,"nodes":{},"regions":{},"zones":{}}',
        b'{"v":1,"nodes":{"a:1":"eu"},"regions":{}}',
        b'{"v":1,"nodes":{"a:1":3},"regions":{}}',
        b'{"v":1,"nodes":{},"regions":{"eu":{"weight":1}}}',
        b'{"v":1,"nodes":{},"regions":{"eu":{"disallowed":"yes"}}}',
    ],
)
async def test_what_cannot_be_read_is_never_written_over(
    topology: TopologyStore, store: MetadataStore, data: bytes
) -> None:
    await store.create(topology.path, data, make_parents=True)
    for call in (topology.read(), topology.disallow("eu"), topology.announce("10.0.0.1:3181", "/eu/r1")):
        with pytest.raises(CorruptDataError):
            await call
    assert (await store.get(topology.path))[0] == data


@pytest.mark.parametrize("text", ["", "eu", "/", "/eu/", "/eu/r1/n1", "/e u/r1", "//r1", "/eu;us/r1"])
def test_texts_that_are_no_locations(text: str) -> None:
    with pytest.raises(CallerError):
        check_location(text, "networkLocation")


@pytest.mark.parametrize("text", ["", "eu/r1", "e u", "eu;us"])
def test_texts_that_are_no_regions(text: str) -> None:
    with pytest.raises(CallerError):
        check_region(text)


@pytest.mark.parametrize("layout", list(LedgerLayout))
async def test_no_ledger_is_seen_in_it(store: MetadataStore, root: str, layout: LedgerLayout) -> None:
    ledgers = LedgerStore(store, f"{root}/of-{layout.name}")
    await ledgers.format(layout)
    await TopologyStore(store, ledgers.root).announce("10.0.0.1:3181", "/eu/r1")
    assert [ledger_id async for ledger_id in ledgers.ids()] == []
