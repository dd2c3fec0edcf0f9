"""What the driver's commits and the process that appends for them say to each other, and two such processes. Bytes to
values and back; no I/O.

    request   length of the head, length of the body (4 bytes each, big-endian), head (JSON), body (the rows)
    answer    the same; the body is empty

A request's head: `{"secret":...,"job":[sink,batch,attempt],"part":[log,partition,first,last,count,size,stamp],
"idle":60000,"session":null}`; with a `session` one process asks another as the owner of the log's lock by that session,
and as nobody else. An answer's: `{"outcome":"published"}`, or `{"error":{...}}` with the names of the error's class and
of its bases, nearest first, and what it says. Both ends run as one user; lengths are bounded nevertheless, and nothing
is executed (no pickle).
"""

from __future__ import annotations

import hmac
import json
from struct import Struct
from typing import Final

from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.commit_modes import ENTRY_ROOM
from dlspark.spark.sink.messages import InlineRows, JobId
from metadata.foundation.errors import CorruptDataError, DistributedLogError, OutcomeUnknownError

LENGTHS: Final = Struct(">II")
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 2 * ENTRY_ROOM
"""Rows as Arrow has them take less than in an entry, ids and offsets included; what describes them comes on top."""


def encode_request(secret: str, batch: BatchToAppend, session: int | None = None) -> bytes:
    """Return a batch as it is sent; `session`: to who owns its log by the lock of this session of ZooKeeper."""
    job, rows = batch.job, batch.rows
    part = [rows.log, rows.partition, rows.first_txid, rows.last_txid, rows.record_count, rows.size, rows.stamp_ms]
    head = {
        "secret": secret,
        "job": [job.sink_id, job.batch, job.attempt],
        "part": part,
        "idle": batch.idle_ms,
        "session": session,
    }
    return _framed(head, rows.rows)


def decode_request(secret: str, head: bytes, body: bytes) -> tuple[BatchToAppend, int | None]:
    """Return the reverse. Raises CorruptDataError for anything else, and for another secret."""
    try:
        found = json.loads(head)
        if not hmac.compare_digest(str(found["secret"]).encode(), secret.encode()):
            raise CorruptDataError("a request came with another secret; nothing was done")
        sink_id, batch, attempt = found["job"]
        log, partition, first, last, count, size, stamp = found["part"]
        if not all(isinstance(number, int) for number in (batch, partition, first, last, count, size, found["idle"])):
            raise ValueError(found)
        job = JobId(str(sink_id), batch, str(attempt))
        rows = InlineRows(str(log), partition, first, last, count, size, stamp, body)
        session = found["session"]
        if session is not None and not isinstance(session, int):
            raise ValueError(found)
        return BatchToAppend(job, rows, found["idle"]), session
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"a request cannot be read, nothing was done: {error!r}") from None


def encode_outcome(outcome: CommitOutcome | None) -> bytes:
    """Return the answer to a batch that is in the log; None: to one without rows, or another process's, for which
    nothing was done."""
    return _framed({"outcome": outcome.value if outcome is not None else None}, b"")


def encode_error(error: DistributedLogError) -> bytes:
    """Return the answer to any other batch."""
    said = {name: value for name, value in vars(error).items() if isinstance(value, str | int)}
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, DistributedLogError)]
    return _framed({"error": {"kinds": kinds, "said": said}}, b"")


def decode_answer(head: bytes) -> CommitOutcome | None:
    """Return the outcome. Raises the error that was sent, as the class that it had where this process knows that."""
    try:
        found = json.loads(head)
        if "outcome" in found:
            return CommitOutcome(found["outcome"]) if found["outcome"] is not None else None
        kinds, said = found["error"]["kinds"], found["error"]["said"]
    except (ValueError, KeyError, TypeError) as error:
        raise OutcomeUnknownError(f"an answer cannot be read: {error!r}") from None
    raise _error(kinds, said)


def _error(kinds: list[str], said: dict[str, str | int]) -> DistributedLogError:
    known = {kind.__name__: kind for kind in _tree(DistributedLogError)}
    kind = next((known[name] for name in kinds if name in known), OutcomeUnknownError)
    error = kind.__new__(kind)
    DistributedLogError.__init__(error, str(said.get("message", "")))
    vars(error).update(said)
    return error


def _tree(kind: type[DistributedLogError]) -> set[type[DistributedLogError]]:
    return {kind}.union(*map(_tree, kind.__subclasses__()))


def check_lengths(head: int, body: int) -> None:
    """Raise CorruptDataError for what neither end sends."""
    if head > MAX_HEAD_BYTES or body > MAX_BODY_BYTES:
        raise CorruptDataError(f"a message of {head} and {body} bytes is none of this protocol's")


def _framed(head: object, body: bytes) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), len(body)) + text + body
