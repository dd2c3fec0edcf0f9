"""What a node may have lost it calls unknown, by ledger, until each is proven whole or not needed here (I11, D3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.bookie.harness import BookieCluster, entry

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CorruptDataError
from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.tools.cluster import Cluster as Metadata
from storage_node.bookie.tools.repair import judge_limbo, mark_missing
from storage_node.protocol.schema import Status


def first_log(cluster: BookieCluster) -> tuple[Path, Path]:
    log = cluster.ledger_files(".log")[0]
    return log, log.with_suffix(".idx")


async def with_lost_log(cluster: BookieCluster) -> None:
    """Ledgers 5 and 6 were there when the first log was written, 7 came later; that log and its index are lost."""
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(4):
        assert await client.add(entry(5, number)) == Status.EOK
    assert await client.add(entry(6, 0)) == Status.EOK
    await cluster.stop(bookie)
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(4, 6):
        assert await client.add(entry(5, number)) == Status.EOK
    for number in range(3):
        assert await client.add(entry(7, number)) == Status.EOK
    await cluster.stop(bookie)
    for path in first_log(cluster):
        path.unlink()


async def test_only_ledgers_that_may_have_lost_something_are_in_limbo_and_stay_there(cluster: BookieCluster) -> None:
    await with_lost_log(cluster)
    for _ in range(3):
        bookie = await cluster.start()
        client = await cluster.connect(bookie)
        assert bookie.storage.contents.limbo == {5, 6}
        assert (await client.read(5, 1)).status == Status.EUNKNOWNLEDGERSTATE
        assert (await client.fence(6)).status == Status.EUNKNOWNLEDGERSTATE
        assert (await client.read(5, 5)).status == Status.EOK
        assert (await client.read(7, 2)).status == Status.EOK
        assert (await client.read(7, 9)).status == Status.ENOENTRY, "it came after the loss"
        assert (await client.read(8, 0)).status == Status.ENOLEDGER, "it never was here"
        await client.add(entry(9, 0))
        assert (await client.read(9, 1)).status == Status.ENOENTRY
        await cluster.kill(bookie)


async def test_a_deleted_ledger_leaves_limbo_and_one_of_its_name_begins_anew(cluster: BookieCluster) -> None:
    await with_lost_log(cluster)
    bookie = await cluster.start()
    contents = bookie.storage.contents
    assert contents.delete(5, 0)
    assert contents.limbo == {6}
    await cluster.stop(bookie)
    bookie = await cluster.start()
    assert bookie.storage.contents.limbo == {6}
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0), recovery=True) == Status.EOK
    assert (await client.read(5, 3)).status == Status.ENOENTRY


async def put(ledgers: LedgerStore, ledger_id: int, last: int | None, *bookies: str) -> None:
    closed = {} if last is None else {"state": LedgerState.CLOSED, "last_entry": last, "length": 1}
    await ledgers.create(
        ledger_id,
        LedgerMetadata(
            ensemble_size=len(bookies),
            write_quorum=2,
            ack_quorum=2,
            ensembles=(Ensemble(0, bookies),),
            **closed,  # type: ignore[arg-type]
        ),
    )


async def test_a_ledger_leaves_limbo_when_it_is_whole_elsewhere_or_deleted_and_not_before(
    cluster: BookieCluster,
) -> None:
    await with_lost_log(cluster)
    store = MemoryStore(cluster.tree)
    ledgers, metadata, settings = LedgerStore(store), Metadata(store, "/ledgers"), cluster.settings()
    bookie = await cluster.start()
    await cluster.stop(bookie)
    await put(ledgers, 5, 5, "a", "b")
    await put(ledgers, 6, None, "a", "b")
    verdicts = await judge_limbo(settings, metadata, clear=True)
    assert [(one.ledger_id, one.state, one.missing) for one in verdicts] == [(5, "missing", 4), (6, "open", 0)]
    assert await mark_missing(metadata, "a", verdicts, lambda: 9) == 1
    assert [ledger_id async for ledger_id in ReplicationStore(store).marked()] == [5]
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert (await client.read(5, 1)).status == Status.EUNKNOWNLEDGERSTATE
    for number in range(4):
        assert await client.add(entry(5, number), recovery=True) == Status.EOK
    await cluster.stop(bookie)
    await ledgers.delete(6)
    assert [one.state for one in await judge_limbo(settings, metadata, clear=False)] == ["whole", "deleted"]
    assert len(await judge_limbo(settings, metadata, clear=True)) == 2, "looking changed nothing"
    assert await judge_limbo(settings, metadata, clear=True) == []
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert not bookie.storage.lossy, "the same loss is not found anew"
    assert (await client.read(5, 3)).status == Status.EOK
    assert (await client.read(5, 6)).status == Status.ENOENTRY
    await cluster.stop(bookie)
    await store.close()


async def test_what_was_replicated_elsewhere_needs_no_answer_here(cluster: BookieCluster) -> None:
    await with_lost_log(cluster)
    bookie = await cluster.start()
    await cluster.kill(bookie)
    store = MemoryStore(cluster.tree)
    ledgers, metadata = LedgerStore(store), Metadata(store, "/ledgers")
    await put(ledgers, 5, 5, "b", "c")
    await put(ledgers, 6, 0, "a", "c", "b")
    verdicts = await judge_limbo(cluster.settings(), metadata, clear=True)
    assert [(one.ledger_id, one.state) for one in verdicts] == [(5, "elsewhere"), (6, "missing")]
    bookie = await cluster.start()
    assert bookie.storage.contents.limbo == {6}
    await store.close()


@pytest.mark.parametrize("order", [("ledgers", "other"), ("other", "ledgers")])
async def test_a_directory_without_a_checkpoint_stops_clearing_and_the_error_says_what_was_done(
    cluster: BookieCluster, order: tuple[str, str]
) -> None:
    await with_lost_log(cluster)
    bookie = await cluster.start()
    await cluster.stop(bookie)
    (cluster.tmp_path / "a" / "other" / "current").mkdir(parents=True)
    store = MemoryStore(cluster.tree)
    ledgers, metadata = LedgerStore(store), Metadata(store, "/ledgers")
    await put(ledgers, 5, 5, "b", "c")
    await put(ledgers, 6, 0, "b", "c")
    settings = cluster.settings(ledger_directories=tuple(str(cluster.tmp_path / "a" / name) for name in order))
    with pytest.raises(CorruptDataError) as stopped:
        await judge_limbo(settings, metadata, clear=True)
    assert stopped.value.path == str(cluster.tmp_path / "a" / "other" / "current" / "checkpoint")
    left = await judge_limbo(cluster.settings(), metadata, clear=False)
    if order[0] == "ledgers":
        assert "the ledgers have left limbo" in str(stopped.value)
        assert str(cluster.tmp_path / "a" / "ledgers") in str(stopped.value), "the copy that was written"
        assert left == []
    else:
        assert "no directory was changed, and no ledger has left limbo" in str(stopped.value)
        assert "then clear limbo again" in str(stopped.value)
        assert [one.ledger_id for one in left] == [5, 6]
    await store.close()
