"""What the connector does about Spark's Python workers, in which it runs: how errors look, garbage collection, filters.

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
micro-batch from our source to our sink (docs/performance.md, row P8). What is there when a worker is used again stays
anyway, so it is moved out of the collector's sight (`gc.freeze`), which is what that is made for.

Frozen objects are still freed when nothing refers to them any more. Only a ring of objects that is dropped later
stays: so it is done three times a process and no more, right after a collection, and never outside of Spark's workers.

**Filters** (`take_far_times`). Where `spark.sql.python.filterPushdown.enabled` is on, Spark has a worker make Python
values of all filters, and asks the reader then, which keeps none of them. A time in the year 10000 or later has none in
Python: a query with `timestamp < TIMESTAMP'+10000-01-01'` ended there with a trace.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType
from typing import Final, TypeVar

from metadata.foundation.errors import DistributedLogError, InvariantViolation

DAEMON = "pyspark.daemon"
FREEZE_AT = (2, 4, 8)
"""Uses of a process by us before which everything there is is frozen: after the first one modules are loaded and
connections are open, later ones find what another kind of use has loaded."""
_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_WORKER: Final = "pyspark.worker_util"
"""A module that Spark imports in its workers alone."""

_log = logging.getLogger(__name__)
_Class = TypeVar("_Class", bound=type)


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


def take_far_times() -> None:
    """In the worker that reads Spark's filters, from the command on that it is at: take those that Python has no value
    for. They stay with Spark, as all do, so another filter of the column stands for one."""
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


_uses = 0


def begin_use() -> None:
    """Note that a process begins to do something for one of our queries."""
    global _uses
    _uses += 1
    if due(_uses, main_module()):
        gc.freeze()


def due(uses: int, main: str | None) -> bool:
    """Return whether to freeze before this use of a process that runs module `main`: only in what Spark's daemon has
    forked, where the collection has just been."""
    return uses in FREEZE_AT and main == DAEMON


def main_module() -> str | None:
    """Return the module that this process was started with (`python -m`), as its name; None for a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if spec is None else spec.name
