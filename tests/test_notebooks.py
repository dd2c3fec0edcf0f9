"""Every notebook runs from top to bottom, and is committed with its output.

Without --rounds three of them run; what the others show is run by examples/ and the tests of its parts, and what they
import is there.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from types import ModuleType

import nbformat
import pytest
from helpers.paths import ROOT
from helpers.rounds import with_rounds

NOTEBOOKS = ROOT / "notebooks"
RUN = ("01-quickstart.ipynb", "05-operations.ipynb", "08-tables.ipynb")
"""Those that run without --rounds, too: Spark, the command line's functions, SQL."""
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


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_is_text_too(name: str) -> None:
    """For front ends without HTML, and for who compares two versions of a notebook."""
    texts = [
        output.data["text/plain"]
        for cell in nbformat.read(NOTEBOOKS / name, as_version=4).cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    for text in texts:
        assert not re.match(r"<[\w.]+ object", text), text
        assert not re.match(r"\w+\(\w+=", text), text[:80]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_notebook_imports_is_there(name: str) -> None:
    """Its cells are Python, and the names that they take of our packages exist: also of notebooks that do not run."""
    found = 0
    for cell in nbformat.read(NOTEBOOKS / name, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        lines = (line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!")))
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        for node in ast.walk(compile("\n".join(lines), name, "exec", flags)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlspark"):
                module = importlib.import_module(node.module or "")
                assert [one.name for one in node.names if not hasattr(module, one.name)] == []
                found += 1
    assert found


def test_the_operations_notebook_shows_the_node_that_was_lost_and_a_query_that_ended() -> None:
    notebook = nbformat.read(NOTEBOOKS / "05-operations.ipynb", as_version=4)
    texts = [
        output.data["text/plain"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output
    ]
    (nodes,) = [text for text in texts if "not registered" in text]
    rows = [line.split() for line in nodes.splitlines()[2:]]
    assert [(row[0], " ".join(row[2:-1])) for row in rows] == [
        ("0", "not registered"),
        ("1", "writable"),
        ("2", "writable"),
        ("3", "writable"),
    ]
    (lag,) = [text for text in texts if text.startswith("query hourly")]
    assert lag.startswith("query hourly: ended, batch")
    (cursors,) = [text for text in texts if "hourly-report" in text]
    records, size = (int(number) for number in cursors.splitlines()[-1].split()[-2:])
    assert records == 1
    assert size < 200, "a record of 17 bytes, its entry and a control record"


def test_the_serving_notebook_shows_that_nothing_was_lost_and_that_readers_share() -> None:
    notebook = nbformat.read(NOTEBOOKS / "06-serving.ipynb", as_version=4)
    text = "\n".join(output.text for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output)
    counts = re.search(r"([\d,]+) records sent, ([\d,]+) acknowledged, 0 errors", text)
    assert counts is not None
    assert counts[1] == counts[2]
    assert f"{counts[1]} records of 100 producers; twice: 0" in text
    assert "1,000 readers, 1 sequence; equal to what is stored: True" in text
    reads = {(one[1], one[0]): float(one[2]) for one in re.findall(r"([\d,]+) (\w+) +readers: +([\d.]+) reads", text)}
    assert reads["thin", "1,000"] < 2
    assert reads["direct", "100"] > 50


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [*RUN, *with_rounds(*(name for name in NAMES if name not in RUN))])
def test_the_notebook_runs(name: str) -> None:
    executed = load_executor().execute(NOTEBOOKS / name)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
