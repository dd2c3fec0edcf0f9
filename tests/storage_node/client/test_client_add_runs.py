"""Adds that are sent together: each is acknowledged or refused once, in whatever pieces and order the answers come."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from helpers.twins import running_on
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.model_cluster import ModelCluster, ModelLink, write

from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.foundation import compiled
from metadata.foundation.errors import DistributedLogError, InvariantViolation
from storage_node.client import add_runs
from storage_node.client.add_runs import AddsUnderWay, SentRun
from storage_node.client.pipeline import LONE_ADDS, RUN_ENTRIES
from storage_node.protocol.adds import Add, AddTemplate
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.encoding import encode_add_response
from storage_node.protocol.frames import LENGTH_BYTES, Buffer, ChunkPool, FrameBuffer
from storage_node.protocol.schema import Status
from storage_node.protocol.writing_model import Acknowledged, Resend, Seat, Send

LEDGERS = (7, 8)
SEND = ModelLink.send
DIGEST = EntryDigest(DigestType.CRC32, b"")
TEMPLATES = {ledger: AddTemplate(ledger, b"k" * 20) for ledger in LEDGERS}


class Owner:
    """Notes what it hears of one ledger's entries."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.refused: list[int] = []

    @property
    def added(self) -> list[int]:
        return [entry_id for call in self.calls for entry_id in call]

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        self.calls.append(list(entry_ids))

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None:
        self.refused.append(entry_id)


class Connected:
    """The adds of one connection, and the frames of answers to them."""

    def __init__(self) -> None:
        self.adds = AddsUnderWay()
        self.owners = {ledger: Owner() for ledger in LEDGERS}
        self.seats = {ledger: Seat(0, "bookie") for ledger in LEDGERS}
        self.txn_ids: dict[tuple[int, int], int] = {}
        self._next_txn_id = 1
        self._buffer = FrameBuffer(ChunkPool())

    def send(self, *entry_ids: int, ledger: int = 7, txn_id: int | None = None, deadline: float = 1e9) -> None:
        first = self._next_txn_id if txn_id is None else txn_id
        self._next_txn_id = first + len(entry_ids)
        adds: list[Add] = [(entry_id, -1, 1, 1, (b"x",)) for entry_id in entry_ids]
        _, answers, _, size = TEMPLATES[ledger].run(DIGEST, first, adds)
        self.txn_ids.update({(ledger, entry_id): first + n for n, entry_id in enumerate(entry_ids)})
        seat, owner = self.seats[ledger], self.owners[ledger]
        self.adds.sent_run(SentRun(owner, seat, entry_ids, deadline, first, answers, size))

    def send_alone(self, entry_id: int, *, ledger: int = 7) -> None:
        txn_id = self.txn_ids[ledger, entry_id] = self._next_txn_id
        self._next_txn_id += 1
        _, answer = TEMPLATES[ledger].frames(txn_id, entry_id, 0)
        self.adds.sent(answer, (self.owners[ledger], self.seats[ledger], entry_id, 1e9, txn_id))

    def answer(self, entry_id: int, *, ledger: int = 7, status: Status = Status.EOK) -> bytes:
        return encode_add_response(self.txn_ids[ledger, entry_id], status, ledger, entry_id)

    def answers(self, *entry_ids: int, ledger: int = 7) -> bytes:
        return b"".join(self.answer(entry_id, ledger=ledger) for entry_id in entry_ids)

    def read(self, data: bytes) -> int:
        """Take what one read brought, as a link and a connection do; return how many frames were cut out."""
        self._buffer.writable()[: len(data)] = data
        frames = self._buffer.advance(len(data), recognise=self.adds.recognise)
        for frame in frames:
            if not self.adds.acknowledge(frame):
                self.adds.pass_on()
                response = decode_response(frame)
                add = self.adds.take(response)
                if add is not None and response.status is Status.EOK:
                    add[0].on_added(add[1], (add[2],))  # of a run, in another order
                elif add is not None:
                    add[0].on_refused(add[1], add[2], DistributedLogError("refused"))
        self.adds.pass_on()
        return len(frames)


def test_the_answers_of_a_run_are_recognised_without_a_cut() -> None:
    connected = Connected()
    connected.send(*range(50))
    assert connected.read(connected.answers(*range(50))) == 0
    assert connected.owners[7].calls == [list(range(50))]
    assert not connected.adds


