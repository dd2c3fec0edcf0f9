"""Appending from the driver's commits: through a process that lives beside the driver, started by the first of them.

Spark commits each batch in a process that it may end afterwards, and a log's writer has to live on from batch to batch.
So a small process has it (`process`): one for each driver, namespace and settings. Here it is found, or started, and
handed the batch (`append_in_process`).

While an answer is waited for, what that process says is passed on: a query that waits for storage nodes says so.

Such a process asks others of its kind in turn: other drivers' processes on this machine that append for this user are
found by a lock's owner (`find_peer`). The owner's name says host and process; in that process's private folder is where
it listens, and what it must be shown (`folders`). Nothing else of the machine is asked, and no other user's
process is.

What is said, by commits to their process and by one process to another:

    request   length of the head, length of the body (4 bytes each, big-endian), head (JSON), body (the rows)
    answer    the same; the body is empty

A request's head: `{"secret":...,"job":[sink,batch,attempt],"part":[log,partition,first,last,count,size,stamp],
"idle":60000,"session":null}`; with a `session` one process asks another as the owner of the log's lock by that session,
and as nobody else. An answer's: `{"outcome":"published"}`, or `{"error":{...}}` with the names of the error's class and
of its bases, nearest first, and what it says. Both ends run as one user; lengths are bounded nevertheless, and nothing
is executed (no pickle).

Fault model: that process may die at any line. Then the connection ends without an answer; another one is started, and
gets the same batch again: it is appended once all the same (I20).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle  # to our own child, by its standard input
import select
import socket
import subprocess
import sys
import time
from struct import Struct
from typing import Final

from dlspark.spark.errors import AppenderStartError, LogBusyError, PublishUnknownError
from dlspark.spark.options.proxies import KEY_VARIABLE
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.append.appender import DEADLINE_S, BatchToAppend
from dlspark.spark.sink.append.folders import AppenderFolder, driver_process
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.commit_modes import ENTRY_ROOM
from dlspark.spark.sink.session import settings_of
from metadata.distributedlog.lock_members import LockId
from metadata.distributedlog.owner_names import process_of, sink_owner
from metadata.foundation.errors import CorruptDataError, DistributedLogError, OutcomeUnknownError

PROCESS_MODULE: Final = "dlspark.spark.sink.append.process"
START_TIMEOUT_S: Final = 60.0
SLACK_S: Final = 30.0
"""How much longer than the process's own limits its answer is waited for."""
_PAUSE_S: Final = 0.05
_LOOK_EVERY_S: Final = 0.5
"""How often it is looked what the process says."""
LENGTHS: Final = Struct(">II")
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 2 * ENTRY_ROOM
"""Rows as Arrow has them take less than in an entry, ids and offsets included; what describes them comes on top."""
_NOT_THERE: Final = (FileNotFoundError, ConnectionRefusedError)

_log = logging.getLogger(__name__)


def append_in_process(options: Options, batch: BatchToAppend) -> CommitOutcome | None:
    """Append a batch through this driver's process, which is started if none runs and the batch has rows.

    None: as `SinkAppender.append`. Raises as that, and AppenderStartError with nothing visible.
    """
    deadline = time.monotonic() + DEADLINE_S + options.outage_ms / 1000 + SLACK_S
    start = bool(batch.rows.record_count)
    sent = False
    while True:
        try:
            folder = folder_of(options)  # anew each time: it may be gone, and then it is another one
        except OSError as error:
            if not start:
                return None
            raise _not_started_error(str(error)) from error
        try:
            with _connected(folder, options, start=start) as connection:
                connection.settimeout(max(deadline - time.monotonic(), _PAUSE_S))
                secret = folder.secret.read_text()
                output = _ProcessOutput(folder)
                sent = True
                connection.sendall(encode_request(secret, batch))
                output.pass_on_until_answered(connection, deadline)
                head = _answer(connection)
            return decode_answer(head)
        except OSError as error:
            if not start:
                return None  # nothing of it could have been appended
            # It ended, by itself or not. Another one gets the batch and finds out what became of it.
            if time.monotonic() + _PAUSE_S < deadline:
                time.sleep(_PAUSE_S)
                continue
            if not sent:
                raise _not_started_error(str(error)) from error
            raise PublishUnknownError(
                f"The process that appends {batch.job} did not answer: it is visible whole or not at all ({error})",
                log=batch.rows.log,
                advice="Start the query again from its checkpoint, or repeat the write with the same txnVersion",
            ) from error


def folder_of(options: Options) -> AppenderFolder:
    """Return the folder of this driver's process for these options. Raises OSError where there can be none."""
    settings = settings_of(options, appending=True)
    return AppenderFolder.of(options.uri, settings, options.proxies, driver_process(), sys.executable)


def _connected(folder: AppenderFolder, options: Options, *, start: bool) -> socket.socket:
    """Return a connection to the process, which is started if there is none. Raises OSError, AppenderStartError."""
    try:
        return _connect(folder)
    except _NOT_THERE:
        if not start:
            raise FileNotFoundError("no process appends for this driver") from None
    try:
        with folder.starting():
            try:
                return _connect(folder)  # another commit was faster
            except _NOT_THERE:
                left = folder.left_session()
                folder.make()
                _start(folder, options, left)
    except OSError as error:
        raise _not_started_error(str(error)) from error
    return _connect(folder)


