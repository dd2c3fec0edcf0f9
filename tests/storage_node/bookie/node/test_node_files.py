"""The node's files are those of docs/reference/node-files.md: what it writes, byte by byte, and what it starts from.

One example runs through the page: a new node gets two entries, an explicit LAC and a fence, and is killed, or stopped.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.bookie.harness import DIGEST, MIB, BookieCluster, WireClient, entry
from helpers.paths import DOCS
from helpers.reference_vectors import vectors

from metadata.bookkeeper.bookies import BookieRegistry, Cookie
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.disk import records as r
from storage_node.bookie.disk.records import BLOCK
from storage_node.bookie.journal.files import (
    BatchHeader,
    JournalOwner,
    file_header,
    file_name,
    node_tag,
    parse_batch_header,
    parse_file_header,
)
from storage_node.bookie.journal.places import LogPlace
from storage_node.bookie.journal.replay import JournalMark
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.checkpoints import Checkpoint
from storage_node.bookie.store.contents import Ledger
from storage_node.bookie.store.index import NewPlaces, parse_sidecar
from storage_node.bookie.store.log_files import log_name, sidecar_name
from storage_node.edge import SystemClock
from storage_node.protocol.schema import Status
from storage_node.transport.tcp import TcpNetwork

PAGE = "node-files.md"
VECTORS = vectors(PAGE)
NODE = "bookie-1:3181"
INSTANCE = "00000000-0000-4000-8000-000000000001"
TAG = node_tag(NODE, INSTANCE)
JOURNAL, LEDGERS = Path("journal/current"), Path("ledgers/current")
BATCHES = {
    1: ("record LEDGER of 7", "record ENTRY 7 0"),
    2: ("record ENTRY 7 1",),
    3: ("record LAC of 7",),
    4: ("record LEDGER of 9",),
}
"""What each batch of the example's journal holds."""
LOG = ("record LOG", *(name for names in BATCHES.values() for name in names))


class FixedClock(SystemClock):
    def now_ms(self) -> int:
        return 1_767_225_600_000


@pytest.fixture
async def example(cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BookieCluster]:
    """A cluster with a name of its own; nodes' directories are relative, so that cookies are the same everywhere."""
    monkeypatch.chdir(cluster.tmp_path)
    store = MemoryStore(cluster.tree)
    await store.put("/ledgers/INSTANCEID", INSTANCE.encode(), -1)
    yield cluster
    await cluster.close()
    await store.close()


async def start(cluster: BookieCluster, **more: object) -> Bookie:
    """The example's node, in the current directory."""
    settings = cluster.settings(
        bookie_id=NODE,
        journal_directories=("journal",),
        ledger_directories=("ledgers",),
        persist_bookie_status_enabled=True,
        **more,
    )
    store = MemoryStore(cluster.tree)
    bookie = Bookie(settings, store, network=TcpNetwork(), clock=FixedClock())
    await bookie.start()
    cluster.running.append((bookie, store))
    return bookie


async def send_requests(client: WireClient) -> None:
    """Those of the example, one after the other."""
    assert await client.add(entry(7, 0, b"first")) == Status.EOK
    assert await client.add(entry(7, 1, b"second")) == Status.EOK
    assert await client.write_lac(7, 1) == Status.EOK
    assert (await client.fence(9)).status == Status.ENOENTRY


async def check_contents(client: WireClient) -> None:
    """The node has what the example's requests brought."""
    for number, payload in enumerate((b"first", b"second")):
        assert bytes((await client.read(7, number)).body or b"") == entry(7, number, payload)
    lac = await client.read_lac(7)
    assert bytes(lac.lac_body or b"") == DIGEST.package_lac(7, 1)
    assert await client.add(entry(9, 0)) == Status.EFENCED
    assert await client.add(entry(7, 2, b"third"), key=b"other") == Status.EUA


def records(*names: str) -> bytes:
    """Records as they lie behind each other: each but the last with the gap behind it."""
    return b"".join(VECTORS[name].ljust(r.aligned(len(VECTORS[name])), b"\0") for name in names)


def journal_file() -> bytes:
    blocks = [VECTORS["journal header"]]
    blocks += [VECTORS[f"journal batch {n}"].ljust(64, b"\0") + records(*held) for n, held in BATCHES.items()]
    return b"".join(block.ljust(BLOCK, b"\0") for block in blocks).ljust(MIB, b"\0")


