"""Frames of both protocols, damaged with knowledge of their structure, into decoders and a live connection.

20,000 inputs a round: one in the ordinary run; fifty, a million, with `-m torture --rounds 50`.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.bookie.damaged_frames import REQUESTS, RESPONSES, body
from helpers.bookie.fuzzed_connection import Victim
from helpers.bookie.harness import KEY as HARNESS_KEY
from helpers.bookie.harness import BookieCluster, entry

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore
from storage_node.errors import ProtocolError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request, decode_response
from storage_node.protocol.frames import ChunkPool, FrameBuffer
from storage_node.protocol.layouts import decode_add_and_answer

INPUTS = 20_000
GROWTH_BYTES = 64 * 1024 * 1024
"""More memory than this must not stay behind, whatever the number of inputs."""
SLOWEST_S = 0.5
DECODERS: tuple[Callable[[memoryview], object], ...] = (
    decode_request,
    decode_response,
    decode_add_and_answer,
    v2.decode_request,
    v2.decode_response,
    v2.add_and_answer,
)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def decode_everywhere(data: bytes) -> float:
    """Into all decoders: an answer or ProtocolError. Returns the time that took."""
    began = time.thread_time()
    for decode in DECODERS:
        try:
            decode(memoryview(data))
        except ProtocolError:
            pass
    return time.thread_time() - began


def cut_stream(r: random.Random, bodies: list[bytes]) -> None:
    """The same bodies as a stream, received in pieces of any size, some lengths wrong."""
    stream = b"".join(
        (r.choice((0, -1, 5 << 20, 2**31 - 1)) if r.random() < 0.01 else len(one)).to_bytes(4, "big", signed=True) + one
        for one in bodies
        if one
    )
    buffer = FrameBuffer(ChunkPool(keep=r.choice((0, 16))))
    try:
        while stream:
            space = buffer.writable()
            take = min(len(space), len(stream), r.randrange(1, 3000))
            space[:take] = stream[:take]
            space.release()
            buffer.advance(take)
            buffer.rewind()
            stream = stream[take:]
    except ProtocolError:
        pass
    assert buffer.held_bytes <= 6 << 20
    buffer.close()


async def attack(tmp_path: Path, seed: int, inputs: int) -> dict[str, object]:
    """All inputs of some rounds; what was seen."""
    r = random.Random(seed)
    cluster = BookieCluster(tmp_path)
    store = MemoryStore(cluster.tree)
    await LedgerStore(store).format()
    bookie = await cluster.start(log_size_limit=64 << 20, flush_interval_ms=500)
    victim = Victim(bookie)
    slowest = 0.0
    before = resident_bytes()
    began = time.perf_counter()
    for done in range(0, inputs, 500):
        requests = [body(r, REQUESTS) for _ in range(450)] + [body(r, RESPONSES) for _ in range(50)]
        cut_stream(r, requests[:50])
        for number, data in enumerate(requests):
            slowest = max(slowest, decode_everywhere(data))
            victim.feed(data)
            if number % 50 == 49:
                await victim.settle()
        if done % 5000 == 0:
            victim.hang_up()
    seconds = time.perf_counter() - began
    await victim.settle()
    victim.hang_up()
    growth = resident_bytes() - before
    client = await cluster.connect(bookie)
    assert (await client.add(entry(0x2F3A77C10B5D913, 0), key=HARNESS_KEY)).name == "EOK", "the node serves on"
    ledgers = len(bookie.storage.ledgers)
    await cluster.close()
    await store.close()
    return {
        "seconds": seconds,
        "slowest": max(slowest, victim.slowest_s),
        "growth": growth,
        "closed": victim.closed,
        "answers": victim.answers,
        "ledgers": ledgers,
    }


def judge(seen: dict[str, object], inputs: int) -> None:
    assert float(str(seen["slowest"])) < SLOWEST_S, "one input held the loop"
    assert int(str(seen["growth"])) < GROWTH_BYTES, f"memory grew: {seen}"
    assert int(str(seen["answers"])) > inputs / 10, "the node answered what could be answered"
    assert int(str(seen["closed"])) > inputs / 50, "and closed what could not"


async def test_twenty_thousand_damaged_frames_break_neither_decoders_nor_a_live_connection(
    tmp_path: Path, seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    judge(await attack(tmp_path, seed or 1, INPUTS), INPUTS)
    assert caplog.records == [], "an error of the node's own, hidden behind a closed connection"


@pytest.mark.torture
@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_damaged_frames_by_the_million(
    tmp_path: Path, rounds: int | None, seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    inputs = INPUTS * (rounds or 1)
    seen = await attack(tmp_path, (seed or int.from_bytes(os.urandom(4), "big")), inputs)
    print(f"{inputs} inputs: {seen}")
    judge(seen, inputs)
    assert caplog.records == []
