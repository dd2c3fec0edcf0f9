"""Clients of the region rounds: a writer and a tailing reader, each a process that is in one region by its environment.

The writer is that of the failover rounds (`failover_writer`). The reader's lines on standard output:

    follows                          the log is open
    saw <number> <seconds>           a record came, at that time of the machine's monotonic clock
    broke <error>                    reading has ended, which it never should
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from dlspark.core.namespace import AsyncNamespace
from helpers.faults import failover_writer
from helpers.faults.record_writer import payload_of, say
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks


def write(environment: dict[str, str], **arguments: Any) -> int:
    """Write records from number `first` on until standard input ends."""
    os.environ.update(environment)
    return failover_writer.run(**arguments)


def read(environment: dict[str, str], name: str, uri: str, log: str, settings: dict[str, Any]) -> int:
    """Follow a log until standard input ends."""
    os.environ.update(environment)

    async def follow() -> None:
        async with (
            await AsyncNamespace.open(uri, settings) as namespace,
            await namespace.open_log(log) as opened,
            await opened.open_reader() as reader,
        ):
            say("follows")
            async for record in reader:
                assert record.payload == payload_of(record.txid)
                say(f"saw {record.txid} {time.monotonic()}")

    async def main() -> None:
        told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        following = asyncio.ensure_future(follow())
        await asyncio.wait([told, following], return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            try:
                following.result()
            except DistributedLogError as error:
                say(f"broke {error!r}")
        await end_tasks([following])
        await told

    asyncio.run(main())
    return 0