def put(files: dict[Path, bytes]) -> None:
    """A node's directories as another program could have made them, with the cookies, which are checked everywhere."""
    for path, data in {
        JOURNAL / "VERSION": VECTORS["VERSION"],
        LEDGERS / "VERSION": VECTORS["VERSION"],
        **files,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


async def register(cluster: BookieCluster) -> None:
    """The cookie's znode."""
    store = MemoryStore(cluster.tree)
    await BookieRegistry(store, "/ledgers").write_cookie(Cookie.decode(VECTORS["VERSION"]))
    await store.close()


# ------------------------------------------------------------------------------------------- what is written


async def test_a_new_node_writes_what_the_page_says_and_a_killed_one_leaves_its_journal(example: BookieCluster) -> None:
    bookie = await start(example)
    assert (LEDGERS / "checkpoint").read_bytes() == VECTORS["checkpoint of a new node"]
    assert (LEDGERS / "VERSION").read_bytes() == (JOURNAL / "VERSION").read_bytes() == VECTORS["VERSION"]
    assert (LEDGERS / "BOOKIE_STATUS").read_bytes() == VECTORS["BOOKIE_STATUS"]
    token = example.running[0][1].session_token
    assert (JOURNAL / "SESSION").read_bytes() == token.hex().encode() + b"\n"
    await send_requests(await example.connect(bookie))
    await example.kill(bookie)
    written = (JOURNAL / file_name(1)).read_bytes()
    assert written[:BLOCK] == VECTORS["journal header"].ljust(BLOCK, b"\0")
    for number, held in BATCHES.items():
        batch = VECTORS[f"journal batch {number}"].ljust(64, b"\0") + records(*held)
        assert written[number * BLOCK :].startswith(batch), f"batch {number}"
    assert not written[5 * BLOCK :].strip(b"\0")
    assert sorted(os.listdir(LEDGERS)) == ["BOOKIE_STATUS", "VERSION", "checkpoint"]
    assert sorted(os.listdir(JOURNAL)) == ["SESSION", "VERSION", file_name(1)]


async def test_a_stopped_node_leaves_log_sidecar_and_checkpoint_as_the_page_says(example: BookieCluster) -> None:
    bookie = await start(example)
    await send_requests(await example.connect(bookie))
    await example.stop(bookie)
    log = (LEDGERS / log_name(1)).read_bytes()
    assert len(log) == BLOCK
    assert log.rstrip(b"\0") == (records(*LOG) + VECTORS["record PAD"]).rstrip(b"\0")
    assert (LEDGERS / sidecar_name(1)).read_bytes() == VECTORS["sidecar"]
    assert (LEDGERS / "checkpoint").read_bytes() == VECTORS["checkpoint of a clean stop"]
    assert not (JOURNAL / "SESSION").exists()


async def test_a_large_batch_is_written_in_place(example: BookieCluster) -> None:
    bookie = await start(example)
    client = await example.connect(bookie)
    assert await client.add(entry(7, 0, b"x" * 70_000)) == Status.EOK
    await example.kill(bookie)
    header = VECTORS["journal batch in place"]
    written = (JOURNAL / file_name(1)).read_bytes()
    assert written[BLOCK : 2 * BLOCK] == header.ljust(BLOCK, b"\0")
    parsed = parse_batch_header(header, 0, BLOCK, 1)
    assert parsed is not None
    assert (parsed.total, parsed.records_at, parsed.records_length) == (77_824, 4160, 70_144)
    held = list(r.scan(memoryview(written[BLOCK + parsed.records_at :][: parsed.records_length])))
    assert [record.kind for record in held if not isinstance(record, int)] == [r.LEDGER, r.ENTRY]


async def test_a_batch_that_is_written_once_leaves_its_place_and_is_found_by_it(example: BookieCluster) -> None:
    bookie = await start(example, journal_write_once_from_bytes=65_536, journal_write_once_always=True)
    client = await example.connect(bookie)
    assert await client.add(entry(7, 0, b"first")) == Status.EOK
    await bookie.storage._disk.submit("entries", lambda: None)  # the log's name is durable
    assert await client.add(entry(7, 1, b"x" * 70_000)) == Status.EOK
    await example.kill(bookie)
    written, log = (JOURNAL / file_name(1)).read_bytes(), (LEDGERS / log_name(1)).read_bytes()
    batch = VECTORS["journal batch with a place"].ljust(64, b"\0") + VECTORS["record PLACE"]
    assert written[2 * BLOCK : 2 * BLOCK + len(batch)] == batch
    assert not written[3 * BLOCK :].strip(b"\0")
    place = LogPlace.parse(memoryview(VECTORS["record PLACE"]))
    assert place is not None
    assert (place.log_id, place.offset, place.length) == (1, 224, 70_080)
    named = memoryview(log)[place.offset : place.offset + place.length]
    assert r.crc32(named, 0) == place.records_sum
    client = await example.connect(await start(example))
    assert bytes((await client.read(7, 1)).body or b"") == entry(7, 1, b"x" * 70_000)


def test_a_sidecar_of_two_blocks_is_written_and_read() -> None:
    first, second = NewPlaces(), NewPlaces()
    first.put(5, 0, 1, 100)
    first.put(5, 2, 2, 100)
    second.put(5, 3, 257, 64)
    second.put(6, 8, 259, 1000)
    blocks = first.block(18, 0, 8192), second.block(18, 8192, 12288)
    assert b"".join(blocks) == VECTORS["sidecar of two blocks"]
    runs = [(5, 0, [1, 0, 2], [100, 0, 100]), (5, 3, [257], [64]), (6, 8, [259], [1000])]
    for length, known, used in ((8192, 1, len(blocks[0])), (12288, 3, len(VECTORS["sidecar of two blocks"]))):
        parsed = parse_sidecar(VECTORS["sidecar of two blocks"], 18, length)
        assert parsed is not None
        assert parsed[1] == used
        assert [(ledger, at, list(places), list(sizes)) for ledger, at, places, sizes in parsed[0]] == runs[:known]


def test_a_checkpoint_with_losses_is_written_and_read() -> None:
    ledger = Ledger(3, None, (10, 2))
    ledger.limbo, ledger.lac = True, 41
    taken = Checkpoint(
        counter=9,
        marks=(JournalMark(4, 8192, 1000), JournalMark(7, 4096, 3)),
        next_log_id=12,
        logs={11: 99_968},
        clean=False,
        lossy=False,
        fenced_gone={5: FixedClock().now_ms()},
        lost_logs=frozenset({10}),
    )
    assert checkpoints.encode(taken, [ledger.encode()]) == VECTORS["checkpoint with losses"]
    decoded = checkpoints.decode(VECTORS["checkpoint with losses"])
    assert decoded is not None
    assert decoded[0] == taken
    (found,) = decoded[1].values()
    state = (found.ledger_id, found.born, found.master_key, found.limbo, found.fenced, found.lac, found.explicit_lac)
    assert state == (3, (10, 2), None, True, False, 41, None)


# ------------------------------------------------------------------------------------------- what is read


async def test_a_node_starts_from_the_journal_of_the_page(example: BookieCluster) -> None:
    put({JOURNAL / file_name(1): journal_file(), LEDGERS / "checkpoint": VECTORS["checkpoint of a new node"]})
    await register(example)
    await check_contents(await example.connect(await start(example)))


async def test_a_node_starts_from_the_log_sidecar_and_checkpoint_of_the_page(example: BookieCluster) -> None:
    log = (records(*LOG) + VECTORS["record PAD"]).ljust(BLOCK, b"\xaa")
    put(
        {
            LEDGERS / log_name(1): log,
            LEDGERS / sidecar_name(1): VECTORS["sidecar"],
            LEDGERS / "checkpoint": VECTORS["checkpoint of a clean stop"],
        }
    )
    await register(example)
    await check_contents(await example.connect(await start(example)))


async def test_the_log_alone_gives_the_sidecar_again(example: BookieCluster) -> None:
    put({LEDGERS / log_name(1): (records(*LOG) + VECTORS["record PAD"]).ljust(BLOCK, b"\xaa")})
    put({LEDGERS / "checkpoint": VECTORS["checkpoint of a clean stop"]})
    await register(example)
    await check_contents(await example.connect(await start(example)))
    assert (LEDGERS / sidecar_name(1)).read_bytes() == VECTORS["sidecar"]


def test_headers_of_the_journal_are_read_as_the_page_says() -> None:
    assert parse_file_header(VECTORS["journal header"]) == (1, JournalOwner(TAG, 0, 1))
    assert file_header(1, JournalOwner(TAG, 0, 1)) == VECTORS["journal header"].ljust(BLOCK, b"\0")
    for number, held in BATCHES.items():
        length = len(records(*held))
        durable = max(number - 1, 0)
        expected = BatchHeader(BLOCK, 1, number, durable, BLOCK, 64, length, r.crc32(records(*held), 0))
        assert parse_batch_header(VECTORS[f"journal batch {number}"], 0, BLOCK, 1) == expected
        assert parse_batch_header(VECTORS[f"journal batch {number}"], 0, BLOCK, 2) is None, "an older generation"


def test_the_cookie_is_the_text_of_the_page() -> None:
    cookie = Cookie(bookie_id=NODE, journal_dirs=("journal",), ledger_dirs=("ledgers",), instance_id=INSTANCE)
    assert cookie.encode() == VECTORS["VERSION"]
    assert Cookie.decode(VECTORS["VERSION"]).matches(cookie)
    text = (DOCS / "reference" / PAGE).read_text()
    assert f"```text\n{VECTORS['VERSION'].decode()}```" in text


def test_every_vector_of_the_page_is_one_of_these_tests() -> None:
    source = Path(__file__).read_text()
    named = set(LOG) | {f"journal batch {number}" for number in BATCHES}
    assert {name for name in VECTORS if name not in named and f'VECTORS["{name}"]' not in source} == set()
