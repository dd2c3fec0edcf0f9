"""What clients rely on (docs/reference/wire.md#bookie-promises), as far as the other files here do not test it.

adds, fences, reads, LACs, long polls                  test_bookie_requests.py, test_connections_v2.py and here
deferred sync, force, priorities, limits               test_connections_order.py
fenced and deleted ledgers, garbage collection         test_bookie_gc.py
read-only mode                                         test_bookie_faults.py and here
cookies                                                test_bookie_cookies.py
state that may be lost                                 test_bookie_recovery.py, test_bookie_limbo.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from helpers.bookie.harness import DIGEST, KEY, BookieCluster, WireClient, availability, entry
from helpers.bookie.wire_harness import HeldDisk
from helpers.reference_vectors import vectors
from helpers.waiting import until

from storage_node.bookie.node.bookie import Bookie
from storage_node.protocol.digests import master_key
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_bookie_info_request,
    encode_force_ledger_request,
    encode_list_entries_request,
    encode_read_lac_request,
    encode_read_request,
)
from storage_node.protocol.schema import RESPONSE, Status
from storage_node.protocol.values import ListEntriesResponse, ReadResponse, Response
from storage_node.protocol.wire import decode

WRONG = master_key(b"wrong")


async def handled(client: WireClient) -> None:
    """What was sent before on this connection was begun."""
    await client.ask(lambda txn: encode_list_entries_request(txn, 1 << 40))


# ------------------------------------------------------------------------------------------- ledgers and adds


async def test_a_ledger_begins_with_an_add_a_fence_or_an_explicit_lac_never_with_a_read(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.read(1, 0)
    await client.read(1, -1)
    await client.read_lac(1)
    await client.send_poll(1, -1, 1)
    await client.ask(lambda txn: encode_list_entries_request(txn, 1))
    await client.ask(lambda txn: encode_force_ledger_request(txn, 1))
    assert 1 not in bookie.storage.ledgers
    await client.add(entry(2, 0))
    await client.fence(3)
    await client.write_lac(4, 0)
    assert set(bookie.storage.ledgers) == {2, 3, 4}


@pytest.mark.parametrize("how", ["add", "fence", "explicit LAC"])
async def test_the_key_that_a_ledger_began_with_is_kept_over_a_crash(cluster: BookieCluster, how: str) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    if how == "add":
        await client.add(entry(5, 0))
    elif how == "fence":
        assert (await client.fence(5)).status == Status.ENOENTRY
    else:
        assert await client.write_lac(5, 0) == Status.EOK
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    assert await client.add(entry(5, 1), key=WRONG) == Status.EUA
    assert await client.write_lac(5, 1, key=WRONG) == Status.EUA
    assert (await client.fence(5, key=WRONG)).status == Status.EUA
    expected = Status.EFENCED if how == "fence" else Status.EOK
    assert await client.add(entry(5, 1)) == expected, "key and fence are one record"


async def test_conditions_of_an_add_are_checked_in_the_order_of_the_reference(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    await client.fence(5)
    assert await client.add(entry(5, 1), key=WRONG) == Status.EUA, "the key before the fence"
    bookie.read_only = True
    assert await client.add(entry(5, 1), key=WRONG) == Status.EREADONLY, "read-only before both"
    assert await client.add(entry(5, 1), recovery=True) == Status.EREADONLY, "recovery alone is no priority"
    assert await client.add(entry(5, 1), recovery=True, priority=100) == Status.EOK
    assert await client.add(entry(5, 1), priority=100) == Status.EFENCED


async def test_an_entry_can_be_read_before_it_is_durable_and_acknowledged(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    client = await cluster.connect(await cluster.start(disk=disk))
    disk.holds.add("journal")
    add = client.send_add(entry(5, 0))
    assert bytes((await client.read(5, 0)).body or b"") == entry(5, 0)
    assert not add.done()
    disk.release()
    assert (await add).status == Status.EOK


async def test_the_lac_never_goes_back(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 9, lac=8))
    await client.add(entry(5, 1, lac=0))
    await client.write_lac(5, 3)
    assert (await client.read(5, 1)).max_lac == 8
    assert bytes((await client.read(5, -1)).body or b"") == entry(5, 9, lac=8), "the highest id, not the latest"


async def test_the_response_of_an_add_names_the_ids_of_the_request_not_those_of_the_body(
    cluster: BookieCluster,
) -> None:
    client = await cluster.connect(await cluster.start())
    body = entry(8, 2)
    for ledger, number in ((0, 0), (5, -1), (-3, 7)):
        answer = await client.ask(
            lambda txn, ids=(ledger, number): b"".join((encode_add_request(txn, *ids, KEY, len(body))[0], body))
        )
        assert (answer.ledger_id, answer.entry_id, answer.status) == (ledger, number, Status.EOK)  # type: ignore[union-attr]
    assert (await client.read(8, 2)).status == Status.EOK


# ------------------------------------------------------------------------------------------- fences


async def test_every_fence_waits_for_the_same_record_and_none_after_a_restart(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    first, second = await cluster.connect(bookie), await cluster.connect(bookie)
    await first.add(entry(5, 0))
    disk.holds.add("journal")
    fences = [client.send_read(5, 0, key=KEY, fence=True) for client in (first, second)]
    await handled(first)
    await handled(second)
    assert await first.add(entry(5, 1)) == Status.EFENCED, "fenced in memory at once"
    assert [fence.done() for fence in fences] == [False, False]
    disk.release()
    assert {answer.status for answer in await asyncio.gather(*fences)} == {Status.EOK}
    await cluster.kill(bookie)
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    commits = bookie.storage.journal.commits
    assert (await client.fence(5, 0)).status == Status.EOK
    assert bookie.storage.journal.commits == commits, "known from replay: nothing to be written"


async def test_a_fence_wins_over_a_long_poll(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 0))
    answer = await asyncio.wait_for(
        client.send_read(5, -1, key=KEY, fence=True, previous_lac=50, timeout_ms=3_600_000), 60
    )
    assert isinstance(answer, ReadResponse)
    assert (answer.status, answer.max_lac, bytes(answer.body or b"")) == (Status.EOK, None, entry(5, 0))
    assert await client.add(entry(5, 1)) == Status.EFENCED


async def test_a_fence_of_a_negative_ledger_is_refused(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    assert (await client.fence(-1)).status == Status.EUA
    assert await client.write_lac(-1, 0) == Status.EBADREQ


# ------------------------------------------------------------------------------------------- LACs, read-only mode


async def test_the_two_parts_of_read_lac_are_sent_independently(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.fence(3)
    assert (await client.read_lac(3)).status == Status.ENOENTRY
    await client.add(entry(5, 0))
    answer = await client.read_lac(5)
    assert (answer.status, answer.lac_body, bytes(answer.last_entry_body or b"")) == (Status.EOK, None, entry(5, 0))
    await client.write_lac(6, 9)
    answer = await client.read_lac(6)
    assert (answer.status, answer.last_entry_body) == (Status.EOK, None)
    assert bytes(answer.lac_body or b"") == DIGEST.package_lac(6, 9)


async def test_the_latest_explicit_lac_is_kept_verbatim_over_a_crash(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.write_lac(5, 7)
    await client.write_lac(5, 3)
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    assert bytes((await client.read_lac(5)).lac_body or b"") == DIGEST.package_lac(5, 3)


async def test_a_read_only_node_serves_everything_but_adds_and_explicit_lacs(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    bookie.read_only = True
    assert await client.write_lac(5, 0) == Status.EREADONLY
    requests: list[Callable[[int], bytes]] = [
        lambda txn: encode_read_request(txn, 5, 0),
        lambda txn: encode_read_lac_request(txn, 5),
        lambda txn: encode_list_entries_request(txn, 5),
        lambda txn: encode_force_ledger_request(txn, 5),
        encode_bookie_info_request,
        lambda txn: encode_read_request(txn, 5, -1, master_key=KEY, fence=True),
    ]
    assert [(await client.ask(request)).status for request in requests] == [Status.EOK] * len(requests)
    bookie.read_only = False
    assert await client.add(entry(5, 1)) == Status.EFENCED


# ------------------------------------------------------------------------------------------- long polls


async def test_a_fenced_ledger_does_not_end_a_later_long_poll_early(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    await writer.fence(5)
    poll = reader.send_poll(5, -1, 3_600_000)
    await handled(reader)
    assert not poll.done()
    await writer.add(entry(5, 1), recovery=True)
    assert (await asyncio.wait_for(poll, 60)).status == Status.EOK


async def test_a_poll_without_timeout_does_not_wait_and_one_without_piggyback_reads_its_entry(
    cluster: BookieCluster,
) -> None:
    bookie = await cluster.start()
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    at_once = await asyncio.wait_for(reader.send_read(5, -1, previous_lac=3, piggyback=True), 60)
    assert (at_once.status, getattr(at_once, "entry_id", 0), getattr(at_once, "max_lac", 0)) == (Status.EOK, -1, -1)
    waiting = reader.send_read(5, 1, previous_lac=-1, timeout_ms=3_600_000)
    await handled(reader)
    assert not waiting.done()
    await writer.add(entry(5, 1))
    answer = await asyncio.wait_for(waiting, 60)
    assert isinstance(answer, ReadResponse)
    assert (answer.status, answer.entry_id, bytes(answer.body or b"")) == (Status.EOK, 1, entry(5, 1))


async def test_polls_wake_by_the_lac_they_wait_for_each_by_its_own(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    polls = [reader.send_poll(5, previous, 3_600_000) for previous in range(4)]
    await handled(reader)
    for number in range(1, 6):
        await writer.add(entry(5, number))
        await handled(reader)
        assert [poll.done() for poll in polls] == [previous < number - 1 for previous in range(4)]


# ------------------------------------------------------------------------------------------- lists, statuses


def test_the_list_of_entries_has_the_bytes_of_the_vector() -> None:
    expected = vectors("wire.md")["list of entries 0 to 4 and 10"]
    assert availability([(0, 4), (10, 10)]) == expected
    assert len(expected) == 112


async def test_the_list_of_entries_follows_what_is_stored(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())

    async def listed(ledger: int) -> bytes:
        answer = await client.ask(lambda txn: encode_list_entries_request(txn, ledger))
        assert isinstance(answer, ListEntriesResponse)
        return bytes(answer.availability or b"")

    await client.fence(3)
    assert await listed(3) == availability([])
    for number in (7, 8, 3, 0, 1 << 40, 9):
        await client.add(entry(5, number))
    assert await listed(5) == availability([(0, 0), (3, 3), (7, 9), (1 << 40, 1 << 40)])


async def test_every_answer_has_equal_statuses_outside_and_inside_and_the_ids_of_the_request(
    cluster: BookieCluster,
) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(5, 0))
    seen: list[dict[str, object]] = []
    pass_on = client.frame_received

    def note(frame: memoryview) -> None:
        seen.append(decode(RESPONSE, memoryview(bytes(frame))))  # type: ignore[arg-type]
        pass_on(frame)

    client.frame_received = note  # type: ignore[method-assign]
    short = entry(5, 1)[:10]
    await client.ask(lambda txn: b"".join((encode_add_request(txn, 5, 0, KEY, len(short))[0], short)))
    await client.add(entry(5, 1), key=WRONG)
    await client.fence(5, key=WRONG)
    await client.read(5, 8)
    await client.read(5, 0)
    await client.read(6, 0)
    await client.send_poll(5, 9, 1)
    await client.send_read(5, 3, previous_lac=-1, piggyback=True)
    await client.read_lac(5)
    await client.read_lac(6)
    await client.write_lac(5, 0, key=WRONG)
    await client.write_lac(5, 0)
    await client.ask(lambda txn: encode_list_entries_request(txn, 6))
    await client.ask(lambda txn: encode_force_ledger_request(txn, 6))
    assert len(seen) == 14
    for values in seen:
        (inner,) = (value for name, value in values.items() if name not in ("header", "status"))
        assert isinstance(inner, dict)
        assert inner["status"] == values["status"]
        assert inner["ledgerId"] in (5, 6)


async def deleted_with_a_fence_on_its_way(
    cluster: BookieCluster,
) -> tuple[Bookie, HeldDisk, WireClient, WireClient, asyncio.Future[Response]]:
    """Return a node whose journal is held up, its disk, two clients, and the first one's fence of ledger 5, which was
    deleted behind it."""
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    one, two = await cluster.connect(bookie), await cluster.connect(bookie)
    await one.add(entry(5, 0))
    disk.holds.add("journal")
    first = one.send_read(5, -1, key=KEY, fence=True)
    await until(lambda: disk.waiting)
    bookie.storage.contents.delete(5, 1)
    return bookie, disk, one, two, first


async def test_a_fence_of_a_ledger_that_was_deleted_meanwhile_waits_for_the_first_one(cluster: BookieCluster) -> None:
    """D19: a recovery concludes from this answer that nothing is acknowledged any more, whatever a crash undoes."""
    _, disk, _, two, first = await deleted_with_a_fence_on_its_way(cluster)
    second = two.send_read(5, -1, key=KEY, fence=True)
    await handled(two)
    await asyncio.sleep(0)
    early = second.done()
    disk.release()
    assert not early
    assert (await second).status == Status.ENOLEDGER
    await first


@pytest.mark.parametrize("clean", [True, False], ids=["checkpoint", "replay"])
async def test_a_fence_that_a_start_has_found_is_answered_while_the_journal_stalls(
    cluster: BookieCluster, clean: bool
) -> None:
    """It is durable: a recovery must not wait for a full disk."""
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    await client.add(entry(6, 0))
    await client.send_read(6, 0, key=KEY, fence=True)
    await (cluster.stop if clean else cluster.kill)(bookie)
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    one, two = await cluster.connect(bookie), await cluster.connect(bookie)
    disk.holds.add("journal")
    stalled = one.send_add(entry(6, 1), recovery=True)
    await until(lambda: disk.waiting)
    fence = two.send_read(6, 0, key=KEY, fence=True)
    await asyncio.wait([fence], timeout=10)
    early = fence.done()
    disk.release()
    await stalled
    assert (await fence).status == Status.EOK
    assert early


async def test_a_fence_of_a_ledger_that_came_again_waits_for_the_first_one(cluster: BookieCluster) -> None:
    """D19, as where it did not come again: an add of a recovery made it anew."""
    bookie, disk, one, two, first = await deleted_with_a_fence_on_its_way(cluster)
    again = one.send_add(entry(5, 1), recovery=True)
    await handled(one)
    assert bookie.storage.ledgers[5].fenced
    second = two.send_read(5, 1, key=KEY, fence=True)
    await handled(two)
    await asyncio.sleep(0)
    early = second.done()
    disk.release()
    assert not early
    assert (await second).status == Status.EOK
    await asyncio.gather(first, again)
