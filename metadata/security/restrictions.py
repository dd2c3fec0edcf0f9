"""`Restrictions`: what a proof itself leaves of its holder's rights, such as a token that is good for one log alone.

They narrow, and never widen: what is done needs the holder's own rights, which rules give to the principal, and the
restrictions' leave. A pattern is a log's name, or the beginning of names with `*` behind it. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANY_NAME: Final = "*"
"""Ends a pattern that is the beginning of names."""
LITERAL: Final = "\\*"
"""Ends a pattern that is the name of one log, which ends in the character itself; as in rules."""
VERBS: Final = frozenset({"read", "write", "truncate", "create", "delete", "administer"})
"""Everything that a proof may be restricted to; rules have the same words."""


@dataclass(frozen=True, slots=True)
class Restrictions:
    """To which logs, and to which verbs, is a proof restricted?"""

    logs: tuple[str, ...] | None = None
    """Patterns of names of logs; None: any log, an empty one: none."""
    verbs: frozenset[str] | None = None
    """Of VERBS; None: all of them, an empty one: none."""

    def allows(self, verb: str, log: str | None) -> bool:
        """Return whether these leave it to do `verb` to a log; None as the log is what belongs to none, such as a
        proxy's own state, and is left only to who is not restricted to logs."""
        if self.verbs is not None and verb not in self.verbs:
            return False
        if self.logs is None:
            return True
        return log is not None and any(matches(pattern, log) for pattern in self.logs)


UNRESTRICTED: Final = Restrictions()


def matches(pattern: str, log: str) -> bool:
    """Return whether a pattern means this log."""
    if pattern.endswith(LITERAL):
        return log == pattern[: -len(LITERAL)] + ANY_NAME
    if pattern.endswith(ANY_NAME):
        return log.startswith(pattern[: -len(ANY_NAME)])
    return log == pattern


def pattern_fault(pattern: str) -> str | None:
    """Return why this is not a pattern of names of logs; None where it is one."""
    if not pattern:
        return "it is empty"
    if ANY_NAME in pattern[: -len(ANY_NAME)]:
        return "a * stands at its end alone"
    if not pattern.isprintable():
        return "it has characters that are not printed"
    return None
