"""`python -m storage_node.autorecovery --conf FILE`: auto-recovery as a process of its own, until SIGTERM or SIGINT.

It takes a storage node's file (conf/bookie.conf): of that it needs where the metadata is, its own keys and the ledger
client's. Prints one line when it is at work; the log goes to standard error. Exit status: 0 after an orderly stop, 1 if
it could not start or had to give up.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence

from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.files import MetadataSettings, NodeFile

logger = logging.getLogger("storage_node.autorecovery")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run auto-recovery; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m storage_node.autorecovery", description="Run auto-recovery.")
    parser.add_argument("--conf", required=True, help="properties file; conf/bookie.conf lists the keys")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        file = NodeFile.read(options.conf)
        return asyncio.run(_serve(file.auto_recovery(), file.metadata()))
    except DistributedLogError as error:
        logger.critical("%s", error)
    return 1


async def _serve(settings: AutoRecoverySettings, where: MetadataSettings) -> int:
    from metadata.zookeeper.securing import open_session

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    security = settings.client.security
    store = await open_session(where.zk_servers, security, session_timeout_ms=where.zk_timeout_ms)
    try:
        name = where.bookie_id or socket.gethostname()
        recovery = AutoRecovery(settings, store, where.zk_ledgers_root_path, bookie_id=name)
        await recovery.start()
        print(f"auto-recovery {name} is at work", flush=True)
        ends = [loop.create_task(stopping.wait()), loop.create_task(recovery.failed.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await end_tasks(ends)
        await recovery.stop()
        return 0 if recovery.failure is None else 1
    finally:
        await store.close()


if __name__ == "__main__":
    sys.exit(main())
