"""`Durability`: what is on the nodes' disks for certain, told by what was synced."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from simulation.checkers.durability import Durability
from simulation.environment.disk import SimulatedDisk
from simulation.environment.loop import SimulatedLoop
from storage_node.bookie.disk.records import BLOCK, ENTRY, LEDGER, header, ledger_body
from storage_node.bookie.journal.files import BATCH_HEADER_BYTES, BatchHeader
from storage_node.bookie.journal.replay import JournalMark
from storage_node.bookie.store import checkpoints
from storage_node.protocol.digests import ENTRY_HEADER, crc32

JOURNAL = "/journal1/current/journal-0000000000000001.log"
CHECKPOINT = f"/ledgers1/{checkpoints.CHECKPOINT_FILE}.new"
LOG = "/ledgers1/0000000000000001.log"


class Broken(Exception):
    """What the media fail with."""


def fail(message: str) -> None:
    raise Broken(message)


def media_of(carried: list[tuple[int, ...]] | None = None) -> Durability:
    return Durability(fail, lambda *told: None if carried is None else carried.append(told))


class AlwaysKept(Random):
    """Every write that was not synced is on the medium after a power cut."""

    def random(self) -> float:
        return 0.0


def node_of(loop: SimulatedLoop, *, damaged: bool = False) -> Any:
    disk = SimulatedDisk(loop, "b0", Random(1))
    disk.make_directory("/ledgers1")
    return SimpleNamespace(name="b0", disk=disk, damaged=damaged)


def batch(
    sequence: int, durable_through: int, *, kind: int = ENTRY, body: bytes = ENTRY_HEADER.pack(7, 0, -1, 0)
) -> tuple[int, bytes]:
    """A batch with one record, which concerns ledger 7 and an entry of the batch's number."""
    record = header(kind, 7, sequence, body) + body
    offset = BLOCK * sequence
    start = BatchHeader(
        offset, 1, sequence, durable_through, BLOCK, BATCH_HEADER_BYTES, len(record), crc32(record, 0)
    ).encode()
    return offset, (start.ljust(BATCH_HEADER_BYTES, b"\0") + record).ljust(BLOCK, b"\0")


def test_a_batch_counts_once_every_batch_before_it_is_synced() -> None:
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    media.synced(node, JOURNAL, [batch(5, 3)])
    assert not media.nodes["b0"].durable
    media.synced(node, JOURNAL, [batch(4, 3)])
    assert list(media.nodes["b0"].durable) == [(7, 4), (7, 5)]
    assert media.holders[7, 5] == 1
    loop.finish()


def test_who_checks_lacs_is_told_of_each_entry_that_counts() -> None:
    loop = SimulatedLoop(Random(1))
    carried: list[tuple[int, ...]] = []
    media_of(carried).synced(node_of(loop), JOURNAL, [batch(4, 3, body=ENTRY_HEADER.pack(7, 4, 2, 0))])
    assert carried == [(7, 4, 2)]
    loop.finish()


def test_so_does_a_fence() -> None:
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    media.synced(node, JOURNAL, [batch(5, 3, kind=LEDGER, body=ledger_body(b"key", True))])
    assert not media.nodes["b0"].fenced
    media.synced(node, JOURNAL, [batch(4, 3)])
    assert media.nodes["b0"].fenced == {7}
    loop.finish()


@pytest.mark.parametrize("before", [True, False])
def test_a_fence_that_outlives_a_power_cut_without_a_sync_counts_as_replay_finds_it(before: bool) -> None:
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    node.disk.synced = lambda path, written: media.synced(node, path, written)
    node.disk.survived = lambda path, written: media.survived(node, path, written)
    node.disk.make_directory("/journal1/current")
    file = node.disk.open(JOURNAL, create=True)
    node.disk.sync_directory("/journal1/current")
    if before:
        offset, data = batch(4, 3)
        file.write_at(offset, [data])
        file.sync_data()
    offset, data = batch(5, 3, kind=LEDGER, body=ledger_body(b"key", True))
    node.disk.rng = AlwaysKept()
    file.write_at(offset, [data])
    node.disk.cut(power=True)
    assert media.nodes["b0"].fenced == ({7} if before else set())
    loop.finish()


def test_a_batch_that_waits_for_another_one_does_not_outlive_the_run() -> None:
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    media.synced(node, JOURNAL, [batch(5, 3)])
    media.node_starts(node)
    media.synced(node, JOURNAL, [batch(4, 3)])
    assert list(media.nodes["b0"].durable) == [(7, 4)]
    loop.finish()


def test_a_batch_must_not_claim_what_is_not_durable() -> None:
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    media.synced(node, JOURNAL, [batch(4, 3)])
    with pytest.raises(Broken, match="claims that those up to 5 are durable, and batch 5 is not"):
        media.synced(node, JOURNAL, [batch(6, 5)])
    loop.finish()


def named(length: int) -> list[tuple[int, bytes]]:
    """A checkpoint that names so much of log 1."""
    return [
        (0, checkpoints.encode(checkpoints.Checkpoint(1, (JournalMark(1, 0, 0),), 2, {1: length}, False, False), []))
    ]


@pytest.mark.parametrize("missing", ["bytes", "name", "sync", "nothing"])
def test_a_checkpoint_must_not_name_what_a_power_cut_would_take(missing: str) -> None:
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    file = node.disk.open(LOG, create=True)
    file.write_at(0, [bytes(BLOCK)])
    if missing != "sync":
        file.sync_data()
    if missing != "name":
        node.disk.sync_directory("/ledgers1")
    file.write_at(BLOCK, [bytes(BLOCK)])  # what is written behind it meanwhile does not matter
    if missing == "nothing":
        media.synced(node, CHECKPOINT, named(BLOCK))
    else:
        with pytest.raises(Broken, match="would not all be there after a power cut"):
            media.synced(node, CHECKPOINT, named(2 * BLOCK if missing == "bytes" else BLOCK))
    loop.finish()


def test_a_damaged_node_may_name_what_it_has_lost() -> None:
    loop = SimulatedLoop(Random(1))
    media = media_of()
    media.synced(node_of(loop, damaged=True), CHECKPOINT, named(BLOCK))
    loop.finish()


def test_a_batch_of_a_killed_process_begins_no_count_when_its_file_is_used_again() -> None:
    """Its number was found by replay; the file's next batches go on behind it, and their sync takes it along."""
    loop = SimulatedLoop(Random(1))
    media, node = media_of(), node_of(loop)
    node.disk.synced = lambda path, written: media.synced(node, path, written)
    node.disk.make_directory("/journal1/current")
    file = node.disk.open(JOURNAL, create=True)
    for written in (batch(12, 10), batch(11, 10)):
        file.write_at(written[0], [written[1]])
    file.sync_data()
    offset, data = batch(13, 11)
    file.write_at(offset, [data])
    node.disk.cut(power=False)
    media.node_starts(node)
    file.write_at(0, [b"header"])
    file.sync_data()
    offset, data = batch(14, 13)
    file.write_at(offset, [data])
    file.sync_data()
    assert list(media.nodes["b0"].durable) == [(7, 11), (7, 12), (7, 14)]
    loop.finish()
