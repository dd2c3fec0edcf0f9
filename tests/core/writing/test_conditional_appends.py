"""Requests of idempotent producers and conditional appends through the writer: once, in order, whoever owns the log."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import suppress
from dataclasses import replace

import pytest
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.owned_segments import taken
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.issuing import WriteIssuer
from dlspark.core.writing.producers import epoch_limit
from dlspark.core.writing.proxy_writes import append_epoch
from dlspark.core.writing.segment_sequence import IN_USE_S
from dlspark.core.writing.transitions import SegmentTransitions
from dlspark.errors import (
    ConditionError,
    InvalidRecordError,
    ProducerFencedError,
    ProducerForgottenError,
    RecordTooLongError,
    SequenceGapError,
    TooManyProducersError,
    TransactionIdOutOfOrderError,
    WriteError,
    WriterDeposedError,
)
from metadata.distributedlog.producer_segments import ProducerSegments
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError


async def values(namespace, name):
    log = await namespace.open_log(name)
    found = []
    async with await log.open_reader("earliest") as reader:
        while more := await reader.read_available(1000, wait=True):
            found += more
    return found


async def stored(writer, *futures):
    await writer.flush()
    return [await future for future in futures]


def records(*payloads, txid=1):
    return [(txid, payload) for payload in payloads]


async def die_before_the_first_snapshot(log, bookies, *, sequence):
    """Open a writer with producers that begins a segment, and ends before a storage node has stored anything of it."""
    dead = await log.open_writer(producers=True)
    for bookie in bookies:
        bookie.stop()
    lost = dead.append(records(b"lost"), producer="p", sequence=sequence)
    with suppress(DistributedLogError):
        await dead.flush()
    assert isinstance(lost.exception(), DistributedLogError)
    await dead.abort()
    for bookie in bookies:
        bookie.up = True


async def test_a_request_is_answered_with_its_first_position_and_read_like_any_records(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        first, second = await stored(
            writer,
            writer.append(records(b"a", b"b"), producer="p", sequence=0),
            writer.append(records(b"c"), producer="p", sequence=1),
        )
        assert (first.records, second.records, first.repeated, second.repeated) == (2, 1, False, False)
    found = await values(namespace, "events")
    assert [record.payload for record in found] == [b"a", b"b", b"c"]
    assert [record.dlsn for record in found] == [
        first.first,
        first.first._replace(slot_id=first.first.slot_id + 1),
        second.first,
    ]
    assert [record.sequence_id for record in found] == [0, 1, 2]


async def test_a_request_that_comes_again_is_written_once(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        first, again = await stored(
            writer,
            writer.append(records(b"a"), producer="p", sequence=0),
            writer.append(records(b"a"), producer="p", sequence=0),  # while the first one is under way
        )
        later = await writer.append(records(b"a"), producer="p", sequence=0)
        assert again == later == first._replace(repeated=True)
    assert [record.payload for record in await values(namespace, "events")] == [b"a"]


async def test_whoever_gives_up_takes_nobody_elses_answer_away(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        first = writer.append(records(b"a"), producer="p", sequence=0)
        again = writer.append(records(b"a"), producer="p", sequence=0)
        first.cancel()
        (answer,) = await stored(writer, again)
        assert answer.repeated
    assert len(await values(namespace, "events")) == 1


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_the_next_owner_knows_what_was_written(memory_cluster, namespace, ending):
    log = await namespace.open_log("events")
    writer = await log.open_writer(producers=True)
    answers = await stored(writer, *(writer.append(records(b"%d" % n), producer="p", sequence=n) for n in range(8)))
    await getattr(writer, ending)()
    other = await (await memory_cluster.namespace()).open_log("events")
    async with await other.open_writer(producers=True) as heir:
        for n in range(8):
            answer = await heir.append(records(b"%d" % n), producer="p", sequence=n)
            assert answer == Appended(answers[n].first if n >= 3 else None, 1, repeated=True)
        with pytest.raises(SequenceGapError, match="8 is next"):
            await heir.append(records(b"9"), producer="p", sequence=9)
        await stored(heir, heir.append(records(b"8"), producer="p", sequence=8))
    assert [record.payload for record in await values(namespace, "events")] == [b"%d" % n for n in range(9)]


async def test_segments_of_writers_without_producers_are_passed_over(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        (first,) = await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    for _ in range(3):
        async with await log.open_writer() as plain:
            await stored(plain, plain.write(1, b"plain"))
    async with await log.open_writer(producers=True) as writer:
        assert await writer.append(records(b"a"), producer="p", sequence=0) == first._replace(repeated=True)
        (second,) = await stored(writer, writer.append(records(b"b"), producer="p", sequence=1))
        assert second.first.lssn == 5


async def noted(client, log):
    return await client.services.logs.producer_segments(log)


async def test_segments_that_cannot_have_producers_are_not_looked_at(memory_cluster):
    client = await memory_cluster.namespace()
    counters = client.services.counters
    log = await client.open_log("events")
    for _ in range(3):
        async with await log.open_writer() as plain:
            await stored(plain, plain.write(1, b"plain"))
    before = counters["producer-entries-read"]
    async with await log.open_writer(producers=True) as writer:
        assert counters["producer-entries-read"] - before <= 2, "the end of one segment, for conditions"
        (first,) = await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    assert await noted(client, "events") == ProducerSegments(newest=4, whole=4)
    for _ in range(20):
        async with await log.open_writer() as plain:
            await stored(plain, plain.write(1, b"plain"))
    before = counters["producer-entries-read"]
    async with await log.open_writer(producers=True) as writer:
        assert counters["producer-entries-read"] - before <= 6, "two for conditions, the others of segment 4"
        assert await writer.append(records(b"a"), producer="p", sequence=0) == first._replace(repeated=True)
        await stored(writer, writer.append(records(b"b"), producer="p", sequence=1))
    assert await noted(client, "events") == ProducerSegments(newest=25, whole=4)


async def test_a_segment_is_named_as_whole_once_its_snapshot_is_stored(memory_cluster):
    client = await memory_cluster.namespace(rolling_minutes=0, max_segment_bytes=400)
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        for n in range(12):
            await stored(writer, writer.append(records(b"%100d" % n), producer="p", sequence=n))
    found = await noted(client, "events")
    assert found.newest > 3
    assert found.whole in (found.newest - 1, found.newest)


async def test_a_segment_that_was_removed_as_empty_hides_no_older_snapshot(memory_cluster):
    """The start of a segment is noted, and its owner dies before a snapshot is stored: it is removed, and its number is
    given to a segment of another writer."""
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        (first,) = await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    await die_before_the_first_snapshot(log, memory_cluster.bookies, sequence=1)
    assert await noted(client, "events") == ProducerSegments(newest=2, whole=1)
    async with await log.open_writer() as plain:
        await stored(plain, plain.write(1, b"plain"))
    assert await noted(client, "events") == ProducerSegments(newest=2, whole=1)
    async with await log.open_writer(producers=True) as writer:
        assert await writer.append(records(b"a"), producer="p", sequence=0) == first._replace(repeated=True)


async def test_what_was_deleted_with_its_segments_is_refused_and_never_taken_for_new_i19(memory_cluster):
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        (first,) = await stored(writer, writer.append(records(b"a", txid=1), producer="p", sequence=0))
    async with await log.open_writer() as plain:
        (end,) = await stored(plain, plain.write(5, b"plain"))
    await log.truncate(end)
    async with await log.open_writer(producers=True) as writer:
        assert await writer.append(records(b"a"), producer="p", sequence=0) == first._replace(repeated=True), "hidden"
    async with await log.open_writer() as plain:
        await stored(plain, plain.write(9, b"plain"))
    assert await log.purge_older_than(9) == 2
    for _ in range(2):  # the next owner knows it, and so does the one behind it, from the snapshot
        async with await log.open_writer(producers=True) as writer:
            for sequence in (0, 1):
                with pytest.raises(ProducerForgottenError, match="was written before is not known") as refused:
                    await writer.append(records(b"a", txid=9), producer="p", sequence=sequence)
                assert refused.value.epoch == writer.forgotten_epoch == 2**62 - 1
            with pytest.raises(ProducerForgottenError):
                await writer.begin_epoch("p", 7)
            await stored(writer, writer.append(records(b"other", txid=9)))
    async with await log.open_writer(producers=True) as writer:
        assert await writer.begin_epoch("p") == 2**62
        await stored(writer, writer.append(records(b"b", txid=9), producer="p", epoch=2**62, sequence=0))
        with pytest.raises(ProducerFencedError):
            await writer.append(records(b"a", txid=9), producer="p", sequence=0)
    assert [one.payload for one in await values(client, "events")] == [b"plain", b"other", b"other", b"b"]


async def test_each_loss_forgets_what_was_begun_since_the_one_before(memory_cluster):
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    epochs = [0]
    for loss in range(1, 4):
        async with await log.open_writer(producers=True) as writer:
            await writer.begin_epoch("p", epochs[-1])
            await stored(writer, writer.append(records(b"a", txid=loss), producer="p", epoch=epochs[-1], sequence=0))
        for txid in (loss, loss + 1):
            async with await log.open_writer() as plain:
                await stored(plain, plain.write(txid, b"plain"))
        assert await log.purge_older_than(loss + 1)
        async with await log.open_writer(producers=True) as writer:
            with pytest.raises(ProducerForgottenError):
                await writer.append(records(b"a", txid=loss + 1), producer="p", epoch=epochs[-1], sequence=0)
            with pytest.raises(InvalidRecordError, match="the highest that this log takes"):
                await writer.begin_epoch("p", epoch_limit(loss) + 1)  # it could not be told from a forgotten one later
            epochs.append(await writer.begin_epoch("p"))
            assert (await noted(client, "events")).losses == loss
    assert epochs == sorted(set(epochs))


async def test_an_owner_that_died_before_its_first_snapshot_has_lost_nothing(memory_cluster):
    """Its segment is removed as empty; nothing can have been written by a producer."""
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    await die_before_the_first_snapshot(log, memory_cluster.bookies, sequence=0)
    assert await noted(client, "events") == ProducerSegments(newest=1, whole=1)
    async with await log.open_writer(producers=True) as writer:
        assert writer.forgotten_epoch == -1
        await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    assert (await noted(client, "events")).losses == 0


async def test_a_log_whose_segments_were_all_taken_away_has_lost_its_producers(memory_cluster):
    """What a crash leaves of a log that is being deleted: its segments go first."""
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    async with taken(client.services, "events", client.settings, "deleter") as owned:
        await owned.clear()
    async with await log.open_writer(producers=True) as writer:
        with pytest.raises(ProducerForgottenError):
            await writer.append(records(b"a"), producer="p", sequence=0)


async def test_so_has_one_whose_last_owner_died_before_its_first_snapshot(memory_cluster):
    """Its segment is removed as empty, and its number stays the highest: the deletion has none to add (I19)."""
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    await die_before_the_first_snapshot(log, memory_cluster.bookies, sequence=1)
    assert await noted(client, "events") == ProducerSegments(newest=2, whole=1)
    async with await log.open_writer():
        pass  # recovers the log, and removes the empty segment
    async with taken(client.services, "events", client.settings, "deleter") as owned:
        await owned.clear()
    async with await log.open_writer(producers=True) as writer:
        for sequence in (0, 1):
            with pytest.raises(ProducerForgottenError):
                await stored(writer, writer.append(records(b"a"), producer="p", sequence=sequence))


async def test_a_fencing_token_that_is_gone_with_its_segments_is_nobodys(memory_cluster):
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await writer.set_fencing_token(b"mine")
        await stored(writer, writer.append(records(b"a"), fencing_token=b"mine"))
    for txid in (1, 5):
        async with await log.open_writer() as plain:
            await stored(plain, plain.write(txid, b"plain"))
    assert await log.purge_older_than(5) == 2
    async with await log.open_writer(producers=True) as writer:
        with pytest.raises(ConditionError) as held:
            await writer.append(records(b"b", txid=5), fencing_token=b"mine")
        with pytest.raises(ConditionError):
            await writer.set_fencing_token(b"other", expected=b"")
        await writer.set_fencing_token(b"other", expected=held.value.actual)


async def test_a_clock_that_is_a_week_ahead_forgets_nobody(memory_cluster):
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        (first,) = await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    async with await log.open_writer(producers=True) as writer:
        await stored(writer, writer.append(records(b"other")))  # begins with a snapshot that has the producer
    client._services = replace(client.services, clock=AheadClock(client.services.clock, 8 * 86_400_000))
    log = await client.open_log("events")
    for _ in range(3):
        async with await log.open_writer(producers=True) as writer:
            assert await writer.append(records(b"a"), producer="p", sequence=0) == first._replace(repeated=True)
            await stored(writer, writer.append(records(b"other")))


class AheadClock:
    """A clock that is ahead."""

    def __init__(self, clock, ahead_ms):
        self._clock = clock
        self._ahead_ms = ahead_ms

    def now_ms(self):
        return self._clock.now_ms() + self._ahead_ms

    def elapsed_s(self):
        return self._clock.elapsed_s()


async def test_a_log_takes_no_more_producers_than_it_remembers(memory_cluster):
    client = await memory_cluster.namespace(max_producers=2)
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        for name in ("p", "q"):
            await stored(writer, writer.append(records(b"a"), producer=name, sequence=0))
        with pytest.raises(TooManyProducersError, match="maxProducers"):
            await writer.append(records(b"a"), producer="r", sequence=0)
        with pytest.raises(TooManyProducersError):
            await writer.begin_epoch("r")
        await stored(writer, writer.append(records(b"b"), producer="q", sequence=1))
        await stored(writer, writer.append(records(b"plain")))
    assert [one.payload for one in await values(client, "events")] == [b"a", b"a", b"b", b"plain"]


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"v":2,"newest":1,"whole":1}', b'{"v":1,"newest":1,"whole":2}'])
async def test_a_znode_that_cannot_be_understood_stops_a_writer_with_producers_alone(memory_cluster, data):
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    store = client.services.store
    await store.put(client.services.logs.paths("events").producers, data, -1)
    with pytest.raises(CorruptDataError, match="producers") as damaged:
        await log.open_writer(producers=True)
    async with await log.open_writer() as plain:
        await stored(plain, plain.write(1, b"plain"))
    advised = re.search(r"\{.*\}", damaged.value.advice or "")
    assert advised
    await store.put(client.services.logs.paths("events").producers, advised[0].encode(), -1)
    async with await log.open_writer(producers=True) as writer:
        with pytest.raises(ProducerForgottenError):
            await writer.append(records(b"a"), producer="p", sequence=0)
        await writer.begin_epoch("p")


async def test_an_owner_that_was_overtaken_while_it_opened_knows_nothing_of_producers(memory_cluster):
    """Its segments are older than what the log says of them: it would take written requests for new ones."""
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    path = client.services.logs.paths("events").producers
    await client.services.store.put(path, ProducerSegments(newest=2, whole=2).encode(), -1)
    with pytest.raises(WriterDeposedError):
        await log.open_writer(producers=True)


async def test_a_log_that_is_renamed_keeps_its_producers(memory_cluster):
    client = await memory_cluster.namespace()
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        (first,) = await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    await client.rename_log("events", "others")
    renamed = await client.open_log("others")
    async with await renamed.open_writer(producers=True) as writer:
        assert await writer.append(records(b"a"), producer="p", sequence=0) == first._replace(repeated=True)


async def test_the_next_owner_reads_no_more_entries_than_the_setting_says(memory_cluster, namespace):
    client = await memory_cluster.namespace(producer_snapshot_entries=10)
    log = await client.open_log("events")
    writer = await log.open_writer(producers=True)
    for n in range(57):
        await stored(writer, writer.append(records(b"%d" % n), producer="p", sequence=n))
    await writer.abort()
    before = client.services.counters["producer-entries-read"]
    heir = await log.open_writer(producers=True)
    assert (await heir.append(records(b"56"), producer="p", sequence=56)).repeated
    assert (await heir.append(records(b"52"), producer="p", sequence=52)).first is not None
    assert client.services.counters["producer-entries-read"] - before <= 2 * 10 + 2
    await heir.close()


async def test_what_was_closed_in_order_is_learned_from_both_ends_of_a_segment(memory_cluster, namespace):
    log = await namespace.open_log("handed-over")
    async with await log.open_writer(producers=True) as writer:
        for number in range(100):
            await stored(writer, writer.append(records(b"%d" % number), producer="p", sequence=number))
    client = await memory_cluster.namespace()
    before = client.counters["producer-entries-read"]
    async with await (await client.open_log("handed-over")).open_writer(producers=True) as writer:
        assert client.counters["producer-entries-read"] - before <= 1 + 2
        repeated, new = await stored(
            writer,
            writer.append(records(b"99"), producer="p", sequence=99),
            writer.append(records(b"100"), producer="p", sequence=100),
        )
        assert (repeated.repeated, new.repeated) == (True, False)
    assert [record.payload for record in await values(namespace, "handed-over")] == [b"%d" % n for n in range(101)]


async def test_a_ledger_is_made_ahead_for_a_log_that_is_in_use(namespace, monkeypatch):
    log, made = await namespace.open_log("events"), []
    prepare = SegmentTransitions.prepare

    async def noted(transitions, **claims):
        made.append(len(transitions.segments))
        await prepare(transitions, **claims)

    monkeypatch.setattr(SegmentTransitions, "prepare", noted)
    for expected in ([0], [0, 1]):
        async with await log.open_writer(producers=True) as writer:
            assert made == expected
            await stored(writer, writer.append(records(b"x")))
    now_ms = namespace.services.clock.now_ms
    monkeypatch.setattr(namespace.services.clock, "now_ms", lambda: now_ms() + IN_USE_S * 1000)
    async with await log.open_writer(producers=True):
        pass
    assert made == [0, 1], "thousands of logs that are not written may move"


@pytest.mark.parametrize("begins_again", [False, True])
async def test_what_is_learned_beside_the_claim_is_learned_again_where_the_log_has_changed(
    memory_cluster, namespace, monkeypatch, begins_again
):
    """The former owner's last transaction comes when its successor has read the log, and has not moved its versions:
    what is learned meanwhile may lack a segment."""
    former = await (await namespace.open_log("events")).open_writer("the former owner", producers=True)
    await stored(former, former.append(records(b"a"), producer="p", sequence=0))
    await former._issuer.run_transition(former._sequence.complete_current)
    memory_cluster.cut_off(namespace)
    client = await memory_cluster.namespace()
    prepare, learn, prepared, learned = SegmentTransitions.prepare, WriteIssuer._learn_requests, [], []

    async def disturbed(transitions, **claims):
        prepared.append(transitions)
        if begins_again and len(prepared) == 1:
            memory_cluster.tree.inject = None
            await former._sequence._transitions.start(2)
        await prepare(transitions, **claims)

    async def noted(issuer, highest):
        learned.append(len(issuer._transitions.segments))
        await learn(issuer, highest)

    monkeypatch.setattr(SegmentTransitions, "prepare", disturbed)
    monkeypatch.setattr(WriteIssuer, "_learn_requests", noted)
    writer = await (await client.open_log("events")).open_writer("the successor", producers=True)
    memory_cluster.tree.inject = None
    assert client.counters["recovery-begun-again"] == int(begins_again)
    assert learned == ([1, 1] if begins_again else [1]), "an empty segment is removed before"
    (repeated,) = await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    assert repeated.repeated
    await stored(writer, writer.append(records(b"b"), producer="p", sequence=1))
    await writer.close()
    assert [record.payload for record in await values(client, "events")] == [b"a", b"b"]
    with suppress(DistributedLogError):
        await former.close()


async def test_a_roll_keeps_the_table(memory_cluster, namespace):
    client = await memory_cluster.namespace(rolling_minutes=0, max_segment_bytes=300)
    log = await client.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        for n in range(30):
            await stored(writer, writer.append(records(b"%d" % n), producer="p", sequence=n))
        await until(lambda: writer.segment is not None and writer.segment > 2)
        assert (await writer.append(records(b"29"), producer="p", sequence=29)).repeated
    assert [record.payload for record in await values(namespace, "events")] == [b"%d" % n for n in range(30)]


async def test_a_newer_epoch_fences_the_older_one_for_every_owner(memory_cluster, namespace):
    log = await namespace.open_log("events")
    writer = await log.open_writer(producers=True)
    assert await writer.begin_epoch("p") == 0
    await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    assert await writer.begin_epoch("p") == 1
    await writer.abort()
    async with await log.open_writer(producers=True) as heir:
        with pytest.raises(ProducerFencedError, match="epoch 1 has begun"):
            await heir.append(records(b"b"), producer="p", epoch=0, sequence=1)
        await stored(heir, heir.append(records(b"c"), producer="p", epoch=1, sequence=0))
    assert [record.payload for record in await values(namespace, "events")] == [b"a", b"c"]


async def test_gaps_are_for_those_who_ask(namespace):
    log = await namespace.open_log("batches")
    async with await log.open_writer(producers=True, gaps_allowed=True) as writer:
        await stored(writer, writer.append(records(b"4"), producer="sink", sequence=4))
        await stored(writer, writer.append(records(b"7"), producer="sink", sequence=7))
        assert (await writer.append(records(b"4"), producer="sink", sequence=4)).repeated


# ---- conditions ----------------------------------------------------------------------------------------------------


async def test_a_position_that_is_expected_is_compared_before_anything_is_written(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        (first,) = await stored(writer, writer.append(records(b"a", b"b"), expected_position=0))
        with pytest.raises(ConditionError, match="sequence id 2, not 1") as caught:
            await writer.append(records(b"x"), expected_position=1)
        assert caught.value.actual == 2
        last = first.first._replace(slot_id=first.first.slot_id + 1)
        (second,) = await stored(writer, writer.append(records(b"c"), expected_position=last))
        with pytest.raises(ConditionError) as caught:
            await writer.append(records(b"x"), expected_position=last)
        assert caught.value.actual == second.first
        plain = await stored(writer, writer.write(1, b"plain"))
        (third,) = await stored(writer, writer.append(records(b"d"), expected_position=plain[0]))
    async with await log.open_writer(producers=True) as heir:
        await stored(heir, heir.append(records(b"e"), expected_position=third.first))
        await stored(heir, heir.append(records(b"f"), expected_position=6))
    assert [r.payload for r in await values(namespace, "events")] == [b"a", b"b", b"c", b"plain", b"d", b"e", b"f"]


async def test_of_two_that_expect_the_same_position_one_is_written(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        answers = [writer.append(records(b"%d" % n), expected_position=0) for n in range(2)]
        await writer.flush()
        assert (await answers[0]).records == 1
        with pytest.raises(ConditionError):
            await answers[1]


async def test_a_log_without_records_has_no_last_one(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        with pytest.raises(ConditionError, match="nowhere, it has none"):
            await writer.append(records(b"x"), expected_position=DLSN(1, 0, 0))


async def test_a_fencing_token_keeps_out_who_names_another_one(namespace):
    log = await namespace.open_log("events")
    writer = await log.open_writer(producers=True)
    await writer.set_fencing_token(b"mine")
    await stored(writer, writer.append(records(b"a"), fencing_token=b"mine"))
    await writer.set_fencing_token(b"yours")
    await writer.abort()
    async with await log.open_writer(producers=True) as heir:
        with pytest.raises(ConditionError, match="is b'yours', not b'mine'") as caught:
            await heir.append(records(b"x"), fencing_token=b"mine")
        assert caught.value.actual == b"yours"
        await stored(heir, heir.append(records(b"b")), heir.append(records(b"c"), fencing_token=b"yours"))
    assert [record.payload for record in await values(namespace, "events")] == [b"a", b"b", b"c"]


async def test_a_repetition_is_answered_though_its_condition_holds_no_more(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        asked = {"producer": "p", "sequence": 0, "expected_position": 0}
        (first,) = await stored(writer, writer.append(records(b"a"), **asked))
        assert await writer.append(records(b"a"), **asked) == first._replace(repeated=True)


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"records": []}, InvalidRecordError),
        ({"records": [(1, "text")]}, InvalidRecordError),
        ({"records": [("1", b"x")]}, InvalidRecordError),
        ({"records": [(1, bytes(600_000)), (1, bytes(600_000))]}, RecordTooLongError),
        ({"records": [(2, b"x"), (1, b"y")]}, TransactionIdOutOfOrderError),
        ({"records": [(1, b"x")], "producer": ""}, InvalidRecordError),
        ({"records": [(1, b"x")], "producer": "n" * 257}, InvalidRecordError),
        ({"records": [(1, b"x")], "producer": "p", "epoch": -1}, InvalidRecordError),
        ({"records": [(1, b"x")], "producer": "p", "sequence": 2**63}, InvalidRecordError),
    ],
)
async def test_what_cannot_be_written_is_refused_and_the_writer_goes_on(namespace, given, error):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        with pytest.raises(error):
            await writer.append(given.pop("records"), **given)
        await stored(writer, writer.append(records(b"a"), producer="p", sequence=0))
    assert [record.payload for record in await values(namespace, "events")] == [b"a"]


async def test_a_writer_without_producers_says_how_to_open_one(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer() as writer:
        with pytest.raises(CallerError, match=r"without producers.*open_writer\(producers=True\)"):
            await writer.append(records(b"a"), producer="p")


# ---- failures ------------------------------------------------------------------------------------------------------


class Client:
    """Two producers that never give up: what was not answered is sent again, in order, to whoever owns the log."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sent = {"a": 0, "b": 0}
        self.answered: dict[tuple[str, int], Appended] = {}
        self.open: dict[str, list[int]] = {"a": [], "b": []}

    def send(self, writer):
        """Everything that is not answered, then some new requests; each as (key, future)."""
        sending = []
        for name in "ab":
            for _ in range(self.rng.randrange(4)):
                self.open[name].append(self.sent[name])
                self.sent[name] += 1
            sending += [
                ((name, n), writer.append(self.payloads(name, n), producer=name, sequence=n)) for n in self.open[name]
            ]
        return sending

    @staticmethod
    def payloads(name, number):
        return [(1, f"{name}{number}.{i}".encode()) for i in range(1 + number % 3)]

    def settle(self, sending):
        for (name, number), future in sending:
            if future.cancelled():
                continue
            if future.exception() is None:
                self.answered[name, number] = future.result()
                if number in self.open[name]:
                    self.open[name].remove(number)


