"""Small batches that pass through no Python worker of Spark's: what the connector's jar is told, and hands back.

With the jar (`SmallWrite.java`) tasks keep their rows while they are few, as they do here (`inline_rows`), and the
driver hands them to the process that appends (`append.clients`). Whether the batches of a query are of that kind is
decided here, when one is planned: a piece of text in the planned writer says so (`mark`), which the jar finds in its
pickled form. What the jar does not bring about by itself comes back as a task's message (`message_of`), and is
committed like any other.
"""

from __future__ import annotations

import json
import os

from dlspark.core.codec.records import HEADER_BYTES
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.append.clients import folder_of
from dlspark.spark.sink.append.folders import ShortPath
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.commit_modes import LEAST_SHARE, CommitMode, commit_way
from dlspark.spark.sink.messages import InlineRows, JobId, SinkMessage
from metadata.distributedlog.sinks import query_sink
from metadata.foundation.errors import check

_BEGIN, _END = "dlspark-small[", "]"


def mark(options: Options, columns: SinkColumns, width: int) -> str:
    """Return what the planned writer of a query says of its small batches; empty where all are Python's.

    `width`: the columns that the frame has. Rows must be bytes for one log, in a frame of nothing else, which carry
    their batch's timestamp; and batches must be ones that may be appended, by way of storage nodes.
    """
    way = commit_way(options, numbered=True)
    plain = width == 1 and columns.typed is None and columns.transaction_id is None and columns.log is None
    if not plain or columns.route is not None or way.mode is CommitMode.SEGMENTS or way.proxied:
        return ""
    try:
        folder = folder_of(options)
    except OSError:
        return ""  # whoever commits says why
    socket, secret = os.fspath(folder.socket), os.fspath(folder.secret)
    said = json.dumps(
        {
            "log": columns.one_log,
            "bytes": way.max_bytes,
            "least": LEAST_SHARE,
            "row": HEADER_BYTES,
            "idle": way.idle_ms,
            "home": os.fspath(folder.path.parent),
            "user": os.getuid(),
            "socket": socket,
            "secret": secret,
        }
    )
    # Java takes no way around the kernel's limit for the path of a socket.
    if _END in said or len(os.fsencode(socket)) > ShortPath.LIMIT:
        return ""
    return f"{_BEGIN}{said}{_END}"


def message_of(words: bytes, rows: bytes) -> SinkMessage:
    """Return the message of a task whose rows the jar has kept; `rows` is an Arrow stream, empty without rows."""
    found = json.loads(words)
    query, batch, attempt = found["job"]
    log, partition, first, last, count, size, stamp = found["part"]
    check(count == 0 or bool(rows), f"{count} rows of task {partition} were announced, and none came")
    job = JobId(query_sink(query), batch, attempt)
    if not count:
        return SinkMessage(job)
    return SinkMessage(job, inline=(InlineRows(log, partition, first, last, count, size, stamp, rows),))