def _connect(folder: AppenderFolder) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with folder.address() as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _start(folder: AppenderFolder, options: Options, left_session: bytes) -> None:
    """Start the process and return once it listens. `left_session`: of the one in whose place it is."""
    # The same modules as here: what Spark's workers are given by PYTHONPATH and by other means.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop(KEY_VARIABLE, None)  # it makes no tokens, and lives longer than who started it
    try:
        # The command ends as soon as the process that it leaves behind listens, so nothing has to wait for that one.
        done = subprocess.run(
            [sys.executable, "-m", PROCESS_MODULE, os.fspath(folder.path)],
            input=pickle.dumps((options, driver_process(), left_session)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_started_error(str(error)) from error
    if done.returncode:
        raise _not_started_error(done.stderr.decode(errors="replace").strip()[-2000:])


def _not_started_error(why: str) -> AppenderStartError:
    return AppenderStartError(
        f"The process that appends batches to an open segment could not be started: {why}",
        advice="Use commitMode=segments, which needs none; its folder is in XDG_RUNTIME_DIR, or in TMPDIR",
    )


class _ProcessOutput:
    """The output of the process from now on: it is passed on."""

    def __init__(self, folder: AppenderFolder) -> None:
        self._output = folder.output
        self._passed_on = self._output.stat().st_size

    def pass_on_until_answered(self, connection: socket.socket, deadline: float) -> None:
        """Return once there is something to receive. Raises TimeoutError."""
        while not select.select([connection], [], [], _LOOK_EVERY_S)[0]:
            self._pass_on()
            if time.monotonic() > deadline:
                raise TimeoutError("the process did not answer in time")

    def _pass_on(self) -> None:
        with self._output.open("rb") as output:
            output.seek(self._passed_on)
            text = output.read()
        whole = text.rfind(b"\n") + 1
        self._passed_on += whole
        for line in text[:whole].decode(errors="replace").splitlines():
            _log.warning("%s", line)


def _answer(connection: socket.socket) -> bytes:
    """Return the head of an answer. Raises OSError where the connection ends before it."""
    head, body = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    check_lengths(head, body)
    return _exactly(connection, head + body)[:head]


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionResetError("the process ended before it answered")
        found += more
    return bytes(found)


# ---------------------------------------------------------------------- other drivers' processes


def find_peer(holder: LockId) -> Peer | None:
    """Return the process that holds a lock, if it is another one of this user's on this machine that appends."""
    pid = process_of(holder.client_id)
    if pid is None or pid == os.getpid() or holder.client_id != sink_owner(socket.gethostname(), pid, appending=True):
        return None
    folder = AppenderFolder.of_process(pid)
    return Peer(folder) if folder is not None else None


class Peer:
    """Another driver's process on this machine. One call at a time."""

    def __init__(self, folder: AppenderFolder) -> None:
        self._folder = folder
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def append_as_owner(self, batch: BatchToAppend, session_id: int) -> CommitOutcome | None:
        """Append a batch, as `OtherAppender.append_as_owner`."""
        try:
            secret = self._folder.secret.read_text()
            if self._connection is None:
                with self._folder.address() as address:
                    self._connection = await asyncio.open_unix_connection(address)
        except OSError as error:
            raise LogBusyError(
                f"The log's owner on this machine cannot be reached ({error}); nothing of the batch is visible",
                log=batch.rows.log,
            ) from error
        reader, writer = self._connection
        try:
            writer.write(encode_request(secret, batch, session_id))
            await writer.drain()
            head, body = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
            check_lengths(head, body)
            answer = (await reader.readexactly(head + body))[:head]
        except (OSError, EOFError, CorruptDataError) as error:
            raise OutcomeUnknownError(
                f"the log's owner on this machine has not answered ({error!r})", log=batch.rows.log
            ) from error
        return decode_answer(answer)

    async def close(self) -> None:
        """End the connection. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[1].close()


# ---------------------------------------------------------------------- bytes to values and back


def encode_request(secret: str, batch: BatchToAppend, session: int | None = None) -> bytes:
    """Return a batch as it is sent. `session`: to the process that owns its log by the lock of this session of
    ZooKeeper."""
    job, rows = batch.job, batch.rows
    part = [rows.log, rows.partition, rows.first_txid, rows.last_txid, rows.record_count, rows.size, rows.stamp_ms]
    head: dict[str, object] = {
        "secret": secret,
        "job": [job.sink_id, job.batch, job.attempt],
        "part": part,
        "idle": batch.idle_ms,
        "session": session,
    }
    if rows.raisable:
        # A process of an older dlspark passes over it, and refuses ids that it would have to raise.
        head["raisable"] = True
    return framed(head, rows.rows)


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


def framed(head: object, body: bytes) -> bytes:
    """Return a message as it is sent: its lengths, its head as JSON, its body."""
    text = json.dumps(head, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), len(body)) + text + body