def test_an_answer_that_has_come_in_part_waits_for_its_rest() -> None:
    connected = Connected()
    connected.send(*range(4))
    data = connected.answers(*range(4))
    for at in range(len(data)):
        connected.read(data[at : at + 1])
    assert connected.owners[7].calls == [[0], [1], [2], [3]]
    assert not connected.adds


def test_runs_of_several_ledgers_may_be_answered_in_turns() -> None:
    connected = Connected()
    connected.send(*range(4))
    connected.send(*range(4), ledger=8)
    data = b"".join(
        connected.answers(*ids, ledger=ledger) for ledger, ids in ((8, (0,)), (7, (0, 1, 2)), (8, (1, 2, 3)), (7, (3,)))
    )
    assert connected.read(data) == 0
    assert connected.owners[7].calls == [[0, 1, 2], [3]]
    assert connected.owners[8].calls == [[0], [1, 2, 3]]


def test_an_error_is_heard_of_between_the_acknowledgements_around_it() -> None:
    connected = Connected()
    connected.send(*range(5))
    connected.read(
        connected.answers(0, 1) + connected.answer(2, status=Status.EIO) + connected.answers(3, 4),
    )
    assert (connected.owners[7].calls, connected.owners[7].refused) == ([[0, 1], [3, 4]], [2])
    assert not connected.adds


def test_other_frames_are_left_to_the_cut_and_so_is_what_lies_behind_them() -> None:
    connected = Connected()
    connected.send(0, 1)
    foreign = encode_add_response(999, Status.EOK, 7, 999)
    assert connected.read(connected.answer(0) + foreign + connected.answer(1)) == 2
    assert connected.owners[7].added == [0, 1]


def test_an_answer_that_comes_twice_counts_once() -> None:
    connected = Connected()
    connected.send(0, 1, 2)
    connected.read(connected.answers(0, 0, 1, 0, 1, 2))
    assert (connected.owners[7].added, connected.owners[7].refused) == ([0, 1, 2], [])


@pytest.mark.parametrize("txn_id", [126, 16_382, 2**63 - 7])
def test_ids_may_get_a_digit_more_within_a_run(txn_id: int) -> None:
    connected = Connected()
    connected.send(*range(125, 131), txn_id=txn_id)
    connected.read(connected.answers(*range(125, 131)))
    assert connected.owners[7].added == list(range(125, 131))


def test_what_is_late_ends_once_and_its_answer_means_nothing_any_more() -> None:
    connected = Connected()
    connected.send(0, 1, 2, deadline=5.0)
    connected.send(3, 4, deadline=6.0)
    connected.read(connected.answer(0))
    assert [add[2] for add in connected.adds.take_late(5.0)] == [1, 2]
    connected.read(connected.answers(1, 2, 3))
    assert connected.owners[7].added == [0, 3]
    assert [add[2:] for add in connected.adds.take_all()] == [(4, 6.0, 5)]
    assert not connected.adds


def test_what_was_under_way_is_known_by_its_keys_whatever_was_sent_since() -> None:
    connected = Connected()
    connected.send(0, 1)
    keys = connected.adds.keys()
    connected.send(2, 3)
    connected.read(connected.answers(0, 2))
    assert connected.adds.waits_for(keys)
    assert [add[2] for add in connected.adds.take_these(keys)] == [1]
    assert not connected.adds.waits_for(keys)
    assert [add[2] for add in connected.adds.take_all()] == [3]


@pytest.mark.parametrize("seed", range(40))
def test_every_add_ends_once_in_any_order_and_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    connected = Connected()
    next_id = dict.fromkeys(LEDGERS, 0)
    frames: list[bytes] = []
    refused: set[tuple[int, int]] = set()
    for _ in range(30):
        ledger, count = rng.choice(LEDGERS), rng.randrange(1, 9)
        ids = range(next_id[ledger], next_id[ledger] + count)
        next_id[ledger] = ids.stop
        if rng.random() < 0.2:
            for entry_id in ids:
                connected.send_alone(entry_id, ledger=ledger)
        else:
            connected.send(*ids, ledger=ledger)
        for entry_id in ids:
            status = Status.EOK if rng.random() < 0.97 else Status.EIO
            if status is not Status.EOK:
                refused.add((ledger, entry_id))
            frames.append(connected.answer(entry_id, ledger=ledger, status=status))
    for _ in range(rng.choice((0, 3, 200))):  # in order; nearly so; or in none
        one, other = rng.randrange(len(frames)), rng.randrange(len(frames))
        frames[one], frames[other] = frames[other], frames[one]
    data = b"".join(frames)
    at = 0
    while at < len(data):
        size = rng.choice((1, 30, 200, 2_000))
        connected.read(data[at : at + size])
        at += size
    for ledger in LEDGERS:
        lost = {entry_id for of, entry_id in refused if of == ledger}
        assert sorted(connected.owners[ledger].added) == [n for n in range(next_id[ledger]) if n not in lost]
        assert sorted(connected.owners[ledger].refused) == sorted(lost)
    assert not connected.adds


