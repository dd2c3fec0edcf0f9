"""`InputBlocks`: standard input in blocks, for a command that must finish what it has read, whatever ends it.

A read waits for input, for the end of a time without any, or for a signal. The first SIGINT, SIGTERM or SIGHUP only
ends the input: what has come up to then is read, and the command finishes as at the end of a file. One that comes
before reading has begun interrupts: nothing was read. A second one ends the process (`at_once`): the user will not
wait, and to close what is open may wait for servers that are away.

A terminal throws away what was typed and not read yet when Ctrl-C comes; it keeps that, as long as this reads.

Signals arrive between two steps of the interpreter, in the midst of anything; so the handler notes that there was one,
and the wait sees that by a pipe. A signal that is ignored (a shell's background job) stays so.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, TypeAlias

from metadata.foundation.errors import CallerError

BLOCK_BYTES: Final = 1 << 20
SIGNALLED: Final = 128
"""Exit status of a command that a signal ended, less the signal's number."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOCAL_MODES: Final = 3
"""Where a terminal's attributes have the flags of what keys do."""
_Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"


class InputBlocks:
    """Standard input, to be entered. Its file is not closed."""

    def __init__(self, fd: int) -> None:
        """Read from `fd`, which may be a file, a pipe, a socket or a terminal."""
        self.signal: int | None = None
        """The first signal that asked to end."""
        self.at_once: Callable[[], None] | None = None
        """Called when a second signal has come, before the process ends: in the midst of anything."""
        self.read_bytes = 0
        """How much was read so far."""
        self._fd = fd
        self._reading = False
        self._ended = False
        self._wake: tuple[int, int] | None = None
        self._old_wake = -1
        self._old: dict[int, _Handler] = {}
        self._terminal: list[Any] | None = None
        """How the terminal was set before."""

    @classmethod
    def standard(cls) -> InputBlocks:
        """Read from standard input. Raises CallerError where it is closed."""
        if sys.stdin is None:
            raise CallerError("standard input is closed; nothing was written")
        return cls(sys.stdin.fileno())

    def __enter__(self) -> InputBlocks:
        self._wake = os.pipe()
        # Neither end may block: the interpreter writes from a signal's handler, which must not wait for a reader.
        for end in self._wake:
            os.set_blocking(end, False)
        # A poll that a signal interrupts goes on by itself (PEP 475): only this pipe's byte ends it.
        self._old_wake = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            # nohup and a shell's background job have some ignored; a handler here would undo that.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._note)
        with suppress(OSError, termios.error):  # a file, a pipe; or a terminal that is another's
            if os.isatty(self._fd) and os.tcgetpgrp(self._fd) == os.getpgrp():
                self._terminal = termios.tcgetattr(self._fd)
                changed = [*self._terminal]
                # Without it the terminal drops typed lines that were not read yet when Ctrl-C comes.
                changed[_LOCAL_MODES] |= termios.NOFLSH
                termios.tcsetattr(self._fd, termios.TCSANOW, changed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore_terminal()
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._old_wake)
        for end in self._wake or ():
            os.close(end)
        self._wake = None

    def _restore_terminal(self) -> None:
        if self._terminal is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._terminal)
                if self.signalled:
                    termios.tcflush(self._fd, termios.TCIFLUSH)  # the unfinished line is not the shell's

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            self._restore_terminal()
            if self.at_once is not None:
                self.at_once()
            # No exception: unwinding would close the log, and that may wait for servers that are away.
            os._exit(SIGNALLED + self.signal)
        self.signal = number
        if not self._reading:
            raise KeyboardInterrupt

    @property
    def signalled(self) -> bool:
        """True once a signal asked to end."""
        return self.signal is not None

    @property
    def is_terminal(self) -> bool:
        """True where the input is typed."""
        return os.isatty(self._fd)

    def left_bytes(self) -> int | None:
        """Return how much of a file has not been read yet; None for what has no length."""
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        return max(found.st_size - os.lseek(self._fd, 0, os.SEEK_CUR), 0)

    def read(self, idle_s: float | None) -> bytes | None:
        """Return the next bytes, at most a block; empty at the end. None: nothing came for `idle_s` seconds.

        Raises CallerError where the input cannot be read.
        """
        if self._wake is None or self._ended:
            return b""
        self._reading = True
        while True:
            if self.signalled:
                self._ended = True
                return self._rest()
            ready = self._ready(idle_s)
            if not ready and not self.signalled:
                return None
            data = self._available() if ready else None
            if data is not None:
                self._ended = not data
                return data

    def _rest(self) -> bytes:
        """Return the bytes that came before the signal: a block at most, so that a process that goes on writing does
        not hold the end up.
        """
        rest = b""
        while len(rest) < BLOCK_BYTES and self._ready(0):
            data = self._available()  # of a terminal a line at a time
            if not data:
                break
            rest += data
        return rest

    def _ready(self, timeout_s: float | None) -> bool:
        """Wait for input, a signal or the time; whether there is input."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        if self._wake is not None:
            waiting.register(self._wake[0], select.POLLIN)
        found = {fd for fd, _ in waiting.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._wake is not None and self._wake[0] in found:
            with suppress(BlockingIOError):
                # Taken, or every later poll would end at once.
                os.read(self._wake[0], 64)
        return self._fd in found

    def _available(self) -> bytes | None:
        """Return what can be read now; None for nothing, where another process made the input not wait."""
        try:
            data = os.read(self._fd, BLOCK_BYTES)
            self.read_bytes += len(data)
            return data
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:
                return b""  # a terminal that was hung up
            raise CallerError(f"standard input cannot be read: {error.strerror}") from None
