"""What runs on the hosts of the serving tier's fault tests: write proxies as in production, and thin clients.

Functions to be run by a `ForkServer`. A proxy prints one line when it serves; the line `expire` on its standard input
ends its session with ZooKeeper, and the end of its input ends it as SIGTERM does.

Clients obey lines of standard input. `go` lets them write; `settle` lets them stop, wait until every record has its
outcome, and print these as one line of JSON, a list of `[log, writer, number, sent at, done at, outcome, text]`; the
outcome is `ok` (the text is the DLSN), `failed` or `unknown`. Times are those of `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import new_event_loop
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.process.run import serve
from dlspark.serving.write_proxy.__main__ import NAME
from dlspark.serving.write_proxy.proxy import ProxyRole, WriteProxy
from dlspark.serving.write_proxy.settings import read_configuration
from helpers.faults.fault_client import outcome
from helpers.faults.hosts import Route, RoutedNetwork
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.settings import Value
from metadata.zookeeper.securing import open_session

EXPIRE = "expire"
GO = "go"
SETTLE = "settle"
_STARTED_S = 30.0


def payload_of(writer: str, number: int) -> bytes:
    """Return a record's payload: which client wrote it, and its number among that client's records of this log."""
    return f"{writer} {number}".encode()


def parts_of(payload: bytes) -> tuple[str, int]:
    """Return the writer and the number in a payload."""
    writer, _, number = payload.decode().rpartition(" ")
    return writer, int(number)


# ---------------------------------------------------------------------- a proxy


def write_proxy(
    name: str, zookeeper: str, namespace: str, settings: Mapping[str, Value], routes: Sequence[Route], log: str
) -> int:
    """Run a write proxy; returns its exit status."""
    logging.basicConfig(
        level=logging.INFO, filename=log, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_run_proxy(zookeeper, namespace, settings, routes))
    except DistributedLogError as error:
        logging.critical("%s", error)
    except OSError as error:
        logging.critical("the proxy cannot go on: %s", error)
    return 1


async def _run_proxy(zookeeper: str, namespace: str, settings: Mapping[str, Value], routes: Sequence[Route]) -> int:
    configuration = read_configuration(None, settings, {})
    session_ms = configuration.logs.zk_session_timeout_s * 1000
    store = await open_session(zookeeper, configuration.logs.client_settings().security, session_timeout_ms=session_ms)
    logs = await AsyncNamespace.over(store, namespace, configuration.logs, network=RoutedNetwork(routes), own=(store,))
    ending: set[asyncio.Task[None]] = set()

    def expire() -> None:
        task = asyncio.ensure_future(store.end_session(store.session_token))
        ending.add(task)
        task.add_done_callback(ending.discard)

    def obey(line: str) -> None:
        if line == EXPIRE:
            expire()
        else:
            raise ValueError(f"unknown command {line!r}")

    _listen(obey, lambda: os.kill(os.getpid(), signal.SIGTERM))
    return await serve(WriteProxy(None, configuration, ProxyRole(), namespace=logs), NAME)


# ---------------------------------------------------------------------- clients


class Writers:
    """One client and the logs that it writes, in turn."""

    def __init__(self, client: AsyncClient, name: str, logs: Sequence[str], pause_s: float, rng: random.Random) -> None:
        self.name = name
        self.outcomes: list[list[object]] = []
        self._client = client
        self._logs = list(logs)
        rng.shuffle(self._logs)
        self._pause_s = pause_s
        self._rng = rng
        self._numbers = dict.fromkeys(logs, 0)
        self._waiting: set[asyncio.Future[DLSN]] = set()

    async def write(self, going: asyncio.Event) -> None:
        """Write at this client's pace, as long as `going` is set."""
        turn = 0
        while True:
            await going.wait()
            self._send(self._logs[turn % len(self._logs)])
            turn += 1
            await asyncio.sleep(self._pause_s * self._rng.uniform(0.5, 1.5))

    def _send(self, log: str) -> None:
        self._numbers[log] += 1
        number, began = self._numbers[log], time.monotonic()
        try:
            future = self._client.producer(log).send(payload_of(self.name, number))
        except DistributedLogError as error:
            self._keep(log, number, began, outcome(error), f"{type(error).__name__}: {error}")
            return
        self._waiting.add(future)

        def done(future: asyncio.Future[DLSN]) -> None:
            self._waiting.discard(future)
            error = future.exception()
            if error is None:
                self._keep(log, number, began, "ok", str(future.result()))
            else:
                self._keep(log, number, began, outcome(error), f"{type(error).__name__}: {error}")

        future.add_done_callback(done)

    def _keep(self, log: str, number: int, began: float, said: str, text: str) -> None:
        self.outcomes.append([log, self.name, number, began, time.monotonic(), said, text])

    async def settled(self) -> list[list[object]]:
        """Return every outcome since the last time, once all records have theirs."""
        while self._waiting:
            await asyncio.wait(set(self._waiting))
        await asyncio.sleep(0)
        outcomes, self.outcomes = self.outcomes, []
        return outcomes


def clients(
    name: str,
    seed: int,
    proxies: Sequence[str],
    routes: Sequence[Route],
    writers: Sequence[tuple[str, bool, Sequence[str]]],
    settings: Mapping[str, Value],
    pause_s: float,
) -> int:
    """Run clients, each with its name, whether it has producers, and its logs, until standard input ends."""
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(_run_clients(seed, proxies, routes, writers, settings, pause_s))
    return 0


async def _run_clients(
    seed: int,
    proxies: Sequence[str],
    routes: Sequence[Route],
    writers: Sequence[tuple[str, bool, Sequence[str]]],
    settings: Mapping[str, Value],
    pause_s: float,
) -> None:
    rng, network = random.Random(seed), RoutedNetwork(routes)
    going, commands = asyncio.Event(), asyncio.Queue[str]()
    loop = asyncio.get_running_loop()
    made: list[Writers] = []
    opened: list[AsyncClient] = []
    for name, idempotent, logs in writers:
        values = {**settings, "idempotentProducer": idempotent, "clientId": name}
        opened.append(await AsyncClient.connect(",".join(proxies), values, network=network))
        made.append(Writers(opened[-1], name, logs, pause_s, random.Random(rng.random())))
    tasks = [loop.create_task(one.write(going)) for one in made]
    _listen(commands.put_nowait, lambda: commands.put_nowait(""), loop)
    print("ready", flush=True)
    while command := await commands.get():
        if command == GO:
            going.set()
        elif command == SETTLE:
            going.clear()
            settled = await asyncio.gather(*(one.settled() for one in made))
            broken = [task.exception() for task in tasks if task.done()]
            if broken:
                raise CallerError(f"a client broke: {broken}")
            print(json.dumps([outcome for outcomes in settled for outcome in outcomes]), flush=True)
        else:
            raise ValueError(f"unknown command {command!r}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.wait([loop.create_task(one.close()) for one in opened], timeout=_STARTED_S)


def _listen(
    obey: Callable[[str], None], end: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
) -> None:
    """Hand every line of standard input, and its end, to the loop."""
    running = loop or asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            running.call_soon_threadsafe(obey, line.rstrip("\n"))
        running.call_soon_threadsafe(end)

    threading.Thread(target=listen, name="commands", daemon=True).start()
