"""Spark's daemon of Python workers, whose workers end quietly when Spark closes their connection.

    spark.python.daemon.module   dlspark.spark.worker_daemon

Spark closes the connection of a worker that was idle for a minute, and of one whose task needs no more rows (`LIMIT`).
`pyspark.daemon` then has the worker report the end of its input, over the very connection that is closed, and
prints the `BrokenPipeError` of that: over unix domain sockets always, over TCP whenever rows were on their way. The
trace looks like a failure where nothing failed. Here a worker that has nothing to do looks whether Spark is still
there before it waits for a command, and a connection that broke under a worker ends it.

All else is Spark's own daemon. It is started as `python -m dlspark.spark.worker_daemon <worker module>`; nothing here
may start a thread, as workers are forked from it.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[socket.socket, bool], int]

_HUNG_UP: Final = -1
"""The answer of a worker that makes the daemon end its process, quietly."""
_GONE: Final = (BrokenPipeError, ConnectionResetError, EOFError)
"""What a worker's reading from Spark and writing to it raise then. It catches errors of the code that it runs."""
_RAISE: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Set, `pyspark.daemon.worker` raises what keeps it from sending an answer's rest; else it prints a trace of it."""


def quiet(work: Work) -> Work:
    """Wrap `pyspark.daemon.worker`, which runs one command for Spark: end quietly if Spark closes the connection."""

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            if not sock.recv(1, socket.MSG_PEEK):
                return _HUNG_UP
            return work(sock, authenticated)
        except _GONE:
            # Spark has closed its side, and knows what became of the task.
            return _HUNG_UP

    worker.__module__ = __name__
    return worker


class _Traces:
    """`traceback`, as a forked worker of the daemon uses it for what has ended it: none of a Spark that hung up."""

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], _GONE):
            traceback.print_exc()


def take_over() -> None:
    """In a worker that Spark's own daemon has forked: end quietly, too, from the command on that it is at.

    The workers in which Spark plans have always that daemon, whatever the conf says.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        work: Work = main.worker
        if work.__module__ != __name__:
            main.worker = quiet(work)  # type: ignore[attr-defined]
            os.environ[_RAISE] = "1"  # for this command, which the daemon's own function has begun
            main.traceback = _Traces()  # type: ignore[attr-defined]


def main() -> None:
    """Run Spark's daemon, as `pyspark.daemon` does when it is started, with workers that end quietly."""
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
