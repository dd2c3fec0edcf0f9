"""`OutageNotice`: says that a session has had no connection for a while, and what may be the matter.

Who goes on with what it knows, such as a query without news or a writer with an open ledger, shows no sign of it. One
thing is asked meanwhile, for it never ends by itself: a ZooKeeper that came back empty, or older, refuses a session
that has seen more of it, and its clients hear no more than that the connection was closed. What a server has, it says
to `srvr`, unless that was switched off (`4lw.commands.whitelist`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from metadata.store import SessionState
from metadata.zookeeper.homing import ASK_S, said_zxid
from metadata.zookeeper.tls_socket import ClientTls

_LOG: Final = logging.getLogger(__name__)
OUTAGE_S: Final = 15.0
"""How long a connection may be away before it is said: longer than a server takes to start again."""
SAID_EVERY_S: Final = 300.0
_ANSWER_BYTES: Final = 4096


class OutageNotice:
    """The notice of one session, on its loop.

    Args:
        servers: all of them, as they were given.
        asked: names and ports of those that may be asked; not those that are reached by way of a proxy.
        tls: by which they are asked.
        seen: returns the last change that the session has seen (zxid).
    """

    def __init__(
        self, servers: str, asked: Sequence[tuple[str, int]], tls: ClientTls | None, seen: Callable[[], int]
    ) -> None:
        self._servers = servers
        self._asked = asked
        self._tls = tls
        self._seen = seen
        self._began = False
        self._told = False
        self._telling: asyncio.Task[None] | None = None

    def hear(self, state: SessionState) -> None:
        """Note a change of the session's state."""
        if state in (SessionState.CONNECTED, SessionState.CLOSED):
            self._began = True
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None
            if self._told and state is SessionState.CONNECTED:
                _LOG.warning("connected with ZooKeeper again")
            self._told = False
        elif self._began and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        wait_s = OUTAGE_S
        while True:
            await asyncio.sleep(wait_s)
            reason = await self._reason()
            _LOG.warning(
                "no connection with ZooKeeper (%s) for %.0f s: changes are not heard of, and none can be made, until "
                "there is one; it is tried again all the time%s",
                self._servers,
                loop.time() - began,
                reason,
            )
            self._told = True
            wait_s = SAID_EVERY_S

    async def _reason(self) -> str:
        """Return what a server says that refuses the session for what it has seen; "" where none says so."""
        for host, port in self._asked:
            with suppress(OSError, asyncio.TimeoutError):
                zxid, seen = said_zxid(await asyncio.wait_for(self._srvr(host, port), ASK_S)), self._seen()
                if zxid is not None and zxid < seen:
                    return (
                        f". {host}:{port} serves, and refuses this session, which has seen more than it has "
                        f"(0x{seen:x}; 0x{zxid:x}): were its data lost, or an older copy brought back? If it is meant "
                        "to be another one now, start this program again"
                    )
        return ""

    async def _srvr(self, host: str, port: int) -> str:
        context = None if self._tls is None else self._tls.client_context()
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=None if context is None else host
        )
        try:
            writer.write(b"srvr")
            return (await reader.read(_ANSWER_BYTES)).decode("utf-8", "replace")
        finally:
            writer.close()
