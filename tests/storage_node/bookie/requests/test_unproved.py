"""Which connections go first that have proved nothing yet: by number, and by time."""

from __future__ import annotations

import asyncio

import pytest
from helpers.waiting import until

from storage_node.bookie.requests import unproved
from storage_node.bookie.requests.unproved import Unproved


class Gate:
    """A connection that has something to prove."""

    def __init__(self, waiting: Unproved, *, unread: bool = False) -> None:
        self.reasons: list[str] = []
        self.unread = unread
        self.asked = 0
        waiting.came(self)

    def has_more(self) -> bool:
        self.asked += 1
        return self.unread

    def turn_out(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture(name="few")
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unproved, "MAX_NEWCOMERS", 4)


@pytest.mark.usefixtures("few")
async def test_those_that_have_begun_no_proof_go_first_where_they_are_many_else_the_oldest() -> None:
    waiting = Unproved(3600.0)
    gates = [Gate(waiting) for _ in range(4)]
    waiting.began(gates[0])
    waiting.began(gates[2])
    gates.append(Gate(waiting))
    assert _turned_out(gates) == [1], "the oldest silent one, not the oldest"
    waiting.began(gates[3])
    gates.append(Gate(waiting))
    assert _turned_out(gates) == [0, 1], "three of four have begun: the oldest, not the one that has just come"
    gates.append(Gate(waiting))
    assert _turned_out(gates) == [0, 1, 4]
    assert len(waiting) == 4
    assert gates[1].reasons == ["it has proved nothing yet, and others wait to"]
    for gate in gates:
        waiting.left(gate)
    waiting.began(gates[6])  # it has left: nothing is kept of it
    assert not len(waiting)
    assert not waiting._silent


def _turned_out(gates: list[Gate]) -> list[int]:
    return [number for number, gate in enumerate(gates) if gate.reasons]


async def test_whose_bytes_were_not_read_yet_has_a_moment_more_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unproved, "GRACE_S", 3600.0)
    waiting = Unproved(0.0)
    idle, busy, proves = Gate(waiting), Gate(waiting, unread=True), Gate(waiting, unread=True)
    await until(lambda: idle.reasons and busy.asked and proves.asked, every_s=0)
    assert idle.reasons == ["the client has not proved itself within 0 s"]
    assert busy.reasons == proves.reasons == []
    waiting.left(proves)  # what had come was its proof
    timer = waiting._waiting[busy]
    assert timer.when() > asyncio.get_running_loop().time()
    timer._run()  # its moment is over, and bytes still wait
    timer.cancel()
    assert len(busy.reasons) == 1
    assert proves.reasons == []
    assert not len(waiting)
