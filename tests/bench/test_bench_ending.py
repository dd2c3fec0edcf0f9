"""A measurement that a signal ends: handlers of before are set again, and what is taken down is taken down whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dlspark.bench.comparing import run_interruptibly
from dlspark.bench.ending import ENDING, left_whole, sigterm_as_ctrl_c


async def _nothing() -> int:
    return 3


def test_behind_a_run_signals_do_what_they_did_before() -> None:
    with sigterm_as_ctrl_c():
        before = [signal.getsignal(number) for number in ENDING]
        assert run_interruptibly(_nothing()) == 3
        assert [signal.getsignal(number) for number in ENDING] == before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_waits_until_what_is_being_left_is_left(number: signal.Signals) -> None:
    done: list[str] = []

    @contextmanager
    def sandbox() -> Iterator[str]:
        yield "there"
        os.kill(os.getpid(), number)
        done.append("taken down")

    def measure() -> None:
        with sigterm_as_ctrl_c(), left_whole(sandbox()) as name:
            done.append(name)

    before = [signal.getsignal(one) for one in ENDING]
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert done == ["there", "taken down"]
    assert [signal.getsignal(one) for one in ENDING] == before


def test_what_ended_the_block_is_what_is_raised() -> None:
    @contextmanager
    def sandbox() -> Iterator[None]:
        yield

    with pytest.raises(ZeroDivisionError), left_whole(sandbox()):
        raise ZeroDivisionError
