"""The checkers of fleets see what they are for: each is shown one wrong history, and one right one beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import ProducerFencedError
from dlspark.serving.protocol.operations import ProducerStamp, Refusal, StatusCode, WriteReceipt, WriteRecords
from metadata.foundation.errors import NotAppliedError
from simulation.checkers.conditions import ConditionCheckers
from simulation.checkers.history import OperationOutcome
from simulation.checkers.ledgers import ViolationError
from simulation.checkers.logs import SeenRecord, WriterSession
from simulation.checkers.proxies import ProxyCheckers
from simulation.cluster import ClientMachine, World
from simulation.environment.loop import Process
from simulation.workloads.programs import Workload


@pytest.fixture
def world() -> Iterator[World]:
    made = World("checkers")
    yield made
    made.loop.finish()


def seen(*payloads: bytes) -> list[SeenRecord]:
    """A log that holds these."""
    return [SeenRecord(DLSN(1, number, 0), number, one, number) for number, one in enumerate(payloads)]


def stamped(payload: bytes, epoch: int, sequence: int) -> WriteRecords:
    return WriteRecords("log", (payload,), atomic=True, stamp=ProducerStamp("name", epoch, sequence))


# ---------------------------------------------------------------------------------------- order


def test_a_request_is_acknowledged_when_an_answer_says_so_and_not_when_an_attempt_before_failed(world: World) -> None:
    checkers = world.log_checkers
    session = WriterSession("log", "client", Process("host", "client"), 1)
    again = checkers.written(session, 1, b"again")
    checkers.judged(again, OperationOutcome.FAILED, NotAppliedError("it was not sent"))
    before = checkers.written(session, 2, b"before")
    checkers.written_again(again, session)
    checkers.confirmed(again, DLSN(1, 1, 0))
    checkers._check_order("log", seen(b"before", b"again"), [before, again])
    late = checkers.written(session, 3, b"late")
    with pytest.raises(ViolationError, match="I4"):
        checkers._check_order("log", seen(b"late", b"again"), [late, again])


# ---------------------------------------------------------------------------------------- conditions


def test_a_record_stands_right_behind_the_position_that_it_required(world: World) -> None:
    checkers = ConditionCheckers(world, world.ledger_checkers)
    checkers.append_sent(b"second", DLSN(1, 0, 0), None)
    checkers.append_sent(b"third", 2, None)
    checkers.final("log", seen(b"first", b"second", b"third"))
    with pytest.raises(ViolationError, match="required position"):
        checkers.final("log", seen(b"first", b"between", b"second"))
    with pytest.raises(ViolationError, match="required position"):
        checkers.final("log", seen(b"first", b"third"))


def test_nothing_with_an_old_token_stands_behind_a_record_with_a_later_one(world: World) -> None:
    checkers = ConditionCheckers(world, world.ledger_checkers)
    for token, before in ((b"a", b""), (b"b", b"a"), (b"c", b"b"), (b"other", b"a")):
        checkers.token_sent(token, before)
        checkers.append_sent(b"with-" + token, None, token)
    checkers.final("log", seen(b"with-a", b"without", b"with-b", b"with-c"))
    checkers.final("log", seen(b"with-a", b"with-c"))
    for wrong in (seen(b"with-b", b"with-a"), seen(b"with-c", b"with-a"), seen(b"with-b", b"with-other")):
        with pytest.raises(ViolationError, match="required token"):
            checkers.final("log", wrong)


# ---------------------------------------------------------------------------------------- producers


def test_records_of_a_name_go_by_epoch_and_number(world: World) -> None:
    process = world.loop.process("p0", "p0#1")
    checkers = ProxyCheckers(world, world.ledger_checkers)
    for request in (stamped(b"old", 1, 7), stamped(b"first", 2, 0), stamped(b"next", 2, 1)):
        checkers.asked(process, "client", request)
    checkers.final("log", seen(b"old", b"first", b"next"))
    for wrong in (seen(b"first", b"old"), seen(b"next", b"first")):
        with pytest.raises(ViolationError, match="behind ProducerStamp"):
            checkers.final("log", wrong)


def test_a_record_that_was_sent_under_two_numbers_shows_no_order(world: World) -> None:
    process = world.loop.process("p0", "p0#1")
    checkers = ProxyCheckers(world, world.ledger_checkers)
    for request in (stamped(b"old", 1, 7), stamped(b"old", 2, 1), stamped(b"new", 2, 0)):
        checkers.asked(process, "client", request)
    checkers.final("log", seen(b"new", b"old"))


def test_a_proxy_that_begins_a_request_before_an_earlier_one_of_the_same_caller_is_noticed(world: World) -> None:
    process = world.loop.process("p0", "p0#1")
    first, second = stamped(b"first", 1, 0), stamped(b"second", 1, 1)
    gap = Refusal(StatusCode.TRANSACTION_OUT_OF_ORDER, "", error="SequenceGapError", actual=0)

    def begun() -> tuple[ProxyCheckers, int, int]:
        checkers = ProxyCheckers(world, world.ledger_checkers)
        return checkers, checkers.asked(process, "client", first), checkers.asked(process, "client", second)

    checkers, _, late = begun()
    with pytest.raises(ViolationError, match="begins"):
        checkers.answered(process, "client", second, late, gap)
    checkers, early, late = begun()
    checkers.answered(process, "client", first, early, Refusal(StatusCode.FOUND, "", location="p1:8000"))
    checkers.answered(process, "client", second, late, gap)
    checkers, _, late = begun()
    checkers.answered(process, "another", second, checkers.asked(process, "another", second), gap)


def test_a_copy_of_a_request_that_came_before_what_it_follows_may_be_refused_for_that(world: World) -> None:
    """Whichever of the copies is answered first: a later one may be refused at once, for lack of room."""
    process = world.loop.process("p0", "p0#1")
    first, second = stamped(b"first", 1, 0), stamped(b"second", 1, 1)
    gap = Refusal(StatusCode.TRANSACTION_OUT_OF_ORDER, "", error="SequenceGapError", actual=0)
    checkers = ProxyCheckers(world, world.ledger_checkers)
    two, three, _, late, last = (
        checkers.asked(process, "client", request) for request in (second, second, first, second, second)
    )
    checkers.answered(process, "client", second, late, Refusal(StatusCode.OVER_CAPACITY, ""))
    checkers.answered(process, "client", second, two, gap)
    checkers.answered(process, "client", second, three, gap)
    with pytest.raises(ViolationError, match="begins"):
        checkers.answered(process, "client", second, last, gap)


def test_an_answer_to_a_request_that_came_again_counts_as_no_acknowledgement_of_its_owner(world: World) -> None:
    process = world.loop.process("p0", "p0#1")
    checkers = ProxyCheckers(world, world.ledger_checkers)
    request = stamped(b"one", 1, 0)
    number = checkers.asked(process, "client", request)
    checkers.answered(process, "client", request, number, WriteReceipt(DLSN(1, 0, 0), 1, repeated=True))
    assert checkers.owners() == []
    assert world.points["producer.repeated"] == 1


# ---------------------------------------------------------------------------------------- processes taken for dead


def test_a_client_that_was_taken_for_dead_goes_on_beside_its_successor(world: World) -> None:
    client = ClientMachine(world, "c0", world.add_client("other").settings)
    ran: list[str] = []

    async def run(name: str) -> None:
        while True:
            ran.append(name)
            await asyncio.sleep(1)

    async def main() -> None:
        client.start()
        client.spawn(run("first"))
        await asyncio.sleep(1.5)
        old = client.disown()
        assert old is not None
        assert client.ended.done()
        client.start()
        client.spawn(run("second"))
        await asyncio.sleep(1.5)
        assert ran == ["first", "first", "second", "second"]
        world.loop.resume(old)
        await asyncio.sleep(1)
        assert ran[-2:] in (["first", "second"], ["second", "first"])

    world.run(main())


def test_the_program_of_a_replaced_process_begins_nothing_more(world: World) -> None:
    workload = Workload(world)
    client = ClientMachine(world, "c0", world.add_client("other").settings)
    found: list[bool] = []

    async def look() -> None:
        found.append(workload.goes_on(client))
        await asyncio.sleep(1)
        found.append(workload.goes_on(client))

    async def main() -> None:
        client.start()
        client.spawn(look())
        await asyncio.sleep(0.5)
        old = client.disown()
        client.start()
        assert old is not None
        world.loop.resume(old)
        await asyncio.sleep(1)

    world.run(main())
    assert found == [True, False]


def test_only_a_process_that_was_replaced_may_be_fenced_by_its_own_name(world: World) -> None:
    checkers = ProxyCheckers(world, world.ledger_checkers)
    client = world.add_client("c0")

    def refused() -> None:
        sender = checkers.sender(world.log_checkers.session("log", client), ordered=True)
        checkers.refused(checkers.sent(sender, b"one"), ProducerFencedError("fenced"))

    client.start()
    assert client.process is not None
    with pytest.raises(ViolationError, match="the only one of its name"):
        refused()
    checkers.replaced.add(client.process)
    refused()
