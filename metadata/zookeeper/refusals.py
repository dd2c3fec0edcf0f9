"""`Refusals`: how did a session's last attempt at each server end, as far as TLS has to do with it?

A session is tried at all its servers, whatever one of them says: they may differ while an ensemble is secured server by
server. Only where every one of them refuses for good is it told so before its time is up; one that is merely not there
may be of the right kind, and come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadata.foundation.addresses import address_text
from metadata.security.listening import is_loopback
from metadata.zookeeper.tls_socket import TlsFailure

NO_ANSWER = "no connection with it came about"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why is there no session?"""

    said: str | None
    """Server by server; None: TLS has nothing to do with it."""
    for_good: bool
    """Every server refuses, and will do so until certificates or settings are other ones."""


class Refusals:
    """Of one session. Addresses are (server's name, address, port), as they are tried."""

    def __init__(self) -> None:
        self._names: Sequence[tuple[str, int]] = ()
        self._servers: list[tuple[str, str, int]] = []
        self._ends: dict[tuple[str, str, int], TlsFailure | None] = {}

    def tried_next(self, names: Sequence[tuple[str, int]], servers: Sequence[tuple[str, str, int]]) -> None:
        """Note the servers, and the addresses that they have now; what is known of others is forgotten."""
        self._names = list(dict.fromkeys(names))
        self._servers = sorted(servers)
        self._ends = {one: end for one, end in self._ends.items() if one in self._servers}

    def connected(self) -> bool:
        """Note that a session is there. Returns whether something had been in its way."""
        had = any(self._ends.values())
        self._ends.clear()
        return had

    def failed(self, server: tuple[str, str, int], failure: TlsFailure | None) -> bool:
        """Note the end of an attempt; None: TLS had no part in it. Returns whether there is something to be told."""
        before = any(self._ends.values())
        self._ends[server] = failure
        return before or failure is not None

    def trouble(self) -> Trouble:
        """Return what to tell."""
        if not any(self._ends.values()):
            return Trouble(None, for_good=False)
        said: dict[str, None] = {}
        for_good = True
        for name in self._names:
            ends = [(one, self._ends.get(one)) for one in self._servers if (one[0], one[2]) == name]
            failures = [end for _, end in ends if end is not None]
            for why in [one.reason for one in failures] or [NO_ANSWER] * any(one in self._ends for one, _ in ends):
                said[f"{address_text(*name)}: {why}"] = None
            # A name has several addresses of this machine where a server may listen at one of them alone.
            missing = [one for one, end in ends if end is None and not (failures and is_loopback(one[1]))]
            for_good = for_good and bool(failures) and not missing and all(one.lasting for one in failures)
        return Trouble("; ".join(said), for_good)
