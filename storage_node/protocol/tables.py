"""State tables as text: what an event does in a state, one row a state, one column an event.

The machines of this package keep their tables in this form, obey them, and have tests that walk every pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from metadata.foundation.errors import check

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Reaction(Enum):
    """How does a machine take an event in a state? The letters of a table."""

    ACT = "A"
    """The event does something."""
    IGNORE = "-"
    """A late or repeated event: no effect."""
    REFUSE = "R"
    """The caller's mistake: a typed error."""
    BUG = "!"
    """The edge answered a question that was not asked: raises InvariantViolation."""


def parse_table(text: str, states: type[S], events: type[E]) -> Mapping[S, Mapping[E, Reaction]]:
    """Read a table whose first line names the events and whose other lines begin with a state's name."""
    lines = [line.split() for line in text.strip().splitlines()]
    columns = [events[name.upper()] for name in lines[0]]
    table = {
        states[row[0]]: {event: Reaction(letter) for event, letter in zip(columns, row[1:], strict=True)}
        for row in lines[1:]
    }
    check(set(table) == set(states) and set(columns) == set(events), "a state table lacks a row or a column")
    return table