def test_a_frame_that_only_begins_like_an_answer_is_cut_out() -> None:
    connected = Connected()
    connected.send(0)
    longer = connected.answer(0)[LENGTH_BYTES:] + b"\x98\x06\x01"
    assert connected.read((len(longer)).to_bytes(LENGTH_BYTES, "big") + longer) == 1


def steps_of(call: Callable[[], None]) -> int:
    """Call it, and return how many lines of the table's code were run for it: its work, without a clock."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace if frame.f_code.co_filename == add_runs.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def refusals(count: int) -> int:
    """Refuse so many adds, sent alone and in runs, each answer followed by a new run."""
    connected = Connected()
    for entry_id in range(count):
        connected.send_alone(entry_id)
    connected.send(*range(count, 2 * count))
    frames = [connected.answer(entry_id, status=Status.EIO) for entry_id in range(2 * count)]

    def refuse() -> None:
        for number, frame in enumerate(frames):
            connected.send(2 * number, 2 * number + 1, ledger=8)
            connected.read(frame)

    steps = steps_of(refuse)
    assert connected.owners[7].refused == list(range(2 * count))
    assert [add[2] for add in connected.adds.take_all()] == list(range(4 * count))
    return steps


def late_answers(count: int) -> int:
    """Hear EOKs of so many adds whose time is over, while others wait."""
    connected = Connected()
    connected.send(*range(count), deadline=5.0)
    late = connected.answers(*range(count))
    connected.send(*range(count, 2 * count))
    assert len(connected.adds.take_late(5.0)) == count

    def hear() -> None:
        connected.read(late)

    steps = steps_of(hear)
    connected.read(connected.answers(*range(count, 2 * count)))
    assert connected.owners[7].added == list(range(count, 2 * count))
    assert not connected.adds
    return steps


@pytest.mark.parametrize("answers", [refusals, late_answers])
def test_hundreds_of_other_answers_cost_no_more_each_than_a_few(answers: Callable[[int], int]) -> None:
    assert answers(500) < 12 * answers(50)


@pytest.mark.parametrize("alone", [False, True], ids=["of a run", "sent alone"])
def test_an_answer_that_names_no_entry_ends_the_add_with_its_transaction_id(alone: bool) -> None:
    connected = Connected()
    if alone:
        connected.send_alone(0)
        connected.send_alone(1)
    else:
        connected.send(0, 1)
    wrong = encode_add_response(connected.txn_ids[7, 1], Status.EIO, 0, 0)
    connected.read(wrong + wrong)
    connected.read(connected.answer(0))
    assert (connected.owners[7].added, connected.owners[7].refused) == ([0], [1])
    assert not connected.adds


class Failing(Owner):
    """Cannot take an acknowledgement."""

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        super().on_added(seat, entry_ids)
        raise RuntimeError("an owner's bug")


def test_an_owner_that_fails_keeps_no_acknowledgement_from_the_others() -> None:
    connected = Connected()
    connected.owners[7] = Failing()
    connected.send(0, 1)
    connected.send(5, ledger=8)
    data = connected.answers(0, 1) + connected.answer(5, ledger=8)
    with pytest.raises(RuntimeError, match="an owner's bug"):
        connected.read(data)
    connected.adds.pass_on()  # as a connection does when its link has ended
    assert connected.owners[7].calls == [[0, 1]]
    assert connected.owners[8].calls == [[5]]


# ------------------------------------------------------------------------------------ what leaves a writer


@virtual_time
async def test_what_is_added_in_a_turn_leaves_as_one_buffer_for_each_bookie() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 1)
        sent: list[list[Buffer]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelLink, "send", lambda link, *buffers: sent.append([*buffers]) or SEND(link, *buffers))
            futures = [writer.add(bytes([n]) * 100) for n in range(20)]
            assert not any(sent)
            assert [await future for future in futures] == list(range(1, 21))
        used = [buffers for buffers in sent if buffers]
        assert len(used) == 3
        assert len({id(buffer) for buffers in used for buffer in buffers}) == 1  # packaged and joined once
        await cluster.settle()
        for bookie in cluster.bookies.values():
            assert bookie.adds == list(range(21))
        await writer.close()


class Noted:
    """What leaves a client's links, and when."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[Buffer] = []

        def note(link: ModelLink, *buffers: Buffer) -> None:
            self.sent.extend(buffers)
            SEND(link, *buffers)

        patch.setattr(ModelLink, "send", note)

    def take(self) -> int:
        """Return how many buffers left since the last call."""
        count = len(self.sent)
        self.sent.clear()
        return count


