"""Audits: a ledger is an orphan only where nothing at all can need it; what is missing and shared is told."""

from __future__ import annotations

import pytest
from helpers.logs import written

from dlspark.core.administration.audit import (
    UnnamedLedgerState,
    audit_ledgers,
    cluster_space,
    delete_ledgers,
    log_space,
)
from dlspark.core.administration.references import Use
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.sinks import SinkStore, StagedLedger
from metadata.foundation.errors import CallerError
from metadata.store import ANY_VERSION


async def _ledger(namespace, **values):
    """A ledger that nothing names, closed, of one entry."""
    writer = await namespace.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2, **values)
    await writer.add(b"four")
    await writer.close()
    return writer.ledger_id


async def _ids(namespace):
    return {ledger_id async for ledger_id in namespace.services.ledger_store.ids()}


async def _audit(namespace, **values):
    return await audit_ledgers([namespace.services], **{"min_age_ms": 0, **values})


async def test_a_cluster_in_which_everything_has_its_place_is_clean(memory_cluster, namespace):
    await written(namespace, "log", [[b"a"], [b"b"]])
    found = await _audit(namespace)
    assert found.clean
    assert (found.ledgers, found.uses[Use.SEGMENT.value], found.unnamed) == (2, 2, ())


async def test_a_ledger_that_nothing_names_is_an_orphan_and_may_be_deleted(memory_cluster, namespace):
    await written(namespace, "log", [[b"a"]])
    orphan = await _ledger(namespace)
    found = await _audit(namespace)
    assert found.orphans == [orphan]
    assert not found.clean
    before = await _ids(namespace)
    (would,) = await delete_ledgers([namespace.services], [orphan], min_age_ms=0, dry_run=True)
    assert (would.verdict, would.deleted, await _ids(namespace)) == (UnnamedLedgerState.ORPHAN, True, before)
    (done,) = await delete_ledgers([namespace.services], [orphan], min_age_ms=0)
    assert done.deleted
    assert await _ids(namespace) == before - {orphan}
    (again,) = await delete_ledgers([namespace.services], [orphan], min_age_ms=0)
    assert (again.verdict, again.deleted) == (UnnamedLedgerState.GONE, False)


async def test_what_may_be_about_to_be_named_is_young_and_no_orphan(memory_cluster, namespace):
    young = await _ledger(namespace)
    found = await _audit(namespace, min_age_ms=3_600_000)
    assert [(one.ledger_id, one.verdict) for one in found.unnamed] == [(young, UnnamedLedgerState.YOUNG)]
    assert found.orphans == []
    (left,) = await delete_ledgers([namespace.services], [young])
    assert (left.verdict, left.deleted) == (UnnamedLedgerState.YOUNG, False)
    (forced,) = await delete_ledgers([namespace.services], [young], force=True)
    assert forced.deleted
    assert young not in await _ids(namespace)


async def test_what_another_application_marked_is_foreign(memory_cluster, namespace):
    foreign = await _ledger(namespace, custom={"application": b"pulsar"})
    found = await _audit(namespace)
    assert [(one.ledger_id, one.verdict) for one in found.unnamed] == [(foreign, UnnamedLedgerState.FOREIGN)]


@pytest.mark.parametrize("place", ["allocation", "pool", "sink", "note", "another namespace", "another partition"])
async def test_a_ledger_that_anything_names_is_in_use_even_by_force(memory_cluster, namespace, place):
    ledger = await _ledger(namespace)
    name = b"%d" % ledger
    store = memory_cluster.operator
    await namespace.create_log("log")
    paths = namespace.logs_store.paths("log")
    if place == "allocation":
        await store.put(paths.allocation, name, ANY_VERSION)
    elif place == "pool":
        await store.create("/dl/.pools/deep/host/A0000000007", name, make_parents=True)
    elif place == "sink":
        sinks = SinkStore(store, "/dl")
        await sinks.ensure("query")
        await sinks.list_ledger("query", StagedLedger(3, "a", ledger))
    elif place == "note":
        await store.create(f"{paths.partition}/deletedLedgers/{ledger}", make_parents=True)
    elif place == "another namespace":
        await NamespaceStore(store, "/far/away").bind(Binding.for_cluster("memory:2181"))
        await store.create("/far/away/log/<default>/maxtxid", make_parents=True)
        await store.create("/far/away/log/<default>/ledgers/inprogress_" + "0" * 17 + "1", b"5;%d;1;1;0;0;-1" % ledger,
                           make_parents=True)  # fmt: skip
    else:
        await store.create("/dl/log/<other>/maxtxid", make_parents=True)
        await store.create("/dl/log/<other>/allocation", name)
        await store.create("/dl/log/<other>/ledgers")
    assert (await _audit(namespace)).unnamed == ()
    (left,) = await delete_ledgers([namespace.services], [ledger], min_age_ms=0, force=True)
    assert (left.verdict, left.deleted) == (UnnamedLedgerState.IN_USE, False)
    assert ledger in await _ids(namespace)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/dl/log/<default>/ledgers/inprogress_000000000000000001", b"not metadata"),
        ("/dl/.allocation_pool/p/A0000000000", b"garbage"),
        ("/dl/.sinks/s/attempts/of-another-kind", b""),
    ],
)
async def test_nothing_is_an_orphan_while_something_cannot_be_read(memory_cluster, namespace, path, data):
    await namespace.create_log("log")
    ledger = await _ledger(namespace)
    await memory_cluster.operator.create(path, data, make_parents=True)
    found = await _audit(namespace)
    assert [one.path for one in found.unreadable] == [path]
    assert [(one.ledger_id, one.verdict) for one in found.unnamed] == [(ledger, UnnamedLedgerState.UNDECIDED)]
    assert not found.clean
    (left,) = await delete_ledgers([namespace.services], [ledger], min_age_ms=0, force=True)
    assert (left.verdict, left.deleted) == (UnnamedLedgerState.UNDECIDED, False)


