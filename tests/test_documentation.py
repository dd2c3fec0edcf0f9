"""The pages on the Python library: examples run, print what the pages say and type-check; links lead somewhere.

All pages share one sandbox, a real ZooKeeper and three storage nodes, in place of `127.0.0.1:2181`; each has names of
logs and paths of its own. The blocks of a page run in its order, as one program.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.documents.pages import broken_links, examples, linked_files
from helpers.paths import DOCS, ROOT, TESTS

import dlspark
from dlspark.core.runtime import Runtime
from dlspark.sandbox.sandbox import Sandbox

ENTRY = DOCS / "python.md"
PAGES = [ENTRY, *sorted((DOCS / "python").glob("*.md"))]
SERVER = "127.0.0.1:2181"
PROGRAM = TESTS / "helpers" / "documents" / "typed_program.py"


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Sandbox(tmp_path_factory.mktemp("documented"), nodes=3) as sandbox:
        yield sandbox.uri.removeprefix("distributedlog://").partition("/")[0]
        Runtime.shared().close()


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_s_examples_run_and_print_what_it_says(
    page: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": f"page_{page.stem}"}
    assert examples(page), "a page without an example"
    for example in examples(page):
        source = "\n" * (example.line - 1) + example.source.replace(SERVER, server)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, str(page), "exec"), names)
        if example.printed is not None:
            said = out.getvalue().replace(server, SERVER)
            assert said == example.printed, f"{name_of(page)}, line {example.line}"


@pytest.mark.timeout(280)
def test_programs_of_users_type_check_strictly(tmp_path: Path) -> None:
    programs = [PROGRAM]
    for page in PAGES:
        programs.append(tmp_path / f"page_{page.stem.replace('-', '_')}.py")
        programs[-1].write_text("\n".join(example.source for example in examples(page)))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--strict", *map(str, programs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_program_does_not_type_check(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text('from dlspark import Namespace\n\nNamespace.open("uri").open_log("x").start().upper()\n')
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--strict", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert '"DLSN" has no attribute "upper"' in done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    for package in ("dlspark", "storage_node", "metadata"):
        assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_the_entry_page_links_every_page_and_names_every_public_name() -> None:
    text = ENTRY.read_text()
    assert set(PAGES[1:]) <= linked_files(ENTRY)
    for name in set(dlspark.__all__) - {"__version__"}:
        assert re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", text), name


@pytest.mark.parametrize("name", ["Namespace", "Log", "LogWriter", "LogReader", "LockedReader", "PendingWrite"])
def test_every_public_method_is_described_on_a_page(name: str) -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    words = set(re.findall(r"\w+", text))
    for method, _ in inspect.getmembers(getattr(dlspark, name)):
        assert method.startswith("_") or method in words, f"{name}.{method}"


def test_the_walks_through_the_house_pass_files_that_are_there() -> None:
    """A path in a row of docs/architecture.md is whole, or begins in the folder of the one before it or beside that."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    for row in re.findall(r"^\|.*\|$", page, re.MULTILINE):
        before = Path()
        for name in re.findall(r"`([\w/-]+\.py)`", row):
            found = [folder / name for folder in (Path(), before, before.parent) if (ROOT / folder / name).is_file()]
            assert found, f"{name} in {row}"
            before = found[0].parent
