"""`python -m storage_node.bookie --conf FILE`: one storage node, until SIGTERM or SIGINT.

Prints one line with the node's id and port when it serves, and nothing else; the log goes to standard error. Exit
status: 0 after an orderly stop, 1 if it could not start or had to give up.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Sequence

from metadata.errors import DistributedLogError
from storage_node.bookie.bookie import Bookie
from storage_node.bookie.settings import BookieSettings
from storage_node.edge import Disk, Network

GC_THRESHOLDS = (20_000, 20, 50)
"""Requests make many short-lived objects and hardly any cycles: look for them less often."""

logger = logging.getLogger("storage_node.bookie")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m storage_node.bookie", description="Run one storage node.")
    parser.add_argument("--conf", required=True, help="properties file; conf/bookie.conf lists the keys")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = BookieSettings.from_properties(options.conf)
        return run(settings)
    except DistributedLogError as error:
        logger.critical("%s", error)
    except OSError as error:
        logger.critical("the node cannot go on: %s", error)
    return 1


def run(settings: BookieSettings, *, network: Network | None = None, disk: Disk | None = None) -> int:
    """Run a node over the given edges (the real ones if left out) until a signal ends it, or it fails."""
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_serve(settings, network, disk))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (extra `speed`), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _serve(settings: BookieSettings, network: Network | None, disk: Disk | None) -> int:
    from metadata.zookeeper import ZooKeeperStore

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    store = await ZooKeeperStore.connect(settings.zk_servers, session_timeout_ms=settings.zk_timeout_ms)
    try:
        bookie = Bookie(settings, store, network=network, disk=disk)
        starting = loop.create_task(bookie.start())
        signalled = loop.create_task(stopping.wait())
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            return 1
        starting.result()
        gc.freeze()  # what a start leaves behind stays: let the collector not walk it again
        gc.set_threshold(*GC_THRESHOLDS)
        print(f"bookie {bookie.address.bookie_id} serves on port {bookie.address.port}", flush=True)
        failed = loop.create_task(bookie.failed.wait())
        await asyncio.wait([failed, signalled], return_when=asyncio.FIRST_COMPLETED)
        for task in (failed, signalled):
            task.cancel()
        await bookie.stop()
        if bookie.failure is not None:
            raise bookie.failure
        return 0
    finally:
        await store.close()


if __name__ == "__main__":
    sys.exit(main())