@pytest.mark.parametrize("seed", range(8))
async def test_requests_that_are_sent_until_they_are_answered_are_in_the_log_once_and_in_order(memory_cluster, seed):
    """Owners crash and are followed, storage nodes fail under entries, writers recover their own failed segment."""
    rng = random.Random(seed)
    client = Client(rng)
    crashed = []
    values_of = {"disable_rolling_on_error": False, "producer_snapshot_entries": rng.choice([3, 1000])}
    owner = await memory_cluster.namespace(**values_of)
    writer = await (await owner.open_log("events")).open_writer(producers=True)
    for _ in range(12):
        what = rng.choice(["send", "send", "crash", "nodes", "nodes", "close"])
        sending = client.send(writer)
        if what == "nodes":
            down = rng.sample(memory_cluster.bookies, 3)
            for bookie in down:
                bookie.stop()
        if what == "crash":
            await asyncio.sleep(rng.choice([0, 0.001, 0.005]))
            await memory_cluster.crash(owner)
            crashed.append(writer)
            owner = await memory_cluster.namespace(**values_of)
        else:
            with suppress(DistributedLogError):
                await asyncio.wait_for(writer.flush(), 60)
        if what == "nodes":
            for bookie in down:
                bookie.up = True
        if what == "crash":
            for _, future in sending:
                future.cancel()  # Nobody is left to hear of it.
        elif sending:
            _, pending = await asyncio.wait([future for _, future in sending], timeout=60)
            assert not pending
        client.settle(sending)
        failed = any(f.done() and not f.cancelled() and isinstance(f.exception(), WriteError) for _, f in sending)
        if what in ("crash", "close") or failed:
            if what != "crash":
                with suppress(DistributedLogError):
                    await writer.close()
            writer = await (await owner.open_log("events")).open_writer(producers=True)
    sending = client.send(writer)
    await writer.flush()
    client.settle(sending)
    await writer.close()
    for dead in crashed:
        with suppress(DistributedLogError):
            await dead.abort()
    assert client.open == {"a": [], "b": []}
    found = [(record.payload.decode(), record.dlsn) for record in await values(owner, "events")]
    for name in "ab":
        wanted = [payload.decode() for n in range(client.sent[name]) for _, payload in Client.payloads(name, n)]
        assert [payload for payload, _ in found if payload.startswith(name)] == wanted
    places = dict(found)
    for (name, number), answer in client.answered.items():
        assert answer.first in (None, places[f"{name}{number}.0"])


