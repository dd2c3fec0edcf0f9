"""The life of any proxy's process: `run` from its start until a signal ends it, `run_program` around that.

It prints one line when the proxy serves, "<name> <location> serves", and nothing else; the log goes to standard error.

| what comes | what follows |
|---|---|
| the first SIGTERM or SIGINT | the proxy ends in order (`stop`) |
| a second one | the process ends at once; what it has announced and owns is free when its session with ZooKeeper ends |
| the proxy fails | it ends in order |

| exit status | |
|---|---|
| 0 | an orderly stop |
| 1 | it could not start, was stopped before it served, or had to give up |
| 128 and the signal's number | a second signal has ended it |
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, Protocol

from dlspark.core.runtime import new_event_loop
from metadata.foundation import compiled
from metadata.foundation.descriptors import raise_limit
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.security.listening import ALLOW, INSECURE_LISTEN, INSECURE_LISTEN_HELP

_LOG: Final = logging.getLogger(__name__)

GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Requests make many short-lived objects and hardly any cycles: look for them less often."""
AT_ONCE_STATUS: Final = 128
"""Exit status of a process that a second signal ended, less the signal's number."""


class RunningProxy(Protocol):
    """A proxy as its process runs it."""

    @property
    def location(self) -> str:
        """Its name among clients and other proxies, once it has started."""
        ...

    @property
    def failed(self) -> asyncio.Event:
        """Set when the proxy cannot go on."""
        ...

    async def start(self) -> None:
        """Begin to serve. Where it raises, nothing is left running."""
        ...

    async def stop(self) -> None:
        """End in order."""
        ...


def program_parser(module: str, description: str, *, keys: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all proxies have.

    Args:
        module: the package that `python -m` runs.
        keys: where the keys of the settings are listed.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("-u", "--uri", help="the namespace; DLSPARK_URI, or a running sandbox's, unless given")
    parser.add_argument("-c", "--conf", help=f"properties file; {keys} lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, over the file's")
    parser.add_argument("--insecure-listen", action="store_true", help=INSECURE_LISTEN_HELP)
    return parser


def listening_values(*, insecure_listen: bool) -> dict[str, str]:
    """Return the settings for which the option --insecure-listen stands."""
    return {INSECURE_LISTEN: ALLOW} if insecure_listen else {}


def run_program(make: Callable[[], RunningProxy], name: str) -> int:
    """Run the proxy that `make` makes as the one work of this process; return the exit status.

    The log goes to standard error, and so does why the proxy cannot be made, start or go on.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _LOG.info("%s", compiled.said)
    # Each connection takes a descriptor, and the usual soft limit of 1024 is far below the limit of connections.
    before, now = raise_limit()
    if now > before:
        _LOG.info("the limit of file descriptors was raised from %d to %d, which is the hard limit", before, now)
    try:
        return run(make(), name)
    except DistributedLogError as error:
        _LOG.critical("%s", error)
    except OSError as error:
        _LOG.critical("the proxy cannot go on: %s", error)
    return 1


def run(proxy: RunningProxy, name: str) -> int:
    """Run a proxy on a loop of its own until a signal ends it, or it fails; return the exit status.

    Raises the errors of its `start`.
    """
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(serve(proxy, name))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def serve(proxy: RunningProxy, name: str) -> int:
    """Do what `run` does on the loop that runs, which is the main thread's."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def signalled(number: int) -> None:
        if stopping.is_set():
            _LOG.warning("ended at once by a second signal; what it announced and owns is free when its session ends")
            logging.shutdown()
            # Whatever hangs must not keep the process: neither handlers, nor threads are waited for.
            os._exit(AT_ONCE_STATUS + number)
        stopping.set()

    # Handled on the loop, so that a signal never breaks into a step of it.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    starting, stopped = loop.create_task(proxy.start()), loop.create_task(stopping.wait())
    failed = loop.create_task(proxy.failed.wait())
    try:
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            # Cancelled, a start ends what it has begun: no member stays, and no lock.
            await end_tasks([starting], drop_errors=True)
            return 1
        starting.result()
        gc.freeze()  # what a start leaves behind stays: let the collector not walk it again
        gc.set_threshold(*GC_THRESHOLDS)
        print(f"{name} {proxy.location} serves", flush=True)
        await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks([stopped, failed], drop_errors=True)
    await proxy.stop()
    return 1 if proxy.failed.is_set() else 0
