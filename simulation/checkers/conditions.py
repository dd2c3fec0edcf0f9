"""`ConditionCheckers`: what writes with conditions are promised, held against what the log holds at the end.

    a position    a record that required the log's last record, or its own sequence id, stands right there
    a token       tokens replace each other, each one the token that it named. Records that required one stand before
                  all that required a later one: once a token is another, nothing with the old one is written

Whether a condition was met may be in doubt for its client; the log is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlspark.core.codec.dlsn import DLSN
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.logs import SeenRecord
from simulation.checkers.watched import WatchedWorld


@dataclass(frozen=True, slots=True)
class AskedCondition:
    """Which condition was a record sent with? None for none."""

    position: DLSN | int | None
    token: bytes | None


class ConditionCheckers:
    """One for each world. Violations go to `LedgerCheckers.fail`."""

    def __init__(self, world: WatchedWorld, ledgers: LedgerCheckers) -> None:
        self._world = world
        self._ledgers = ledgers
        self._asked: dict[bytes, AskedCondition] = {}
        self._replaced: dict[bytes, bytes] = {}
        """By token, the one that it was to replace."""

    def append_sent(self, payload: bytes, position: DLSN | int | None, token: bytes | None) -> None:
        """Note that a record is given to a client with these conditions."""
        self._asked[payload] = AskedCondition(position, token)

    def token_sent(self, token: bytes, expected: bytes) -> None:
        """Note that a client asks for a token, which no other one has asked for, in the place of `expected`."""
        self._replaced[token] = expected

    def final(self, log: str, seen: Sequence[SeenRecord]) -> None:
        """Check the whole log."""
        before: SeenRecord | None = None
        token: bytes | None = None
        for one in seen:
            asked = self._asked.get(one.payload)
            if asked is not None:
                self._check_position(log, one, before, asked.position)
                if asked.token is not None and token is not None and not self._follows(asked.token, token):
                    self._ledgers.fail(f"log {log}: {one.dlsn} required token {asked.token!r}, and is behind {token!r}")
                token = asked.token if asked.token is not None else token
            before = one

    def _check_position(
        self, log: str, one: SeenRecord, before: SeenRecord | None, position: DLSN | int | None
    ) -> None:
        if isinstance(position, DLSN):
            held = before is not None and before.dlsn == position
        else:
            held = position is None or one.sequence_id == position
        if not held:
            self._ledgers.fail(f"log {log}: {one.dlsn} required position {position}, and is behind {before}")
        self._world.reached("condition.held")

    def _follows(self, token: bytes, other: bytes) -> bool:
        """Return whether `token` is the other one, or one of its successors."""
        while token != other:
            if token not in self._replaced:
                return False
            token = self._replaced[token]
        return True
