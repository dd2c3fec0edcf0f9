"""Segments by their names: what is read of a long log, what is kept, and when what was kept is dropped."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segment_listing import SegmentCache, SegmentVanishedError
from metadata.distributedlog.segments import SegmentListError, SegmentMetadata, TruncationStatus
from metadata.store import Create, Delete, MetadataStore


class Counting:
    """A store that counts the reads of znodes."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.gets = 0

    async def get(self, path, watch=None):
        self.gets += 1
        return await self._store.get(path, watch)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.fixture
async def counting(store: MetadataStore, root: str) -> Counting:
    await store.create(f"{root}/ns")
    return Counting(store)


@pytest.fixture
async def logs(counting: Counting, root: str) -> LogStore:
    logs = LogStore(counting, f"{root}/ns")
    await logs.create("long")
    return logs


def segment(lssn: int, **changes) -> SegmentMetadata:
    base = SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn * 10, last_txid=lssn * 10 + 9)
    return replace(base, record_count=3, last_entry=2, last_slot=0, start_sequence_id=(lssn - 1) * 3, **changes)


def opening(lssn: int) -> SegmentMetadata:
    return SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn * 10, in_progress=True)


async def add(logs: LogStore, *segments: SegmentMetadata) -> None:
    await logs.store.multi([Create(logs.paths("long").segment(one), one.encode()) for one in segments])


async def rewrite(logs: LogStore, one: SegmentMetadata, **changes) -> None:
    path = logs.paths("long").segment(one)
    await logs.store.multi([Delete(path), Create(path, replace(one, **changes).encode())])


async def test_names_tell_numbers_and_states_without_a_read(logs, counting):
    await add(logs, *(segment(lssn) for lssn in range(1, 40)), opening(40))
    counting.gets = 0
    listing = await logs.listing("long")
    assert [one.lssn for one in listing] == list(range(1, 41))
    assert [one.lssn for one in listing.open] == [40]
    assert (listing.find(7).name, listing.find(41), listing.index_of(41)) == ("logrecs_000000000000000007", None, 40)
    assert counting.gets == 0
    assert await listing.read(listing.find(7)) == segment(7)
    assert counting.gets == listing.reads == 1


async def test_a_binary_search_over_a_long_log_reads_logarithmically_many_segments(logs, counting):
    await add(logs, *(segment(lssn) for lssn in range(1, 257)))
    counting.gets = 0
    listing = await logs.listing("long")
    assert await listing.first_where(lambda s: s.last_txid >= 1775) == 176
    assert counting.gets <= 9
    assert await listing.first_where(lambda s: s.last_txid >= 10_000) == 256


async def test_what_was_read_is_not_read_again_while_segments_come_and_go(logs, counting):
    await add(logs, *(segment(lssn) for lssn in range(1, 11)))
    assert len(await logs.segments("long")) == 10
    counting.gets = 0
    assert len(await logs.segments("long")) == 10
    assert counting.gets == 0
    await add(logs, segment(11), segment(12))
    await logs.delete_segment("long", segment(1))
    assert [one.lssn for one in await logs.segments("long")] == list(range(2, 13))
    assert counting.gets == 2


async def test_a_truncation_under_the_same_name_is_seen(logs, counting):
    await add(logs, *(segment(lssn) for lssn in range(1, 6)))
    await logs.segments("long")
    await rewrite(logs, segment(1), truncation=TruncationStatus.TRUNCATED)
    await add(logs, segment(6))
    found = await logs.segments("long")
    assert [one.truncation for one in found[:2]] == [TruncationStatus.TRUNCATED, TruncationStatus.ACTIVE]


@pytest.mark.parametrize("last", [TruncationStatus.TRUNCATED, TruncationStatus.PARTIALLY_TRUNCATED])
async def test_a_list_that_a_truncation_came_into_shows_nothing_before_what_it_hides(logs, counting, monkeypatch, last):
    await add(logs, *(segment(lssn) for lssn in range(1, 5)))
    second = logs.paths("long").segment(segment(2))

    async def get(path, watch=None):
        if path == second:  # the first one's request has gone
            monkeypatch.undo()
            await rewrite(logs, segment(1), truncation=TruncationStatus.TRUNCATED)
            await rewrite(logs, segment(2), truncation=last, min_entry=1)
        return await Counting.get(counting, path, watch)

    monkeypatch.setattr(counting, "get", get)
    found = [one.truncation for one in await logs.segments("long")]
    assert found == [TruncationStatus.TRUNCATED, last, TruncationStatus.ACTIVE, TruncationStatus.ACTIVE]


