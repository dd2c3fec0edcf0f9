"""Every notebook runs on a secured sandbox as it stands: the variable `DLSPARK_SECURITY` is all that is set."""

from __future__ import annotations

import pytest
from helpers.paths import ROOT
from test_notebooks import NAMES, load_executor

NOTEBOOKS = ROOT / "notebooks"
OPERATORS = ("06-serving.ipynb",)
"""They do what clients may not: take a log from its proxy (`release`)."""


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_runs_on_a_secured_sandbox(name: str) -> None:
    executed = load_executor().execute(NOTEBOOKS / name, secured_as="operator" if name in OPERATORS else "client")
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
    assert "SecuredSandbox" not in executed.cells[0].source, "what was put before it is taken away again"
