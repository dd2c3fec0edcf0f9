"""Looking into ledgers: who has them, what is in them and in each copy, and recovery that cuts off no living writer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.logs import written

from dlspark.core.administration.ledger_entries import (
    copies_by_bookie,
    find_ledger,
    read_entries,
    read_lac,
    recover_ledger,
)
from dlspark.core.administration.references import Use
from dlspark.core.writing.ledger_allocators import list_pools
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import CallerError, NoNodeError
from metadata.store import ANY_VERSION


async def _ledger(namespace, segments):
    await written(namespace, "team/log", segments)
    return (await namespace.logs_store.segments("team/log"))[0].ledger_id


async def test_a_ledger_is_found_in_its_log_whatever_its_name(memory_cluster, namespace):
    ledger = await _ledger(namespace, [[b"a"], [b"b"]])
    (found,) = await find_ledger(namespace.services, ledger)
    assert (found.log, found.reference.use, found.reference.segment.lssn) == ("team/log", Use.SEGMENT, 1)
    await memory_cluster.operator.put(namespace.logs_store.paths("team/log").allocation, b"77", ANY_VERSION)
    (found,) = await find_ledger(namespace.services, 77)
    assert (found.log, found.reference.use) == ("team/log", Use.ALLOCATED)
    await memory_cluster.operator.create("/dl/.allocation_pool/host/A0000000000", b"78", make_parents=True)
    await memory_cluster.operator.create("/dl/.allocation_pool/host/A0000000001", b"", make_parents=True)
    (found,) = await find_ledger(namespace.services, 78)
    assert (found.log, found.reference.use) == (None, Use.ALLOCATED)
    assert await list_pools(namespace.services) == [("host", [78, None])]
    assert await find_ledger(namespace.services, 79) == []


async def test_entries_are_decoded_and_tell_their_lac(memory_cluster, namespace):
    ledger = await _ledger(namespace, [[b"a", b"b"]])
    entries = [one async for one in read_entries(namespace.services, ledger)]
    records = [record for one in entries for record in one.records if record.is_user]
    assert [record.payload for record in records] == [b"a", b"b"]
    carried = [one.last_add_confirmed for one in entries]
    assert carried[0] == -1
    assert carried == sorted(carried)
    assert all(lac < one.entry_id for lac, one in zip(carried, entries, strict=True))
    assert not any(one.corrupt for one in entries)
    assert await read_lac(namespace.services, ledger) == (
        (await namespace.services.ledger_store.read(ledger)).value,
        len(entries) - 1,
    )
    with pytest.raises(CallerError, match="ends at"):
        _ = [one async for one in read_entries(namespace.services, ledger, 0, 100)]
    with pytest.raises(NoNodeError):
        _ = [one async for one in read_entries(namespace.services, 12345)]


async def test_a_damaged_copy_is_told_apart_from_one_that_is_not_there(memory_cluster, namespace):
    ledger = await _ledger(namespace, [[b"a"]])
    metadata = (await namespace.services.ledger_store.read(ledger)).value
    damaged, without, fine = metadata.ensembles[0].bookies
    entries = memory_cluster.bookie(damaged).ledgers[ledger].entries
    entries[0] = entries[0][:-1] + bytes([entries[0][-1] ^ 1])
    del memory_cluster.bookie(without).ledgers[ledger].entries[0]
    copies = {one.bookie: one async for one in read_entries(namespace.services, ledger, 0, 0, every_copy=True)}
    assert [copies[damaged].corrupt, copies[without].corrupt, copies[fine].corrupt] == [True, False, False]
    assert copies[without].error is not None
    assert [record.payload for record in copies[fine].records] == [b"a"]
    (whole,) = [one async for one in read_entries(namespace.services, ledger, 0, 0)]
    assert whole.error is None


def test_entries_are_counted_by_storage_node():
    metadata = LedgerMetadata(ensemble_size=3, write_quorum=2, ack_quorum=2, ensembles=(Ensemble(0, ("a", "b", "c")),))
    assert copies_by_bookie(metadata, 2) == {"a": 2, "b": 2, "c": 2}
    assert copies_by_bookie(metadata, -1) == {"a": 0, "b": 0, "c": 0}
    # Entries 0: a b, 1: b c; from 2 on another ensemble, 2: d a, 3: a b.
    changed = metadata.with_ensemble(2, ("a", "b", "d"))
    assert copies_by_bookie(changed, 3) == {"a": 3, "b": 3, "c": 1, "d": 1}


async def test_recovery_waits_for_the_logs_lock_and_cuts_off_no_living_writer(memory_cluster, namespace):
    owner = await memory_cluster.namespace()
    writer = await (await owner.open_log("log", {"writerOutputBufferSize": 0})).open_writer("owner")
    await writer.write(1, b"a")
    ledger = (await namespace.logs_store.segments("log"))[0].ledger_id
    hasty = replace(namespace.settings, lock_timeout_s=0)
    with pytest.raises(OwnershipAcquireFailedError, match="owner"):
        await recover_ledger(namespace.services, ledger, hasty, force=True)
    await writer.write(2, b"b")
    await memory_cluster.crash(owner)
    last = await recover_ledger(namespace.services, ledger, namespace.settings)
    metadata = (await namespace.services.ledger_store.read(ledger)).value
    assert (metadata.is_closed, metadata.last_entry) == (True, last)
    assert await recover_ledger(namespace.services, ledger, namespace.settings) == last


async def test_a_ledger_of_nobody_is_recovered_only_by_force(memory_cluster, namespace):
    dead = await memory_cluster.namespace()
    writer = await dead.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.add(b"a")
    await memory_cluster.crash(dead)
    with pytest.raises(CallerError, match="no log of this namespace"):
        await recover_ledger(namespace.services, writer.ledger_id, namespace.settings)
    assert await recover_ledger(namespace.services, writer.ledger_id, namespace.settings, force=True) == 0
