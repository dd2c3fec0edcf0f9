"""A killed node's former session is ended by its successor, which need not wait for it to expire
(docs/reference/node-files.md#session).

The token of the metadata session lies in a file beside the journal from before the node registers. A node that starts
holds the locks of all its directories, so the process that wrote the file is dead, and it was this bookie (the cookies
say so). Ending its session is what an expiry does, only earlier: the store orders the end, and refuses whatever a dead
process's connection may still carry, so neither a late registration nor a late withdrawal can follow. Should the locks
have lied (directories shared between machines), the other node finds its session expired, which it survives.

Whatever goes wrong here costs time only: the registration then waits for the session to expire.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from functools import partial

from metadata.foundation.errors import DistributedLogError
from metadata.store import MetadataStore, SessionState
from storage_node.edge import Disk

logger = logging.getLogger(__name__)

FILE_NAME = "SESSION"
END_TIMEOUT_S = 10.0


class SessionFile:
    """The file of one node; `keep` follows the store's session until `close`."""

    def __init__(self, disk: Disk, directory: str, store: MetadataStore) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._store = store
        self._kept = b""
        self._writing: asyncio.Task[None] | None = None
        self._unsubscribe = store.on_session(self._session_changed)

    async def end_former(self) -> None:
        """End the session of the process that ran here before, if it left one. All directories must be locked."""
        text = self._disk.read_file(self._path)
        if not text:
            return
        try:
            token = binascii.unhexlify(text.strip())
            await asyncio.wait_for(self._store.end_session(token), END_TIMEOUT_S)
        except (ValueError, DistributedLogError, asyncio.TimeoutError) as error:
            logger.warning("the former session was not ended, it has to expire: %s", error)

    async def keep(self) -> None:
        """Write the current session's token down, durably. Failing costs the next start time, so it is only logged."""
        while (token := self._store.session_token) and token != self._kept:
            data = binascii.hexlify(token) + b"\n"
            try:
                await self._disk.submit("files", partial(self._disk.write_file, self._path, data))
            except OSError as error:
                logger.warning("the session could not be written to %s: %s", self._path, error)
                return
            self._kept = token

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED and self._kept and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self.keep())

    async def close(self, *, ended: bool) -> None:
        """Follow no longer. `ended`: nothing of the session is left in the store, the file may go."""
        self._unsubscribe()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if ended and self._kept:
            try:
                self._disk.remove(self._path)
            except OSError as error:
                logger.warning("%s could not be removed: %s", self._path, error)
