"""Every notebook runs from top to bottom, and is committed with its output."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def load_executor() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook_executor", NOTEBOOKS / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_a_quickstart() -> None:
    assert "01-quickstart.ipynb" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_committed_with_its_output(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_runs(name: str) -> None:
    executed = load_executor().execute(NOTEBOOKS / name)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
