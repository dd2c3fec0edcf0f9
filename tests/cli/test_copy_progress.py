"""The line that says how far a copy is, on a terminal of the test's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from dlspark.cli.copy_progress import CopyProgress

SHOWN, HIDDEN = b"\x1b[?25h", b"\x1b[?25l"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard error is a terminal; this is its other end."""
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with open(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield ours
    os.close(ours)


def test_a_name_is_shown_as_it_is(terminal: int) -> None:
    line = CopyProgress("x[/b]")
    line.show(3, 6, at_once=True)
    assert b"x[/b]: 3 records" in os.read(terminal, 65_536)
    line.close()


def test_the_cursor_is_there_whatever_ends_the_process(terminal: int) -> None:
    line = CopyProgress("log", 100)
    said = os.read(terminal, 65_536)
    assert said.rfind(SHOWN) > said.rfind(HIDDEN)
    line.close()
