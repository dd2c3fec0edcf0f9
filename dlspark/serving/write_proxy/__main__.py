"""`python -m dlspark.serving.write_proxy`: one write proxy, until SIGTERM or SIGINT.

Prints one line with its location when it serves, and nothing else; the log goes to standard error. The first signal
ends it in order: it hands its streams over to the others. A second one ends it at once: its streams are free when its
session with ZooKeeper ends. Exit status: 0 after an orderly stop, 1 if it could not start or had to give up.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dlspark.core.runtime import new_event_loop
from dlspark.serving.write_proxy.configuration import ProxyConfiguration, read_configuration, with_stream_files
from dlspark.serving.write_proxy.proxy import ProxyRole, WriteProxy
from metadata.foundation.descriptors import raise_limit
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.settings import Value
from metadata.foundation.tasks import end_tasks

logger = logging.getLogger("dlspark.serving.write_proxy")

GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Requests make many short-lived objects and hardly any cycles: look for them less often."""
AT_ONCE_STATUS: Final = 128
"""Exit status of a process that a second signal ended, less the signal's number."""
LOAD_APPRAISERS: Final = ("equal", "measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    before, now = raise_limit()
    if now > before:
        logger.info("the limit of file descriptors was raised from %d to %d, which is the hard limit", before, now)
    try:
        configuration = read_configuration(options.conf, _given(options))
        if options.stream_conf is not None:
            configuration = with_stream_files(configuration, options.stream_conf)
        role = ProxyRole(options.announce, options.stats_port, options.load_appraiser == "measured")
        return run(options.uri, configuration, role)
    except DistributedLogError as error:
        logger.critical("%s", error)
    except OSError as error:
        logger.critical("the proxy cannot go on: %s", error)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dlspark.serving.write_proxy", description="Run one write proxy of a namespace."
    )
    parser.add_argument("-u", "--uri", help="the namespace; DLSPARK_URI, or a running sandbox's, unless given")
    parser.add_argument("-c", "--conf", help="properties file; conf/write_proxy.conf lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, over the file's")
    parser.add_argument("--stream-conf", type=Path, metavar="DIR", help="directory of <stream>.conf files")
    parser.add_argument("-p", "--port", type=int, help="server_port: the port for frames, 0 for any")
    parser.add_argument("--grpc-port", type=int, help="server_grpc_port: the port for gRPC, 0 for any, -1 for none")
    parser.add_argument("--stats-port", type=int, help="the port of the page with health and metrics, 0 for any")
    parser.add_argument("--shard", type=int, help="server_shard: the number of this proxy among all; 0 leads placement")
    parser.add_argument("--no-announce", dest="announce", action="store_false", help="be no member of the tier")
    parser.add_argument(
        "--load-appraiser",
        choices=LOAD_APPRAISERS,
        default=LOAD_APPRAISERS[0],
        help="how the leader weighs streams: all alike, or by the bytes that they take",
    )
    return parser


def _given(options: argparse.Namespace) -> Mapping[str, Value]:
    """The settings among the options. Raises CallerError for one without '='."""
    given: dict[str, Value] = {}
    for one in options.set:
        key, equals, text = one.partition("=")
        if not equals:
            raise CallerError(f"--set {one!r} sets nothing", advice="Write --set key=value (docs/proxy-settings.md)")
        given[key.strip()] = text
    flags = {"server_port": options.port, "server_grpc_port": options.grpc_port, "server_shard": options.shard}
    return given | {key: value for key, value in flags.items() if value is not None}


def run(uri: str | None, configuration: ProxyConfiguration, role: ProxyRole) -> int:
    """Run a proxy on a loop of its own until a signal ends it, or it fails."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_serve(WriteProxy(uri, configuration, role)))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(proxy: WriteProxy) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def signalled(number: int) -> None:
        if stopping.is_set():
            logger.warning("ended at once by a second signal; its streams are free when its session ends")
            logging.shutdown()
            os._exit(AT_ONCE_STATUS + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    starting, told = loop.create_task(proxy.start()), loop.create_task(stopping.wait())
    failed = loop.create_task(proxy.failed.wait())
    try:
        await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await end_tasks([starting], drop_errors=True)
            return 1
        starting.result()
        gc.freeze()  # what a start leaves behind stays: let the collector not walk it again
        gc.set_threshold(*GC_THRESHOLDS)
        print(f"write proxy {proxy.location} serves", flush=True)
        await asyncio.wait([failed, told], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks([told, failed], drop_errors=True)
    await proxy.stop()
    return 1 if proxy.failure is not None else 0


if __name__ == "__main__":
    sys.exit(main())
