"""Parameters that the ordinary test command leaves out: `--rounds 1` tries them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


def with_rounds(*values: object) -> list[ParameterSet]:
    """Return parameters for runs with --rounds only: what they show is shown by another one, or by a cheaper test."""
    return [pytest.param(one, marks=pytest.mark.long) for one in values]


def pairs_with_rounds(*pairs: tuple[object, ...]) -> list[ParameterSet]:
    """Return the same for several parameters at once."""
    return [pytest.param(*pair, marks=pytest.mark.long) for pair in pairs]