# ---- for those who pass requests on ---------------------------------------------------------------------------------


async def test_two_that_begin_an_epoch_at_once_have_different_ones(memory_cluster, namespace):
    """With one epoch for both, each would take the other's requests for its own repetitions (I19)."""
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        assert sorted(await asyncio.gather(*(writer.begin_epoch("p") for _ in range(3)))) == [0, 1, 2]


async def test_an_epoch_that_is_named_begins_once_and_may_be_named_again(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        assert writer.producer_state("p") is None
        assert await writer.begin_epoch("p", 4) == 4
        await stored(writer, writer.append(records(b"a"), producer="p", epoch=4, sequence=0))
        assert await writer.begin_epoch("p", 4) == 4
        state = writer.producer_state("p")
        assert state is not None
        assert (state.epoch, state.last) == (4, 0)
        with pytest.raises(ProducerFencedError):
            await writer.begin_epoch("p", 3)


async def test_a_copy_of_a_beginning_waits_until_the_first_is_stored(memory_cluster, namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await writer.begin_epoch("q")
        for bookie in memory_cluster.bookies:
            bookie.hold_adds = True
        begun = [asyncio.ensure_future(writer.begin_epoch("p", 1)) for _ in range(2)]
        await asyncio.wait(begun, timeout=0.05)
        assert [one.done() for one in begun] == [False, False]
        for bookie in memory_cluster.bookies:
            bookie.release()
        assert await asyncio.gather(*begun) == [1, 1]


async def test_a_token_is_set_only_where_the_expected_one_is(namespace):
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        await writer.set_fencing_token(b"mine", b"")
        with pytest.raises(ConditionError) as caught:
            await writer.set_fencing_token(b"yours", b"theirs")
        assert caught.value.actual == b"mine"
        await writer.set_fencing_token(b"yours", b"mine")


async def test_an_epoch_begins_behind_records_that_wait_for_the_same_segment(memory_cluster, namespace):
    """It has no record, so no transaction id that could be too low for what was written before it meanwhile."""
    log = await namespace.open_log("events")
    async with await log.open_writer(producers=True) as writer:
        waiting = writer.append(records(b"a", txid=1_000), producer="p", sequence=0)
        _, begun = append_epoch(writer, "q", 0)
        await stored(writer, waiting, begun)
    assert [record.payload for record in await values(namespace, "events")] == [b"a"]
