"""Damaged frames, handshakes and tokens at a secured node and proxy: nothing is heard, nothing breaks.

A round has 1,000: 400 frames at a node's gate, 400 at a proxy's door, 150 handshakes, 50 tokens. A few in the ordinary
run; a million with `-m torture --rounds 1000`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from pathlib import Path

import pytest
from helpers.security.fuzzing import Fuzzed, Handshakes, NodeGate, ProxyDoor, Tokens, shut_node

SHARES = {"node": 400, "proxy": 400, "handshakes": 150, "tokens": 50}


async def fuzz(folder: Path, seed: int, rounds: int, caplog: pytest.LogCaptureFixture) -> dict[str, Fuzzed]:
    """Do so many rounds; a seed makes the same ones again."""
    r = random.Random(seed)
    async with shut_node(folder) as bookie:
        gate, door = NodeGate(bookie, r), ProxyDoor(folder, r)
        shaken, tokens = Handshakes(folder, r), Tokens(folder, r)
        for number in range(rounds):
            for victim, share in zip((gate, door, shaken, tokens), SHARES.values(), strict=True):
                until = victim.sent + share
                while victim.sent < until:
                    victim.one()
            await asyncio.sleep(0)
            errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert errors == [], f"an error of our own in round {number} of seed {seed}"
            caplog.clear()
        assert not bookie.storage.ledgers
        gate.end()
        door.end()
    return dict(zip(SHARES, (gate, door, shaken, tokens), strict=True))


async def test_nothing_damaged_is_heard(tmp_path: Path, seed: int | None, caplog: pytest.LogCaptureFixture) -> None:
    done = await fuzz(tmp_path, seed or 1, 1, caplog)
    assert all(one.refused > one.sent / 50 for one in done.values()), {name: vars(one) for name, one in done.items()}


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(14_400)
async def test_nothing_damaged_is_heard_of_a_million(
    tmp_path: Path, rounds: int | None, seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    chosen = seed or int.from_bytes(os.urandom(4), "big")
    print(f"seed {chosen}")
    began = time.monotonic()
    done = await fuzz(tmp_path, chosen, rounds or 1, caplog)
    sent = sum(one.sent for one in done.values())
    each = ", ".join(f"{name} {one.sent} ({one.refused} refused)" for name, one in done.items())
    print(f"{sent} in {time.monotonic() - began:.0f} s: {each}")
