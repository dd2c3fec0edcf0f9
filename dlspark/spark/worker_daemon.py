"""Spark's daemon of Python workers, whose workers end without a word when Spark hangs up on them.

    spark.python.daemon.module   dlspark.spark.worker_daemon

Spark closes the connection of a worker that was idle for a minute, and of one whose task needs no more rows (`LIMIT`).
`pyspark.daemon` then has the worker tell Spark of the end of its input, over the very connection that is closed, and
prints the `BrokenPipeError` of that: over unix domain sockets always, over TCP whenever rows were on their way. The
trace looks like a failure where nothing failed. Here a worker that has nothing to do looks whether Spark is still
there before it waits for a command, and a connection that broke under a worker ends it.

All else is Spark's own daemon. It is started as `python -m dlspark.spark.worker_daemon <worker module>`; nothing here
may start a thread, as workers are forked from it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[socket.socket, bool], int]

_HUNG_UP: Final = -1
"""What makes the daemon end the process of a worker, without a word."""


def quiet(work: Work) -> Work:
    """`pyspark.daemon.worker`, which does one command of Spark's, but for a Spark that has hung up."""

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            if not sock.recv(1, socket.MSG_PEEK):
                return _HUNG_UP
            return work(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            # Only writing to Spark raises these to here: it has closed its side, and knows what became of the task.
            return _HUNG_UP

    worker.__module__ = __name__
    return worker


def take_over() -> None:
    """In a worker that Spark's own daemon has forked: end quietly, too, once it waits for its next command.

    The workers in which Spark plans have always that daemon, whatever the conf says.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        work: Work = main.worker
        if work.__module__ != __name__:
            main.worker = quiet(work)  # type: ignore[attr-defined]


def main() -> None:
    from pyspark import daemon

    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