@virtual_time
async def test_an_entry_behind_others_that_came_alone_is_sent_within_add_and_a_burst_is_not() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client()
        writer, other = await client.create(), await client.create()
        with pytest.MonkeyPatch.context() as patch:
            links = Noted(patch)
            for _ in range(LONE_ADDS):
                added = writer.add(b"alone")
                assert links.take() == 0, "others might join it"
                await added
                assert links.take() == 3
            added = writer.add(b"alone")
            assert links.take() == 3, "none has joined the last ones"
            futures = [writer.add(b"a"), writer.add(b"burst"), other.add(b"of two writers")]
            assert links.take() == 0, "one is under way"
            assert [await future for future in [added, *futures]] == [*range(LONE_ADDS, LONE_ADDS + 3), 0]
            assert links.take() == 6, "a run for each ledger and bookie"
            added = writer.add(b"alone again")
            assert links.take() == 0, "others have joined just now"
            await added
        await cluster.settle()
        for bookie in cluster.bookies.values():
            assert sorted(bookie.ledger(writer.ledger_id).entries) == list(range(LONE_ADDS + 4))
        await writer.close()
        await other.close()


@virtual_time
async def test_a_lone_entry_that_cannot_be_sent_ends_its_writer_and_no_other_one() -> None:
    async with ModelCluster(3) as cluster:
        client = cluster.client()
        writer, other = await client.create(), await client.create()
        for _ in range(LONE_ADDS):
            await writer.add(b"alone")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AddTemplate, "run", lambda *_: 1 // 0)
            added = writer.add(b"alone")
            with pytest.raises(InvariantViolation, match="cannot be packaged"):
                await added
        with pytest.raises(InvariantViolation, match="cannot be packaged"):
            writer.add(b"more")
        for n in range(2 * LONE_ADDS):
            assert await other.add(b"as ever") == n
        await other.close()


@virtual_time
async def test_a_lone_entry_is_sent_to_a_bookie_whose_connection_is_gone_as_well() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        for _ in range(LONE_ADDS):
            await writer.add(b"alone")
        await cluster.settle()
        for link in list(cluster.links):
            link.break_both()
        await cluster.settle()
        assert await writer.add(b"alone") == LONE_ADDS
        await cluster.settle()
        for bookie in cluster.bookies.values():
            assert sorted(bookie.ledger(writer.ledger_id).entries) == list(range(LONE_ADDS + 1))
        await writer.close()


@virtual_time
async def test_entries_that_go_to_different_bookies_reach_their_own_write_sets() -> None:
    async with ModelCluster(5) as cluster:
        writer = await cluster.client().create(ensemble_size=5, write_quorum=3, ack_quorum=2)
        assert [await one for one in [writer.add(bytes([n])) for n in range(50)]] == list(range(50))
        await cluster.settle()
        for index, name in enumerate(writer.metadata.last_ensemble.bookies):
            wanted = [n for n in range(50) if (index - n) % 5 < 3]
            assert sorted(cluster.bookies[name].ledger(writer.ledger_id).entries) == wanted
        await writer.close()


@virtual_time
async def test_a_large_entry_stays_behind_the_small_ones_before_it() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        sizes = (10, 10, 40_000, 10, 40_000, 40_000, 10)
        assert [await one for one in [writer.add(bytes(size)) for size in sizes]] == list(range(len(sizes)))
        await cluster.settle()
        for bookie in cluster.bookies.values():
            assert bookie.adds == list(range(len(sizes)))
        await writer.close()


@virtual_time
async def test_a_turn_may_add_more_than_a_run_holds() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        count = 2 * RUN_ENTRIES + 3
        assert [await one for one in [writer.add(b"x" * 300) for _ in range(count)]] == list(range(count))
        await writer.close()


