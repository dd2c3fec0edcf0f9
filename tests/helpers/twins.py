"""The compiled core and its twins in Python: every test of a module that takes `twin` runs on both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import pytest

from metadata.foundation import compiled
from metadata.foundation.compiled import CompiledCore

INPUTS, INPUTS_A_ROUND = 200, 1_000
SEED = 34
REFUSALS = (TypeError, ValueError, BufferError, OverflowError)
RECORDS = (bytes(19) + b"\5hello") * 3
BUILT: Final[CompiledCore | None] = compiled.core


@contextmanager
def running_on(core: CompiledCore | None) -> Iterator[None]:
    """Have the code run on this core, None: on the twins in Python."""
    before = compiled.core
    compiled.core = core
    try:
        yield
    finally:
        compiled.core = before


def built() -> CompiledCore:
    """Return the compiled core; the test is skipped, with the reason, where none is in use."""
    if BUILT is None:
        pytest.skip(f"no compiled core ({compiled.said}); make speed builds one")
    return BUILT


@pytest.fixture(scope="module", params=["python", "compiled"])
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the module's tests on the twins in Python, and once more on the compiled core."""
    with running_on(None if request.param == "python" else built()):
        yield request.param


def outcome(work: Callable[[], object]) -> tuple[object, ...]:
    """Return what a call gives, or its error with all its words, such that two of them can be compared."""
    try:
        return ("result", work())
    except Exception as error:
        return (type(error).__name__, str(error), {name: repr(value) for name, value in vars(error).items()})


# ------------------------------------------------------------------ random inputs
@pytest.fixture
def core() -> CompiledCore:
    """Give the compiled core."""
    return built()


class Draws:
    """A source of chance for each input, with a seed of its own: one that fails can be run alone, by --seed."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[random.Random]:
        return map(random.Random, range(self._first, self._first + self._count))


@pytest.fixture
def draws(rounds: int | None, seed: int | None) -> Draws:
    """Give chance for 200 inputs in the ordinary run, else for --rounds times a thousand."""
    return Draws(SEED if seed is None else seed, rounds * INPUTS_A_ROUND if rounds else INPUTS)


def alike(core: CompiledCore, draws: Draws, made: Callable[[random.Random], Callable[[], object]]) -> int:
    """Run each input on both, and return how many had a result; the others had an error."""
    good = 0
    for number, draw in enumerate(draws):
        work = made(draw)
        with running_on(None):
            plain = outcome(work)
        with running_on(core):
            quick = outcome(work)
        assert quick == plain, f"input {number}, counted from the first seed"
        good += plain[0] == "result"
    return good


def answered_of(core: CompiledCore, name: str, good: Sequence[object], draws: Draws) -> int:
    """Call a function with arguments of which some are replaced by anything at all, and return how often it answered;
    else it has refused. A panic would be an error of another kind."""
    function = getattr(core, name)
    assert function(*good)
    answered = 0
    for draw in draws:
        arguments = [one if draw.random() < 0.7 else anything(draw) for one in good]
        try:
            function(*arguments)
            answered += 1
        except REFUSALS:
            pass
    return answered


def anything(draw: random.Random, depth: int = 0) -> object:
    """Return an argument that is as good as any other, or none at all."""
    kind = draw.randrange(9 if depth else 12)
    if kind < 4:
        data = (
            RECORDS[: draw.randrange(len(RECORDS) + 1)] if draw.random() < 0.5 else draw.randbytes(draw.randrange(90))
        )
        return (bytes, bytearray, memoryview, lambda one: np.frombuffer(one, np.uint8).copy())[kind](data)
    if kind == 4:
        return np.zeros(draw.randrange(9), np.int64) if draw.random() < 0.7 else np.zeros((4, 4), np.int64)[:, ::2]
    if kind == 5:
        return bytearray(8 * draw.randrange(9))
    if kind == 6:
        return draw.choice((0, 1, -1, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, True))
    if kind == 7:
        return draw.choice((None, "text", 1.5, object(), {}, b""))
    if kind == 8:
        return np.arange(draw.randrange(6), dtype=np.int64) * draw.choice((1, 7, -1, 2**62))
    several = [anything(draw, depth + 1) for _ in range(draw.choice((0, 1, 2, 6)))]
    return several if draw.random() < 0.8 else [several[0]] * 6 if several else tuple(several)