async def test_a_number_that_is_given_again_is_not_taken_for_what_had_it_before(logs):
    await add(logs, segment(1), opening(2))
    await logs.segments("long")
    await logs.delete_segment("long", opening(2))
    await logs.segments("long")
    await add(logs, replace(opening(2), ledger_id=999))
    assert (await logs.segments("long"))[1].ledger_id == 999


async def test_a_late_answer_about_a_name_that_went_is_not_kept_for_its_successor(logs):
    await add(logs, segment(1), opening(2))
    old = await logs.listing("long")
    answer = await old.read(old.find(1))
    assert answer == segment(1)
    await logs.delete_segment("long", opening(2))
    await logs.listing("long")
    with pytest.raises(SegmentVanishedError):
        await old.read(old.find(2))
    await add(logs, replace(opening(2), ledger_id=999))
    new = await logs.listing("long")
    assert (await new.read(new.find(2))).ledger_id == 999
    assert (await new.read(new.find(1))) == segment(1)


async def test_a_log_made_anew_shares_nothing_with_the_one_before(logs):
    await add(logs, segment(1), segment(2))
    await logs.segments("long")
    await logs.delete_tree("long")
    with pytest.raises(LogNotFoundError):
        await logs.listing("long")
    await logs.create("long")
    await add(logs, replace(segment(1), ledger_id=7), replace(segment(2), ledger_id=8))
    assert [one.ledger_id for one in await logs.segments("long")] == [7, 8]


async def test_where_a_name_and_its_data_disagree_the_data_is_right(logs, counting):
    path = logs.paths("long")
    await logs.store.multi(
        [
            Create(path.segment(segment(1)), segment(1).encode()),
            Create(path.segment(segment(2)), segment(3).encode()),
            Create(path.segment(segment(3)), segment(2).encode()),
        ]
    )
    asked = []

    async def second(listing):
        asked.append(await listing.read(listing.find(2)))
        return asked[-1].ledger_id

    assert await logs.ask("long", second) == 102
    assert [one.ledger_id for one in await logs.segments("long")] == [101, 102, 103]


async def test_old_names_are_read_whole_and_ordered_by_their_data(logs, counting):
    path = logs.paths("long").ledgers
    old = replace(segment(1), name="logrecs_000000000000000010_000000000000000019")
    await logs.store.create(f"{path}/{old.name}", old.encode())
    await logs.store.create(f"{path}/inprogress_14", opening(2).encode())
    listing = await logs.listing("long")
    assert [(one.lssn, one.in_progress, one.name) for one in listing] == [
        (1, False, old.name),
        (2, True, "inprogress_14"),
    ]
    assert await listing.read(listing[1]) == opening(2)


async def test_a_missing_segment_in_the_middle_is_an_error_of_the_listing_too(logs):
    await add(logs, segment(1), segment(3))
    with pytest.raises(SegmentListError):
        await logs.listing("long")


async def test_what_is_kept_is_bounded_and_may_be_switched_off(counting, root):
    few = SegmentCache(max_segments=3)
    logs = LogStore(counting, f"{root}/ns", cache=few)
    for name in ("long", "other"):
        await logs.create(name)
        ops = [Create(logs.paths(name).segment(segment(n)), segment(n).encode()) for n in range(1, 6)]
        await logs.store.multi(ops)
        assert len(await logs.segments(name)) == 5
        assert len(few) == 3
    off = SegmentCache(enabled=False)
    logs = LogStore(counting, f"{root}/ns", cache=off)
    await logs.segments("long")
    counting.gets = 0
    await logs.segments("long")
    assert (counting.gets, len(off)) == (5, 0)


async def test_nothing_is_believed_longer_than_its_time(counting, root):
    logs = LogStore(counting, f"{root}/ns", cache=SegmentCache(ttl_ms=1))
    await logs.create("long")
    await add(logs, segment(1))
    await logs.segments("long")
    counting.gets = 0
    await asyncio.sleep(0.01)
    await logs.segments("long")
    assert counting.gets == 1


@pytest.mark.parametrize("cache", [SegmentCache(max_segments=2), SegmentCache(enabled=False)])
async def test_logs_of_which_only_names_were_listed_do_not_pile_up(counting, root, cache):
    logs = LogStore(counting, f"{root}/ns", cache=cache)
    for number in range(5):
        await logs.create(f"log{number}")
        assert len(await logs.listing(f"log{number}")) == 0
    assert len(cache._logs) == min(2, cache._max_segments)


async def test_one_watch_is_left_for_all_who_listen_to_a_log(logs):
    heard: list[int] = []
    watches = [lambda _, number=number: heard.append(number) for number in range(3)]
    for watch in watches:
        await logs.listing("long", watch)
    logs.unwatch("long", watches[1])
    await add(logs, segment(1))
    await logs.store.sync("/")
    assert heard == [0, 2]
    assert len(logs._watches) == 0
