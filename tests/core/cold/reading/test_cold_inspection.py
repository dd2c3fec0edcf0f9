"""Inspection and pictures of logs whose past lies in cold files."""

from __future__ import annotations

from helpers.logs import written

from dlspark.core.administration.finding_kinds import FindingKind
from dlspark.core.administration.inspection import check_ends, inspect_log

SEGMENTS = [[f"{part}-{number}".encode() for number in range(5)] for part in range(4)]


async def test_what_has_left_for_files_is_no_fault(namespace, mover):
    log = await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 1)
    await mover.copy("flights", 2, 2)
    second, third = (await log.segments())[1:3]
    # As Java's retention does it: the ledger first.
    await namespace.ledgers.delete(second.ledger_id)
    found = await inspect_log(namespace.services, "flights")
    assert found.faults == []
    assert await check_ends(namespace.services, found.segments, log.settings) == []
    await namespace.ledgers.delete(third.ledger_id)
    found = await inspect_log(namespace.services, "flights")
    assert [(one.kind, one.segment.lssn) for one in found.faults] == [(FindingKind.NO_LEDGER, 3)]


async def test_readers_go_on_where_java_has_deleted_the_ledger_and_the_segment_is_still_listed(namespace, mover):
    log = await written(namespace, "flights", SEGMENTS)
    await mover.copy("flights", 1, 1)
    first = (await log.segments())[0]
    await namespace.ledgers.delete(first.ledger_id)
    async with await log.open_reader() as reader:
        assert [(await reader.read_next()).payload for _ in range(20)] == [one for part in SEGMENTS for one in part]
    assert (await log.first_record()).payload == b"0-0"


async def test_a_picture_by_bytes_has_the_cold_ones(namespace, mover):
    log = await written(namespace, "flights", SEGMENTS)
    before = (await log.picture("bytes")).sizes
    await mover.move("flights", 1, 2)
    assert (await log.picture("bytes")).sizes == before
