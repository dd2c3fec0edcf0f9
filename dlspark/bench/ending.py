"""How a measurement ends before its time: SIGTERM is as Ctrl-C, and what is being taken down is taken down whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Final, TypeVar

_T = TypeVar("_T")
ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Have SIGTERM raise KeyboardInterrupt in the block."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Handlers:
    """What Ctrl-C and SIGTERM do now, to be set again."""

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in ENDING}

    def restore(self) -> None:
        """Set them again."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


@contextmanager
def left_whole(context: AbstractContextManager[_T]) -> Iterator[_T]:
    """Enter a context. Ctrl-C and SIGTERM that come while it is being left wait until it has been left."""
    handlers = Handlers()
    came: list[int] = []

    def hold() -> None:
        for number in ENDING:
            signal.signal(number, lambda number, frame: came.append(number))

    def let_go() -> None:
        handlers.restore()
        if came:
            raise KeyboardInterrupt

    # What is put on it first is called last.
    with ExitStack() as stack:
        stack.callback(let_go)
        entered = stack.enter_context(context)
        stack.callback(hold)
        yield entered
