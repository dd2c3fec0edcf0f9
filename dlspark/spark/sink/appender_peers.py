"""Other drivers' processes on this machine that append for this user: they are found by a lock's owner, and asked.

The owner's name says host and process; in that process's private folder is where it listens, and what it must be shown
(`appender_folder`). Nothing else of the machine is asked, and no other user's process is.
"""

from __future__ import annotations

import asyncio
import os
import socket

from dlspark.spark.errors import LogBusyError
from dlspark.spark.sink.append_messages import LENGTHS, check_lengths, decode_answer, encode_request
from dlspark.spark.sink.appender import BatchToAppend
from dlspark.spark.sink.appender_folder import AppenderFolder
from dlspark.spark.sink.batch_rules import CommitOutcome
from metadata.distributedlog.locks import LockId
from metadata.distributedlog.owner_names import process_of, sink_owner
from metadata.foundation.errors import CorruptDataError, OutcomeUnknownError


def find_peer(holder: LockId) -> Peer | None:
    """The process that holds a lock, if it is another one of this user's on this machine that appends."""
    pid = process_of(holder.client_id)
    if pid is None or pid == os.getpid() or holder.client_id != sink_owner(socket.gethostname(), pid, appending=True):
        return None
    folder = AppenderFolder.of_process(pid)
    return Peer(folder) if folder is not None else None


class Peer:
    """One such process. One call at a time."""

    def __init__(self, folder: AppenderFolder) -> None:
        self._folder = folder
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def append_as_owner(self, batch: BatchToAppend, session_id: int) -> CommitOutcome | None:
        """As `OtherAppender.append_as_owner`."""
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