async def test_a_ledger_that_moves_on_under_the_audit_is_found(memory_cluster, namespace):
    """It is handed over from its allocator to a segment that the walk has passed already, then noted likewise."""
    ledger = await _ledger(namespace)
    await namespace.create_log("a")
    await namespace.create_log("z")
    a, z = namespace.logs_store.paths("a"), namespace.logs_store.paths("z")
    segment = f"{a.ledgers}/inprogress_{1:018d}"
    note = f"{a.partition}/deletedLedgers/{ledger}"
    await memory_cluster.operator.put(z.allocation, b"%d" % ledger, ANY_VERSION)
    moves = {z.allocation}
    original = namespace.store.get

    async def get(path, watch=None):
        if path in moves:
            moves.remove(path)
            await memory_cluster.operator.put(z.allocation, b"", ANY_VERSION)
            await memory_cluster.operator.create(segment, b"5;%d;1;1;0;0;-1" % ledger)
        return await original(path, watch)

    namespace.store.get = get
    found = await _audit(namespace)
    assert not moves
    assert found.unnamed == ()
    await memory_cluster.operator.delete(segment)
    await memory_cluster.operator.create(note, make_parents=True)
    assert (await _audit(namespace)).unnamed == ()


async def test_a_segment_without_its_ledger_is_missing(memory_cluster, namespace):
    await written(namespace, "log", [[b"a"], [b"b"]])
    first = (await namespace.logs_store.segments("log"))[0]
    await namespace.ledgers.delete(first.ledger_id)
    found = await _audit(namespace)
    assert [(one.ledger_id, one.in_progress) for one in found.missing] == [(first.ledger_id, False)]
    assert not found.clean


async def test_a_ledger_in_two_logs_is_shared(memory_cluster, namespace):
    await written(namespace, "one", [[b"a"]])
    await namespace.create_log("two")
    (segment,) = await namespace.logs_store.segments("one")
    path = namespace.logs_store.paths("two").segment(segment)
    await memory_cluster.operator.create(path, segment.encode())
    found = await _audit(namespace)
    assert [ledger for ledger, _ in found.shared] == [segment.ledger_id]
    assert path in found.shared[0][1]


async def test_namespaces_of_two_clusters_are_not_audited_together(memory_cluster, namespace):
    other = await memory_cluster.namespace()
    elsewhere = other.services.ledger_store
    elsewhere._root = "/other/ledgers"
    with pytest.raises(CallerError, match="2 clusters"):
        await audit_ledgers([namespace.services, other.services])


async def test_space_is_counted_by_log_by_group_and_for_the_cluster(memory_cluster, namespace):
    await written(namespace, "team-a", [[b"x" * 100], [b"y" * 100]])
    await written(namespace, "team-b", [[b"z" * 100]])
    await _ledger(namespace)
    by_log = await log_space(namespace.services, ["team-a", "team-b", "absent"], lambda name: name)
    assert [(name, one.ledgers) for name, one in by_log.items()] == [("team-a", 2), ("team-b", 1)]
    assert by_log["team-a"].bytes == 2 * by_log["team-b"].bytes > 200
    assert by_log["team-a"].stored_bytes == 3 * by_log["team-a"].bytes
    (together,) = (await log_space(namespace.services, ["team-a", "team-b"], lambda name: name[:4])).values()
    whole = await cluster_space(namespace.services)
    assert (together.ledgers, whole.ledgers) == (3, 4)
    assert whole.bytes == together.bytes + 4


async def test_the_space_of_a_segment_in_progress_is_what_is_confirmed(memory_cluster, namespace):
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        writer.write(1, b"x" * 100)
        await writer.commit()
        space = await log_space(namespace.services, ["log"], lambda name: name)
        assert space["log"].bytes > 100
        assert space["log"].unknown == 0
        writer.write(2, b"still mine")
        await writer.flush()
