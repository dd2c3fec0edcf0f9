"""The line that says how far a copy is, on a terminal of the test's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, TextIO

import pytest
from helpers.waiting import wait_until

from dlspark.cli.copy_progress import CopyProgress

SHOWN, HIDDEN = b"\x1b[?25h", b"\x1b[?25l"


class Terminal(NamedTuple):
    """Both ends of a terminal."""

    ours: int
    stream: TextIO


@pytest.fixture(name="terminal")
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal that a test makes its standard error: pytest sets that anew behind fixtures."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    with open(theirs, "w") as stream:
        yield Terminal(ours, stream)
    os.close(ours)


def said_on(terminal: Terminal, words: bytes) -> bytes:
    """Return what has come to the terminal, once it has these words: they come a moment later."""
    heard = bytearray()

    def come() -> bool:
        with suppress(BlockingIOError):
            heard.extend(os.read(terminal.ours, 65_536))
        return words in heard

    wait_until(come, lambda: bytes(heard))
    return bytes(heard)


def test_a_name_is_shown_as_it_is(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    line = CopyProgress("x[/b]")
    line.show(3, 6, at_once=True)
    said_on(terminal, b"x[/b]: 3 records")
    line.close()


def test_the_cursor_is_there_whatever_ends_the_process(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    line = CopyProgress("log", 100)
    said = said_on(terminal, SHOWN)
    assert said.rfind(SHOWN) > said.rfind(HIDDEN)
    line.close()
