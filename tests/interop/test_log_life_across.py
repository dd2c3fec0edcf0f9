"""How long a log's segments live, between the Java core and ours: retention, purging, and ledgers made in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from helpers.interop.clusters import InteropCluster
from helpers.interop.log_sides import (
    FIRST_TXID,
    UNCACHED,
    WAYS,
    JavaLog,
    JavaSide,
    OurSide,
    Pair,
    Side,
    expected,
    our_log,
    pair_of,
)
from helpers.interop.retention import NAMESPACE, age_segments, ledger_exists, wait_until_purged, with_store

from dlspark.testing.java_process import JavaError, JavaTool
from metadata.store import ANY_VERSION, MetadataStore

POOL_SIZE = 3


def same_rest(pair: Pair, records: list[dict[str, object]]) -> None:
    assert pair.reader.segments() == pair.writer.segments()
    for side in (pair.reader, pair.writer):
        assert side.read(len(records)) == records
        assert side.facts()["first"] == records[0]
        assert side.count(str(records[0]["dlsn"])) == len(records)


def test_a_truncation_inside_an_entry_hides_its_first_records_from_us_and_nothing_of_it_from_java(
    plain_pair: Pair,
) -> None:
    """The positions that readers skip to are entries in Java, records here."""
    pair = plain_pair
    writer = pair.writer.open_writer()
    dlsns = writer.write_numbered(0, 30)
    writer.close()
    inside = next(index for index in range(15, 30) if not dlsns[index].endswith(":0"))
    entry = dlsns[inside].rpartition(":")[0] + ":0"
    pair.reader.truncate(dlsns[inside])
    assert pair.reader.segments() == pair.writer.segments()
    assert pair.ours.read(30 - inside) == expected(dlsns)[inside:]
    assert pair.javas.read(30 - dlsns.index(entry)) == expected(dlsns)[dlsns.index(entry) :]


def test_what_truncation_hides_is_there_for_whoever_ignores_it(
    java: JavaTool, uri: str, log_name: str, way: str
) -> None:
    with pair_of(java, uri, log_name, way, ignoreTruncationStatus="true") as pair:
        dlsns = pair.writer.write(0, 20) + pair.writer.write(20, 20)
        pair.writer.truncate(dlsns[30])
        for side in (pair.reader, pair.writer):
            assert side.read(40, dlsn=dlsns[0]) == expected(dlsns)


@pytest.mark.parametrize("only_truncated", [False, True], ids=["all that expired", "only what was truncated"])
def test_what_one_retains_no_longer_is_gone_for_both(
    java: JavaTool, ours: InteropCluster, zk: str, uri: str, log_name: str, way: str, only_truncated: bool
) -> None:
    with pair_of(java, uri, log_name, way) as pair:
        dlsns = [dlsn for first in (0, 10, 20, 30) for dlsn in pair.writer.write(first, 10)]
        pair.writer.truncate(dlsns[20])
        old = [segment["ledger"] for segment in pair.writer.segments()]
    age_segments(zk, log_name, count=3, hours=3)
    left = 3 if only_truncated else 4
    rule = {"logSegmentRetentionHours": 1, "explicitTruncationByApp": str(only_truncated).lower()}
    with pair_of(java, uri, log_name, way, **rule) as pair:
        writer = pair.reader.open_writer()  # so it is the other one that purges
        dlsns += writer.write_numbered(40, 10)
        wait_until_purged(pair.reader, list(range(left, 6)), java, ours, old[: left - 1])
        writer.close()
        same_rest(pair, expected(dlsns)[10 * (left - 1) :])
        assert all(ledger_exists(java, ours, ledger) for ledger in old[left - 1 :])


def test_what_one_purges_by_transaction_id_is_gone_for_both(
    java: JavaTool, ours: InteropCluster, plain_pair: Pair
) -> None:
    pair = plain_pair
    dlsns = [dlsn for first in (0, 10, 20) for dlsn in pair.writer.write(first, 10)]
    old = [segment["ledger"] for segment in pair.writer.segments()]
    pair.reader.purge(FIRST_TXID + 20)
    assert [ledger_exists(java, ours, ledger) for ledger in old] == [False, False, True]
    same_rest(pair, expected(dlsns)[20:])
    dlsns += pair.writer.write(30, 10)
    same_rest(pair, expected(dlsns)[20:])


def test_a_reader_goes_on_while_the_other_purges_behind_it(plain_pair: Pair) -> None:
    pair = plain_pair
    dlsns = [dlsn for first in (0, 10, 20) for dlsn in pair.writer.write(first, 10)]
    with pair.reader.following() as follower:
        assert follower.next(25) == expected(dlsns)[:25]
        pair.writer.purge(FIRST_TXID + 20)
        dlsns += pair.writer.write(30, 10)
        assert follower.next(15) == expected(dlsns)[25:]


# ---------------------------------------------------------------------- allocators


def test_a_ledger_that_one_left_allocated_is_deleted_by_the_other(
    java: JavaTool, ours: InteropCluster, zk: str, plain_pair: Pair, log_name: str
) -> None:
    """As a writer leaves it that dies between making a ledger and making it a segment."""
    pair = plain_pair
    dlsns = pair.writer.write(0, 10)
    left = java.call("ledger.create", zk=zk, root=ours.root, ensemble=3, write_quorum=3, ack_quorum=2)["ledger"]
    path = f"{NAMESPACE}/{log_name}/<default>/allocation"

    async def leave(store: MetadataStore) -> None:
        assert (await store.get(path))[0] == b""
        await store.put(path, str(left).encode(), ANY_VERSION)

    with_store(zk, leave)
    dlsns += pair.reader.write(10, 10) + pair.writer.write(20, 10)
    assert not ledger_exists(java, ours, left)
    assert left not in [segment["ledger"] for segment in pair.writer.segments()]
    same_rest(pair, expected(dlsns))


def pool_settings(pool: str) -> dict[str, object]:
    return {
        "enableLedgerAllocatorPool": "true",
        "ledgerAllocatorPoolName": pool,
        "ledgerAllocatorPoolCoreSize": POOL_SIZE,
    }


def ready(zk: str, pool: str) -> list[bytes]:
    """The ledgers that a pool names."""

    async def look(store: MetadataStore) -> list[bytes]:
        parent = f"{NAMESPACE}/.allocation_pool/{pool}"
        names, _ = await store.children(parent)
        return [bytes((await store.get(f"{parent}/{name}"))[0]) for name in sorted(names)]

    return with_store(zk, look)


@contextmanager
def side_of(java: JavaTool, uri: str, log: str, library: str, settings: dict[str, object]) -> Iterator[Side]:
    """The log in one library's hands alone, in a namespace that is closed in the end."""
    if library == "ours":
        with our_log(uri, log, **settings) as opened:
            yield OurSide(opened)
    else:
        javas = JavaLog(java, uri, log, **UNCACHED, **settings)
        try:
            yield JavaSide(javas)
        finally:
            javas.close_namespace()


