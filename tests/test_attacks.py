"""Attacks on a secured storage node, a proxy's frames and gRPC, and an HTTPS page: each is refused, stands in the audit
trail, and touches nobody else. docs/security/attacks.md is the table of these and of all the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from helpers.security.attack_kinds import HANDSHAKES, PIECES, handshake, pieces
from helpers.security.attacked import DOORS, Attacked, node_refuses
from helpers.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(name="attacked", scope="module", loop_scope="module")
async def _attacked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Attacked]:
    made = Attacked(tmp_path_factory.mktemp("attacked"))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture(name="world")
def _world(attacked: Attacked) -> Attacked:
    """The same servers for all, with nothing noted yet."""
    attacked.forget()
    return attacked


async def test_who_proves_itself_is_heard_at_every_door(world: Attacked) -> None:
    """Without it, servers that are down would pass every test here."""
    good = world.context(world.authority.issue("honest", roles=["client"]))
    for door in DOORS:
        assert await asyncio.to_thread(world.heard, door, good), door
        await world.unaffected(door)
    assert world.refusals() == []


@pytest.mark.parametrize(
    ("kind", "door"),
    [
        (kind, door)
        for kind in HANDSHAKES
        for door in DOORS
        if (kind, door) != ("revoked", "gRPC")  # which knows no lists: it is refused call by call, as below
    ],
)
async def test_who_does_not_prove_itself_is_not_heard(kind: str, door: str, world: Attacked) -> None:
    context, reason = await handshake(world, kind)
    attack = asyncio.create_task(asyncio.to_thread(world.heard, door, context))
    await world.unaffected(door)
    assert not await attack
    await world.unaffected(door)
    await refused(world, door, reason)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", PIECES)
async def test_what_is_no_handshake_is_not_heard(kind: str, door: str, world: Attacked) -> None:
    data, plain = pieces(world, kind, door)
    attack = asyncio.create_task(asyncio.to_thread(world.thrown, door, data, plain=plain))
    await world.unaffected(door)
    answer = await attack
    plain_node = plain and door == "node"
    assert node_refuses(answer) if plain_node else is_of_tls(answer), answer
    await world.unaffected(door)
    await refused(world, door, "not secured" if plain_node else "")


async def refused(world: Attacked, door: str, reason: str) -> None:
    """Wait until the trail says so; gRPC makes its handshakes itself, and tells nobody of those that fail."""
    if door == "gRPC":
        return
    await until(world.refusals, every_s=0.02)
    assert reason in str(world.refusals()[0]["reason"])


def is_of_tls(answer: bytes) -> bool:
    """Return whether an answer is records of handshakes and alerts alone, as far as can be seen."""
    while answer:
        if answer[0] not in (0x14, 0x15, 0x16, 0x17):
            return False
        answer = answer[5 + int.from_bytes(answer[3:5], "big") :]
    return True