@virtual_time
async def test_an_entry_is_sent_again_with_the_bytes_that_it_had() -> None:
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        await write(writer, 3)
        first = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        first.refuse_adds = Status.EIO
        futures = [writer.add(bytes([n]) * 9) for n in range(30)]
        assert [await one for one in futures] == list(range(3, 33))
        await cluster.settle()
        found = [cluster.bookies[name].ledger(writer.ledger_id) for name in writer.metadata.last_ensemble.bookies]
        assert first.name not in writer.metadata.last_ensemble.bookies
        for entry_id in range(3, 33):
            assert len({bytes(ledger.entries[entry_id]) for ledger in found}) == 1  # one value for one position (I3)
        await writer.close()


@virtual_time
async def test_a_payload_that_is_gone_before_it_is_sent_fails_its_writer_in_words() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        view = memoryview(bytearray(b"payload"))
        kept, lost = writer.add(b"good"), writer.add(view)
        view.release()
        for future in (kept, lost):
            with pytest.raises(InvariantViolation, match=r"an entry cannot be packaged: ValueError.*it was not sent"):
                await future


def emptied(payload: bytearray) -> None:
    payload.clear()


def grown(payload: bytearray) -> None:
    payload += b"more"


@pytest.mark.parametrize("change", [emptied, grown])
@virtual_time
async def test_a_payload_whose_size_changes_before_it_is_sent_ends_its_writer_alone(
    change: Callable[[bytearray], None],
) -> None:
    for used in (None, compiled.core):
        async with ModelCluster(3) as cluster:
            with running_on(used):
                client = cluster.client()
                writer, other = await client.create(), await client.create()
                payload = bytearray(100)
                lost, kept = writer.add(payload), [other.add(b"kept") for _ in range(3)]
                change(payload)
                with pytest.raises(InvariantViolation, match=r"entry 0 had 100 bytes when it was added, and has "):
                    await lost
                assert [await one for one in kept] == [0, 1, 2]  # on the same connections
                assert (await other.close()).last_entry == 2


@virtual_time
async def test_a_payload_whose_size_changes_before_it_is_sent_again_ends_its_writer_alone() -> None:
    async with ModelCluster(4) as cluster:
        client = cluster.client()
        writer, other = await client.create(), await client.create()
        await write(writer, 3)
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].refuse_adds = Status.EIO
        for bookie in writer.metadata.last_ensemble.bookies[1:]:
            cluster.bookies[bookie].silent = True
        payload = bytearray(40_000)
        lost = writer.add(payload)
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, payload.clear)
        with pytest.raises(InvariantViolation, match=r"cannot be sent again: .*had 40000 bytes .*, and has 0 now"):
            await lost
        for bookie in cluster.bookies.values():
            bookie.silent, bookie.refuse_adds = False, None
        assert await write(other, 3) == [0, 1, 2]


@virtual_time
async def test_a_large_entry_behind_one_that_cannot_be_packaged_ends_with_its_writer() -> None:
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        view = memoryview(bytearray(b"payload"))
        small = writer.add(view)
        view.release()
        large = writer.add(bytes(40_000))
        for future in (small, large):
            with pytest.raises(InvariantViolation, match="an entry cannot be packaged"):
                await asyncio.wait_for(future, 600)
        await cluster.settle()
        assert not any(bookie.adds for bookie in cluster.bookies.values())
        assert writer.outstanding_bytes == 0


@virtual_time
async def test_what_was_decided_before_a_writer_ended_is_not_carried_out() -> None:
    """An entry is sent again, which a payload of the same turn keeps from, and another one acknowledged."""
    async with ModelCluster(4) as cluster:
        writer = await cluster.client().create()
        kept = writer.add(b"kept")
        await asyncio.sleep(0)
        view = memoryview(bytearray(b"payload"))
        lost = writer.add(view)
        view.release()
        writer._run((Resend(0, writer.machine.seats), Acknowledged(0, 0), Send(1, -1, 11, writer.machine.seats)))
        for future in (kept, lost):
            with pytest.raises(InvariantViolation, match="an entry cannot be packaged"):
                await asyncio.wait_for(future, 600)


@virtual_time
async def test_a_recovery_that_is_cut_short_leaves_no_adds_under_way() -> None:
    """They would keep every later add of this client to the end of its turn."""
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await write(writer, 20)
        client = cluster.client()
        pool = client._use().pool
        opening = asyncio.ensure_future(client.open(writer.ledger_id, recover=True))
        await until(lambda: pool.adds_under_way > 0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert pool.adds_under_way == 0
        other = await client.create()
        for _ in range(LONE_ADDS + 1):
            await other.add(b"alone")
        assert (pool.adds_under_way, pool.lone_adds) == (0, LONE_ADDS)
