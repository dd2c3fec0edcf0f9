"""Thin clients of the rounds with proxies in regions: a writer and a reader, each in a region by its environment.

They know the namespace's URI alone, find the proxies there, and reach other regions by way of their own one's gateway.
Lines on standard output are those of `region_clients`; a writer says `ready` before its first record.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.client.client import AsyncClient
from helpers.faults.record_writer import payload_of, say
from metadata.foundation.errors import DistributedLogError, OutcomeUnknownError
from metadata.foundation.tasks import end_tasks

DEPTH = 32
PAUSE_S = 0.005


def write(environment: dict[str, str], uri: str, log: str, settings: dict[str, Any]) -> int:
    """Write numbered records through proxies until standard input ends; each then has its outcome."""
    os.environ.update(environment)
    asyncio.run(_write(uri, log, settings))
    return 0


def read(environment: dict[str, str], uri: str, log: str, settings: dict[str, Any]) -> int:
    """Follow a log through proxies until standard input ends."""
    os.environ.update(environment)
    asyncio.run(_until_input_ends(lambda: _read(uri, log, settings)))
    return 0


def number_of(payload: bytes) -> int:
    """Return the number that a payload tells (`record_writer.payload_of`)."""
    return int(payload.split(b" ", 2)[1])


async def _write(uri: str, log: str, settings: dict[str, Any]) -> None:
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    room = asyncio.Semaphore(DEPTH)

    def ended(number: int, future: asyncio.Future[DLSN]) -> None:
        room.release()
        error = future.exception()
        if error is None:
            say(f"ok {number} {future.result()} {time.monotonic()}")
        else:
            say(f"{'unknown' if isinstance(error, OutcomeUnknownError) else 'failed'} {number} {error!r}")

    async with await AsyncClient.connect(uri, settings) as client:
        producer, number = client.producer(log), 0
        say("ready")
        while not told.done():
            await room.acquire()
            producer.send(payload_of(number)).add_done_callback(partial(ended, number))
            number += 1
            await asyncio.sleep(PAUSE_S)
        for _ in range(DEPTH):
            await room.acquire()


async def _read(uri: str, log: str, settings: dict[str, Any]) -> None:
    async with await AsyncClient.connect(uri, settings) as client, client.reader(log) as reader:
        say("follows")
        while True:
            payload = (await reader.read_next()).payload
            number = number_of(payload)
            assert payload == payload_of(number)
            say(f"saw {number} {time.monotonic()}")


async def _until_input_ends(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    working = asyncio.ensure_future(work())
    await asyncio.wait([told, working], return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        try:
            working.result()
        except DistributedLogError as error:
            say(f"broke {error!r}")
    await end_tasks([working])
    await told
