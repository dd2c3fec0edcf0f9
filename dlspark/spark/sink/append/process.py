"""The process that appends for a driver: `python -m dlspark.spark.sink.append.process FOLDER` (`clients`).

It is given the query's options, the driver's name and what a killed predecessor left on its standard input. The command
itself ends as soon as the process listens in the folder, so that it is not a child of a worker of Spark's: by a fork,
before anything is loaded.

It ends by itself (`server`), or by SIGTERM: then its logs are given up with their segments completed. Killed,
it leaves segments in progress and marks that say so, and any other owner of these logs goes on from there (I20).
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle  # from our own parent, by standard input
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dlspark.spark.sink.append.folders import ProcessName

LOOK_EVERY_S: Final = 0.5
GRACE_S: Final = 60.0
"""How long it may take to give everything up once its driver has ended."""
_LISTENS: Final = b"listens"
_OUTPUT_MODE: Final = 0o600


def main() -> None:
    """Start the process in the background; exit with 0 once it listens, else with what it said."""
    folder, given = Path(sys.argv[1]), sys.stdin.buffer.read()
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            words = pipe.read()
        if words != _LISTENS:
            output = (folder / "output").read_text(errors="replace") if (folder / "output").exists() else ""
            sys.exit(output or "it ended at once")
        return
    os.close(reading)
    _detach(folder)
    _run(folder, given, writing)


def _detach(folder: Path) -> None:
    """Let go of what Spark's worker has open; what is printed goes to the folder."""
    output = os.open(folder / "output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, _OUTPUT_MODE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((0, nothing), (1, output), (2, output)):
        os.dup2(target, number)
    os.close(output)
    os.close(nothing)


def _run(folder: Path, given: bytes, writing: int) -> None:
    from dlspark.core.runtime import Runtime
    from dlspark.spark.sink.append.folders import AppenderFolder, this_process
    from dlspark.spark.sink.append.server import serve

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    options, driver, left_session = pickle.loads(given)  # noqa: S301  # see the import
    own = AppenderFolder(folder)
    own.write_private(own.process, this_process().encode())
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    runtime = Runtime.shared()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: runtime.loop.call_soon_threadsafe(stop.set))

    def listens() -> None:
        os.write(writing, _LISTENS)
        os.close(writing)

    try:
        runtime.run(serve(options, own, driver, left_session, stop, listens))
        runtime.close()
    except BaseException:
        logging.exception("the process ends")
    with own.starting():
        # Another one may have been started in its place, once this one listened no more.
        if own.is_of(this_process()):
            own.remove()
    logging.shutdown()
    os._exit(0)  # also where a thread waits for what does not come


def _end_with(driver: ProcessName) -> None:
    """End the process when its driver has ended and it has not followed in time: it hangs, and would keep its logs."""
    while driver.runs:
        time.sleep(LOOK_EVERY_S)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
