"""`start`: starting a streaming query on a machine that is busy, as it is right after a driver has died.

Spark gives the Python process of a query's source, or of its `foreachBatch` through Spark Connect, ten seconds to
start, and ends the query after that; no conf changes it. Nothing has run then, so that the query can be started again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SLOW_START: Final = "Python worker failed to connect back"
TIMEOUT_S: Final = 120.0
_PAUSE_S = 0.05
_NOT_BEGUN = "Initializing"


def start(writer: DataStreamWriter, timeout_s: float = TIMEOUT_S) -> StreamingQuery:
    """`writer.start()`, again for `timeout_s` where Spark gave up on a Python process that was slow to start.

    Returns when the query has begun, or has ended for another reason, which `exception()` tells as ever. Raises what
    `writer.start()` raises, and the last slow start itself once the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        slow: Exception
        try:
            query = writer.start()
            found = _slow_start(query)
            if found is None:
                return query
            slow = found
        except Exception as error:
            if SLOW_START not in str(error):
                raise
            slow = error
        if time.monotonic() >= deadline:
            raise slow


def _slow_start(query: StreamingQuery) -> Exception | None:
    """Wait until the query has begun or ended; the error if it was a slow start that ended it."""
    while query.isActive:
        if query.lastProgress is not None or not str(query.status["message"]).startswith(_NOT_BEGUN):
            return None
        time.sleep(_PAUSE_S)
    error = query.exception()
    return error if error is not None and SLOW_START in str(error) else None
