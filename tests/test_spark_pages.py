"""The pages on the Spark connector: examples are Python whose names and options exist, links lead somewhere.

They do not run: most need data of their own. What they say is shown by the tests of tests/spark.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from pathlib import Path

import pages
import pytest

from dlspark.spark.options import Options, Scope

PAGES = [pages.DOCS / f"{name}.md" for name in ("spark", "spark-options", "spark-metadata", "sql", "connectors")]
EXAMPLES = {page: [ast.parse(one.source) for one in pages.examples(page)] for page in PAGES}
SPARKS = {"checkpointLocation"}
GIVEN = {"spark"}
"""Names that an example may take for there."""


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def _nodes(page: Path) -> list[ast.AST]:
    return [node for tree in EXAMPLES[page] for node in ast.walk(tree)]


def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    assert pages.broken_links(page) == []


def test_the_guide_leads_to_every_page() -> None:
    assert set(PAGES) - {PAGES[0]} <= pages.linked_files(PAGES[0])


def test_names_in_examples_are_defined_on_their_page(page: Path) -> None:
    used, defined = set(), GIVEN | set(dir(builtins))
    for node in _nodes(page):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                defined.add(name)
            case ast.alias(name=name, asname=other):
                defined.add(other or name.partition(".")[0])
    assert used - defined == set()


def test_what_examples_import_exists(page: Path) -> None:
    for node in _nodes(page):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            assert [one.name for one in node.names if not hasattr(module, one.name)] == []
        elif isinstance(node, ast.Import):
            for one in node.names:
                importlib.import_module(one.name)


def test_options_in_examples_exist_and_have_values_that_can_be_read() -> None:
    seen = set()
    for node in (node for page in PAGES for node in _nodes(page)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "option":
            name, value = node.args
            assert isinstance(name, ast.Constant)
            seen.add(name.value)
            if name.value not in SPARKS:
                Options({name.value: str(value.value) if isinstance(value, ast.Constant) else "1"}, Scope.ANY)
    assert len(seen) > 10
