"""The pages on the Spark connector: examples are Python whose names exist, and links lead somewhere.

The guide's examples run on a stand-in for a session that checks what each query is asked for; what queries do is shown
by the tests of tests/spark.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.documents import pages
from helpers.paths import DOCS

from dlspark.spark import ForeachLogWriter
from dlspark.spark.catalog import enabling as catalog
from dlspark.spark.connection import resolve_uri
from dlspark.spark.metadata_tables.registry import requested
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import routing_of
from dlspark.spark.source.selection import SourceQuery

PAGES = [DOCS / f"{name}.md" for name in ("spark", "settings/spark", "spark-metadata", "sql", "connectors")]
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


class Frame:
    """A data frame that has no rows: it checks only what it is written with."""

    def __init__(self, said: list[str], stream: bool) -> None:
        self._said = said
        self._stream = stream

    @property
    def write(self) -> Request:
        assert not self._stream, "a stream has no write"
        return Request(self._said, Scope.SINK_BATCH)

    @property
    def writeStream(self) -> Request:
        assert self._stream, "only a stream has writeStream"
        return Request(self._said, Scope.SINK_STREAM)

    def show(self) -> None: ...

    def __getattr__(self, transformation: str) -> Callable[..., Frame]:
        assert transformation in ("select", "selectExpr", "groupBy", "count", "where")
        return lambda *args: self


class Request:
    """What comes of `read`, `readStream`, `write`, `writeStream`: its options are read where Spark would begin."""

    def __init__(self, said: list[str], scope: Scope) -> None:
        self._said = said
        self._scope = scope
        self._raw: dict[str, str] = {}
        self._ours = False

    def __getattr__(self, step: str) -> Callable[..., Request]:
        assert step in ("mode", "outputMode", "trigger")
        return lambda *args, **kwargs: self

    def format(self, name: str) -> Request:
        assert name == "distributedlog"
        self._ours = True
        return self

    def option(self, name: str, value: object) -> Request:
        self._said.append(name)
        self._raw[name] = str(value)
        return self

    def table(self, name: str) -> Frame:
        return Frame(self._said, bool(self._scope & Scope.SOURCE_STREAM))

    def load(self, path: str | None = None) -> Frame:
        options = self._options(path)
        if requested(options) is None:
            SourceQuery.of(options)
        return Frame(self._said, bool(self._scope & Scope.SOURCE_STREAM))

    def save(self, path: str | None = None) -> None:
        routing_of(self._options(path))

    def start(self) -> None:
        if self._ours:
            self.save()

    def toTable(self, name: str) -> None: ...

    def foreach(self, writer: ForeachLogWriter) -> Request:
        return self

    def foreachBatch(self, function: Callable[[Frame, int], None]) -> Request:
        function(Frame(self._said, stream=False), 0)
        return self

    def _options(self, path: str | None) -> Options:
        assert self._ours
        raw = {name: value for name, value in self._raw.items() if name not in SPARKS}
        options = Options(raw if path is None else {**raw, "path": path}, self._scope)
        return options.with_uri(resolve_uri(options))


class Session:
    """Stands in for a Spark session: nothing runs, and what reads and writes are given is checked."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.streams = SimpleNamespace(addListener=lambda listener: None)

    @property
    def read(self) -> Request:
        return Request(self.said, Scope.SOURCE_BATCH)

    @property
    def readStream(self) -> Request:
        return Request(self.said, Scope.SOURCE_STREAM)

    def sql(self, statement: str) -> Frame:
        return Frame(self.said, stream=False)


def test_what_the_guide_s_examples_ask_for_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSPARK_URI", "distributedlog://127.0.0.1:2181/distributedlog")
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.setattr(catalog, "enable", lambda spark: None)
    session = Session()
    names: dict[str, object] = {"__name__": "guide", "spark": session}
    for example in pages.examples(PAGES[0]):
        exec(compile("\n" * (example.line - 1) + example.source, str(PAGES[0]), "exec"), names)
    assert len(set(session.said)) > 15
