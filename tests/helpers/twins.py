"""The compiled core and its twins in Python: every test of a module that takes `twin` runs on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from metadata.foundation import compiled
from metadata.foundation.compiled import CompiledCore

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
