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
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from metadata.foundation import compiled
from metadata.foundation.descriptors import raise_limit
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from metadata.security.audit import NOWHERE, Noted
from metadata.security.listening import ALLOW, INSECURE_LISTEN_HELP
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.endpoints import check_listening, shown
from storage_node.bookie.node.security import node_security
from storage_node.edge import Disk, Network
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import NodeFile

if TYPE_CHECKING:
    from metadata.store import MetadataStore
    from storage_node.settings.autorecovery import AutoRecoverySettings

GC_THRESHOLDS = (20_000, 20, 50)
"""Requests make many short-lived objects and hardly any cycles: look for them less often."""

SWITCH_INTERVAL_S = 0.0001
"""The journal's threads need the interpreter several times a commit. A loop that has much to do gives it away in each
system call and takes it back before they wake, and Python's count of 5 ms, after which it must wait for them, begins
anew each time: a commit took 300 ms."""

logger = logging.getLogger("storage_node.bookie")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m storage_node.bookie", description="Run one storage node.")
    parser.add_argument("--conf", required=True, help="properties file; conf/bookie.conf lists the keys")
    parser.add_argument("--insecure-listen", action="store_true", help=INSECURE_LISTEN_HELP)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger.info("%s", compiled.said)
    before, now = raise_limit()
    if now > before:
        logger.info("the limit of file descriptors was raised from %d to %d, which is the hard limit", before, now)
    try:
        file = NodeFile.read(options.conf)
        recovery = file.auto_recovery()  # checked in any case
        settings = file.bookie()
        if options.insecure_listen:
            settings = replace(settings, insecure_listen=ALLOW)
        return run(settings, recovery=recovery if recovery.auto_recovery_daemon_enabled else None)
    except DistributedLogError as error:
        logger.critical("%s", error)
    except OSError as error:
        logger.critical("the node cannot go on: %s", error)
    return 1


def run(
    settings: BookieSettings,
    *,
    network: Network | None = None,
    disk: Disk | None = None,
    recovery: AutoRecoverySettings | None = None,
) -> int:
    """Run a node over the given edges (the real ones if left out) until a signal ends it, or it fails; with `recovery`
    auto-recovery runs beside it."""
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_serve(settings, network, disk, recovery))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's where it is installed (extra `speed`), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _serve(
    settings: BookieSettings, network: Network | None, disk: Disk | None, recovery: AutoRecoverySettings | None
) -> int:
    from metadata.zookeeper.securing import open_session

    check_listening(settings)  # before anything is waited for
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    store = await open_session(settings.zk_servers, settings.security, session_timeout_ms=settings.zk_timeout_ms)
    try:
        with _audit(settings) as audit:
            security = node_security(settings, audit=audit)
            bookie = Bookie(settings, store, network=network, disk=disk, security=security)
            async with shown(settings, bookie, audit):
                return await _live(bookie, network, recovery, stopping)
    finally:
        await store.close()


@contextmanager
def _audit(settings: BookieSettings) -> Iterator[Noted]:
    """Keep the audit trail that the settings ask for. Raises CallerError where it cannot be written."""
    trail = settings.audit.open_audit()
    if trail is None:
        yield NOWHERE
        return
    try:
        yield trail
    finally:
        trail.close()


async def _live(
    bookie: Bookie, network: Network | None, recovery: AutoRecoverySettings | None, stopping: asyncio.Event
) -> int:
    """Start the node, and stop it when `stopping` is set or it fails; the exit status."""
    loop = asyncio.get_running_loop()
    starting = loop.create_task(bookie.start())
    signalled = loop.create_task(stopping.wait())
    await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await end_tasks([starting], drop_errors=True)
        return 1
    if starting.exception() is not None:
        await end_tasks([signalled])  # or the log would end with a task left pending instead of with the reason
    starting.result()
    gc.freeze()  # what a start leaves behind stays: let the collector not walk it again
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    print(f"bookie {bookie.address.bookie_id} serves on port {bookie.address.port}", flush=True)
    failed = loop.create_task(bookie.failed.wait())
    async with _recovering(bookie.settings, recovery, network, bookie.address.bookie_id):
        await asyncio.wait([failed, signalled], return_when=asyncio.FIRST_COMPLETED)
    await end_tasks([failed, signalled])
    await bookie.stop()
    if bookie.failure is not None:
        raise bookie.failure
    return 0


@asynccontextmanager
async def _recovering(
    settings: BookieSettings, recovery: AutoRecoverySettings | None, network: Network | None, bookie_id: str
) -> AsyncIterator[None]:
    """Run auto-recovery for the length of a block, in a metadata session of its own; do nothing without its settings.

    The node serves whether or not it could start: that is what the node is for.
    """
    if recovery is None:
        yield
        return
    from metadata.zookeeper.securing import open_session
    from storage_node.autorecovery.daemon import AutoRecovery

    store: MetadataStore | None = None
    daemon: AutoRecovery | None = None
    try:
        store = await open_session(settings.zk_servers, settings.security, session_timeout_ms=settings.zk_timeout_ms)
        daemon = AutoRecovery(recovery, store, settings.zk_ledgers_root_path, bookie_id=bookie_id, network=network)
        await daemon.start()
    except DistributedLogError as error:
        logger.error("auto-recovery does not run: %s", error)
    try:
        yield
    finally:
        if daemon is not None:
            await daemon.stop()
        if store is not None:
            await store.close()


if __name__ == "__main__":
    sys.exit(main())