@pytest.mark.parametrize("libraries", [("ours", "Java", "ours"), ("Java", "ours", "Java")], ids=WAYS)
def test_a_pool_of_ledgers_passes_from_one_to_the_other(
    java: JavaTool, ours: InteropCluster, zk: str, uri: str, log_name: str, libraries: tuple[str, ...]
) -> None:
    settings = pool_settings(log_name)
    used: list[int] = []
    dlsns: list[str] = []
    with our_log(uri, log_name) as log:
        for turn, library in enumerate(libraries):
            before = {int(name) for name in ready(zk, log_name) if name} if turn else set()
            with side_of(java, uri, log_name, library, settings) as side:
                for part in (0, 10, 20):
                    dlsns += side.write(30 * turn + part, 10)
            assert len(ready(zk, log_name)) == POOL_SIZE
            used += [segment.ledger_id for segment in log.segments()[3 * turn :]]
            assert before.isdisjoint(used), "what the former owner had ready is deleted, not used"
        assert len(set(used)) == 9
        assert OurSide(log).read(90) == expected(dlsns)
        assert JavaSide(JavaLog(java, uri, log_name, **UNCACHED)).read(90) == expected(dlsns)
        assert all(ledger_exists(java, ours, ledger) for ledger in used)


def test_a_pool_that_both_use_at_once_has_no_ledger_used_twice(
    java: JavaTool, uri: str, log_name: str, way: str
) -> None:
    """It belongs to one process, so they take each other's ledgers away; a start that fails for it is repeated."""
    with pair_of(java, uri, log_name, way, **pool_settings(log_name)) as pair:
        dlsns: list[str] = []
        for turn in range(8):
            side = pair.reader if turn % 2 else pair.writer
            dlsns += repeated(lambda side=side, turn=turn: side.write(10 * turn, 10))
        same_rest(pair, expected(dlsns))
        ledgers = [segment["ledger"] for segment in pair.reader.segments()]
        assert len(set(ledgers)) == len(ledgers) == 8


def repeated(write: Callable[[], list[str]], attempts: int = 20) -> list[str]:
    for _ in range(attempts - 1):
        try:
            return write()
        except JavaError:
            continue
    return write()
