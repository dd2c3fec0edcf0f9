"""`start`: starting a streaming query where a driver has just died, and the machine is busy.

Spark gives the Python process of a query's source, or of its `foreachBatch` through Spark Connect, ten seconds to
start, and ends the query after that; no conf changes it. And it refuses a checkpoint whose first entry a driver was
writing when it died, for the unfinished file. Nothing has run in either case, so that the query can be started again.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SLOW_START: Final = "Python worker failed to connect back"
TIMEOUT_S: Final = 120.0
_PAUSE_S = 0.05
_NOT_BEGUN = "Initializing"
_NOT_EMPTY: Final = re.compile(r"The checkpoint location (.+) should be empty on batch 0")
_UNFINISHED: Final = re.compile(r"\.\d+\.[0-9a-f-]{36}\.tmp")
"""How Spark names an entry until it is whole."""


def start(writer: DataStreamWriter, timeout_s: float = TIMEOUT_S) -> StreamingQuery:
    """`writer.start()`, again for `timeout_s` where Spark gave up on a Python process that was slow to start, or where
    all that is in the checkpoint is the unfinished first entry of a driver that died, which is removed.

    Returns when the query has begun, or has ended for another reason, which `exception()` tells as ever. Raises what
    `writer.start()` raises, and the last slow start itself once the time is over.
    """
    deadline = time.monotonic() + timeout_s
    error: Exception | None
    while True:
        try:
            query = writer.start()
            error = _early_end(query)
            if error is None or not _can_start_again(writer, error):
                return query
        except Exception as failed:
            if not _can_start_again(writer, failed):
                raise
            error = failed
        if time.monotonic() >= deadline:
            raise error


def _early_end(query: StreamingQuery) -> Exception | None:
    """Wait until the query has begun or ended; the error that has ended it."""
    while query.isActive:
        if query.lastProgress is not None or not str(query.status["message"]).startswith(_NOT_BEGUN):
            return None
        time.sleep(_PAUSE_S)
    return query.exception()


def _can_start_again(writer: DataStreamWriter, error: Exception) -> bool:
    return SLOW_START in str(error) or _removed_unfinished(writer, error)


def _removed_unfinished(writer: DataStreamWriter, error: Exception) -> bool:
    """Remove the unfinished files for which Spark refuses a checkpoint. False where there is anything else, or (through
    Spark Connect) no way to look."""
    place = _NOT_EMPTY.search(str(error))
    session = getattr(writer, "_spark", None)
    jvm = getattr(session, "_jvm", None)
    if place is None or session is None or jvm is None:
        return False
    folder = jvm.org.apache.hadoop.fs.Path(place[1])
    files = folder.getFileSystem(session._jsc.hadoopConfiguration())
    left = [status.getPath() for status in files.listStatus(folder)]
    if not left or not all(_UNFINISHED.fullmatch(path.getName()) for path in left):
        return False
    for path in left:
        files.delete(path, False)
    return True
