"""An error of the connector reaches the user as its message alone, and not below the traceback of a Spark worker.

Spark's workers write down what the data source raised (`pyspark.util.handle_worker_exception`), send it to the JVM and
end. Whose error says what happened, what did not and what to do needs no lines of our code before that: so the worker
is told by its own switch (`SPARK_HIDE_TRACEBACK`, which `spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets
for all) to write the message only. Nothing else is hidden: the process has no other work than this, a bug
(`InvariantViolation`, or any error that is not of our tree) keeps its traceback, and at level DEBUG all are logged.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType
from typing import Final, TypeVar

from metadata.foundation.errors import DistributedLogError, InvariantViolation

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_WORKER: Final = "pyspark.worker_util"
"""A module that Spark imports in its workers alone."""

_log = logging.getLogger(__name__)
_Class = TypeVar("_Class", bound=type)


def in_worker() -> bool:
    """Whether this process is a Python worker of Spark's."""
    return _WORKER in sys.modules


def plainly_told(cls: _Class) -> _Class:
    """A class that Spark calls in its workers, with its public methods and its constructor telling errors plainly."""
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _telling(method))
    return cls


def _telling(method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def call(*args: object, **keywords: object) -> object:
        try:
            result = method(*args, **keywords)
        except DistributedLogError as error:
            _leave_out_traceback(error)
            raise
        return _telling_each(result) if isinstance(result, GeneratorType) else result

    return call


def _telling_each(rows: Iterator[object]) -> Iterator[object]:
    try:
        yield from rows
    except DistributedLogError as error:
        _leave_out_traceback(error)
        raise


def _leave_out_traceback(error: DistributedLogError) -> None:
    _log.debug("told to Spark: %s", error, exc_info=error)
    if in_worker() and not isinstance(error, InvariantViolation):
        os.environ[_HIDE] = "1"
