"""A `FaultProxy` in a process of its own: for clients that keep Python's lock while they wait for an answer.

deltalake 1.6 does so when it reads a table's history: a proxy in a thread of the same process could not answer it.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from helpers.cold.fault_proxy import FaultPlan, HttpFault, running_proxy


class ProxyProcess:
    """A proxy that runs in another process, over a pipe to it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.endpoint: str = pipe.recv()

    def stop_faults(self) -> None:
        """Let everything through from now on, and have everything that is late reach the server."""
        self._pipe.send("stop")
        self._pipe.recv()

    def met(self) -> Counter[HttpFault]:
        """Return how often each fault was met."""
        self._pipe.send("met")
        found: Counter[HttpFault] = self._pipe.recv()
        return found


@contextmanager
def proxy_process(upstream: str, plan: FaultPlan) -> Iterator[ProxyProcess]:
    """Run a proxy before a server for the length of a block."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(theirs, upstream, plan), daemon=True)
    process.start()
    theirs.close()
    try:
        with ours:
            yield ProxyProcess(ours)
    finally:
        # The end of the pipe is its sign.
        process.join()
        process.close()


def _serve(pipe: Connection, upstream: str, plan: FaultPlan) -> None:
    with running_proxy(upstream, plan) as proxy:
        pipe.send(proxy.endpoint)
        while True:
            try:
                word = pipe.recv()
            except EOFError:
                return
            if word == "stop":
                plan.stop()
                proxy.settle()
            pipe.send(plan.met)
