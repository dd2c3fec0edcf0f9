"""All tests of the codec run twice: on the twins in Python and on the compiled core."""

from __future__ import annotations

import pytest
from helpers.twins import twin as twin


@pytest.fixture(scope="module", autouse=True)
def _on_both_twins(twin: str) -> None:
    """Run every test of this folder on either."""
