"""Spark's Python workers, in which the connector runs: quiet ends, plain errors, garbage collection, filters, and what
they find loaded.

    spark.python.daemon.module   dlspark.spark.worker_daemon

**Quiet ends** (`main`, `take_over`). Spark closes the connection of a worker that was idle for a minute, and of one
whose task needs no more rows (`LIMIT`). `pyspark.daemon` then has the worker report the end of its input, over the very
connection that is closed, and prints the `BrokenPipeError` of that: over unix domain sockets always, over TCP whenever
rows were on their way. The trace looks like a failure where nothing failed. Here a worker that has nothing to do looks
whether Spark is still there before it waits for a command, and a connection that broke under a worker ends it. The
workers in which Spark plans, and commits what was written, have always Spark's own daemon: there this module takes over
when it is imported, with the first thing of ours that such a worker unpickles. All else is Spark's own daemon. It is
started as `python -m dlspark.spark.worker_daemon <worker module>`; nothing here may start a thread, as workers are
forked from it.

**What workers find loaded** (`load_shared`). A worker lives until Spark has not used it for a minute, and a new one
loads all of the connector: half a second of processor. The daemon loads most of that once, and its workers have it from
their first moment. It loads neither pyarrow nor numpy, which start threads.

**Errors** (`without_traceback`). An error of the connector reaches the user as its message alone, and not below the
traceback of a worker. Workers write down what the data source raised (`pyspark.util.handle_worker_exception`), send it
to the JVM and end. An error that says what happened, what did not and what to do needs no lines of our code before
that: so the worker is asked by its own switch (`SPARK_HIDE_TRACEBACK`, which
`spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets for all) to write the message only. Nothing else is hidden:
the process has no other work than this, a bug (`InvariantViolation`, or any error that is not of our tree) keeps its
traceback, and at level DEBUG all are logged.

**Garbage collection** (`begin_use`). Spark uses a worker again and again, and runs a full collection after each use
(`pyspark.daemon`). That looks at every object there is: some 100,000, nearly all of them the modules of pyspark,
pyarrow and numpy and what they hold. It takes tens of milliseconds of processor on a busy machine, four times a
micro-batch from our source to our sink (docs/performance.md, row P8), and keeps the worker that plans, or answers the
catalog, from the next question. What is there when a worker is used again stays
anyway, so it is moved out of the collector's sight (`gc.freeze`), which is what that is made for.

Frozen objects are still freed when nothing refers to them any more. Only a ring of objects that is dropped later
stays: so it is done three times a process and no more, right after a collection, and never outside of Spark's workers.

**Filters** (`take_far_times`). Where `spark.sql.python.filterPushdown.enabled` is on, Spark has a worker make Python
values of all filters, and asks the reader then, which keeps none of them. A time in the year 10000 or later has none in
Python: a query with `timestamp < TIMESTAMP'+10000-01-01'` ended there with a trace.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType
from typing import Final, TypeAlias, TypeVar

from metadata.foundation.errors import DistributedLogError, InvariantViolation

Work: TypeAlias = Callable[[socket.socket, bool], int]
_Class = TypeVar("_Class", bound=type)

DAEMON = "pyspark.daemon"
OWN_DAEMON = "dlspark.spark.worker_daemon"
"""This module's name, which it does not have where it is the program."""
FREEZE_AT = (2, 4, 8)
"""Uses of a process by us before which everything there is is frozen: after the first one modules are loaded and
connections are open, later ones find what another kind of use has loaded."""
SHARED: Final = (
    "storage_node.client.client",
    "metadata.zookeeper.client",
    "metadata.distributedlog.sinks",
    "dlspark.core.namespace",
    "dlspark.spark.options.query_options",
    "dlspark.spark.sink.session",
    "metadata.distributedlog.cold_store",
    "dlspark.core.opening",
    "dlspark.core.codec.producer_records",
    "dlspark.core.writing.producers",
    "dlspark.core.writing.transitions",
    "dlspark.spark.datasource",
    "dlspark.spark.sink.batch_rules",
    "dlspark.spark.sink.commit_modes",
    "dlspark.spark.source.frame_columns",
    "dlspark.spark.source.query_snapshot",
    "dlspark.spark.source.span_entries",
    "dlspark.spark.source.task_tokens",
)
"""Modules that tasks need, with all that they import. None starts a thread, nor imports what does."""
_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_WORKER: Final = "pyspark.worker_util"
"""A module that Spark imports in its workers alone."""
_HUNG_UP: Final = -1
"""The answer of a worker that makes the daemon end its process, quietly."""
_GONE: Final = (BrokenPipeError, ConnectionResetError, EOFError)
"""The errors of a worker's reading from Spark and writing to it then. It catches errors of the code that it runs."""
_RAISE: Final = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Set, `pyspark.daemon.worker` raises what keeps it from sending an answer's rest; else it prints a trace of it."""

