"""`python -m dlspark.serving.read_proxy`: one read proxy, until SIGTERM or SIGINT.

Prints one line with its location when it serves, and nothing else; the log goes to standard error. Exit status: 0 after
an orderly stop, 1 if it could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Final

from dlspark.core.runtime import new_event_loop
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings, settings_page
from metadata.foundation.descriptors import raise_limit
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.tasks import end_tasks

logger = logging.getLogger("dlspark.serving.read_proxy")

GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Requests make many short-lived objects and hardly any cycles: look for them less often."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.settings:
        print(settings_page(), end="")
        return 0
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    before, now = raise_limit()
    if now > before:
        logger.info("the limit of file descriptors was raised from %d to %d, which is the hard limit", before, now)
    try:
        return run(ReadProxy(options.uri, _settings(options)))
    except DistributedLogError as error:
        logger.critical("%s", error)
    except OSError as error:
        logger.critical("the proxy cannot start: %s", error)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dlspark.serving.read_proxy", description="Run one read proxy of a namespace."
    )
    parser.add_argument("-u", "--uri", help="the namespace; DLSPARK_URI, or a running sandbox's, unless given")
    parser.add_argument("-c", "--conf", help="properties file; docs/read-proxy-settings.md lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, over the file's")
    parser.add_argument("--settings", action="store_true", help="print the page of all settings, and end")
    return parser


def _settings(options: argparse.Namespace) -> ReadProxySettings:
    """The settings of the file and the options. Raises CallerError."""
    given: dict[str, object] = {}
    for one in options.set:
        key, equals, text = one.partition("=")
        if not equals:
            raise CallerError(f"--set {one!r} sets nothing", advice="Write --set key=value")
        given[key.strip()] = text
    return ReadProxySettings.from_properties(options.conf, given)


def run(proxy: ReadProxy) -> int:
    """Run a proxy on a loop of its own until a signal ends it."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_serve(proxy))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(proxy: ReadProxy) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    starting, signalled = loop.create_task(proxy.start()), loop.create_task(stopping.wait())
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await end_tasks([starting], drop_errors=True)
            return 1
        starting.result()
        gc.freeze()  # what a start leaves behind stays: let the collector not walk it again
        gc.set_threshold(*GC_THRESHOLDS)
        print(f"read proxy {proxy.member.location} serves", flush=True)
        await signalled
    finally:
        await end_tasks([signalled], drop_errors=True)
    await proxy.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
