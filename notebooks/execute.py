"""Execute the notebooks in place and keep their output: `make notebooks`, or `python notebooks/execute.py [NAME ...]`.

Each runs in a kernel of this interpreter, in a directory of its own, so that nothing is left beside the notebook.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
CELL_TIMEOUT_S = 240
SECURED = """
import os
import dlspark.sandbox

class SecuredSandbox(dlspark.sandbox.Sandbox):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, secure=True, **options)

    def start(self):
        super().start()
        os.environ["DLSPARK_SECURITY"] = str(self.security.folder("{role}"))

dlspark.sandbox.Sandbox = SecuredSandbox
"""
"""What stands for a shell that was put into a secured cluster: the notebook's own cells are as ever."""


def execute(path: Path, *, secured_as: str = "") -> nbformat.NotebookNode:
    """Run a notebook from top to bottom and return it with its output. Raises CellExecutionError.

    `secured_as`: its sandbox is secured, and the variable `DLSPARK_SECURITY` names the folder of this role; the
    notebook itself does nothing about it.
    """
    notebook = nbformat.read(path, as_version=4)
    if secured_as:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(SECURED.replace("{role}", secured_as)))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="dlspark-notebook-") as directory:
        resources = {"metadata": {"path": directory}}
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=resources)
        client.execute()
    if secured_as:
        del notebook.cells[0]
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)
        # Spark logs to standard error; what a reader should see, errors included, is elsewhere.
        if cell.cell_type == "code":
            cell["outputs"] = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    paths = [HERE / name for name in names] or sorted(HERE.glob("*.ipynb"))
    for path in paths:
        print(f"executing {path.name}", flush=True)
        nbformat.write(execute(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