_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- quiet ends


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
    """End quietly, from the command on that this worker is at, where Spark's own daemon has forked it."""
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == DAEMON:
        work: Work = main.worker
        if work.__module__ != __name__:
            main.worker = quiet(work)  # type: ignore[attr-defined]
            os.environ[_RAISE] = "1"  # for this command, which the daemon's own function has begun
            main.traceback = _Traces()  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- errors


def in_worker() -> bool:
    """Return whether this process is a Python worker of Spark's."""
    return _WORKER in sys.modules


def without_traceback(cls: _Class) -> _Class:
    """Decorate a class that Spark calls in its workers: its public methods and constructor raise without traceback."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _hide_in(method))
    return cls


def _hide_in(method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def call(*args: object, **keywords: object) -> object:
        try:
            result = method(*args, **keywords)
        except DistributedLogError as error:
            _leave_out_traceback(error)
            raise
        return _hide_while_iterating(result) if isinstance(result, GeneratorType) else result

    return call


def _hide_while_iterating(rows: Iterator[object]) -> Iterator[object]:
    try:
        yield from rows
    except DistributedLogError as error:
        _leave_out_traceback(error)
        raise


def _leave_out_traceback(error: DistributedLogError) -> None:
    _log.debug("raised to Spark: %s", error, exc_info=error)
    if in_worker() and not isinstance(error, InvariantViolation):
        os.environ[_HIDE] = "1"


# ---------------------------------------------------------------------- filters


def take_far_times() -> None:
    """Take filters that Python has no value for, in the worker that reads Spark's filters, from the command on that it
    is at. They stay with Spark, as all do, so another filter of the column stands for one."""
    module = sys.modules.get(_FILTERS)
    made: Callable[[dict[str, object]], object] | None = getattr(module, "deserializeFilter", None)
    if module is None or made is None or made.__module__ == __name__:
        return

    def read(words: dict[str, object]) -> object:
        try:
            return made(words)
        except OverflowError:
            return module.deserializeFilter({"name": "IsNull", "columnPath": words["columnPath"], "isNegated": False})

    module.deserializeFilter = read  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- garbage collection


_uses = 0


def begin_use() -> None:
    """Count a use of this process by one of our queries, and freeze what there is where that is due."""
    global _uses
    _uses += 1
    if due(_uses, main_module()):
        gc.freeze()


def due(uses: int, main: str | None) -> bool:
    """Return whether to freeze before this use of a process that runs module `main`: only in what a daemon of
    workers has forked, where the collection has just been."""
    return uses in FREEZE_AT and main in (DAEMON, OWN_DAEMON)


def main_module() -> str | None:
    """Return the module that this process was started with (`python -m`), as its name; None for a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if spec is None else spec.name


def load_shared() -> None:
    """Load what workers share (in the daemon, before it forks any), out of the collector's sight. What cannot be loaded
    is for the worker that needs it to say: the daemon serves others as well."""
    for name in SHARED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # and workers do not copy the memory of these objects only because a collection looks at them


def main() -> None:
    """Run Spark's daemon, as `pyspark.daemon` does when it is started, with workers that end quietly and have most of
    the connector loaded."""
    from pyspark import daemon

    load_shared()

    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
else:
    # A worker that commits is given a writer and never a data source: whatever of ours comes first must do.
    take_over()
