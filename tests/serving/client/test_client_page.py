"""The page on the thin client: its examples run over frames, print what it says and type-check; links lead somewhere.

Two proxies in memory answer on a port of this machine, in place of `127.0.0.1:8000`.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from inspect import getmembers
from pathlib import Path

import pytest
from helpers.documents.pages import broken_links, examples
from helpers.paths import DOCS, ROOT
from helpers.serving.memory_proxies import MemoryProxies

from dlspark.core.runtime import Runtime
from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.client import sync
from storage_node.transport.tcp import TcpNetwork

PAGE = DOCS / "serving" / "client.md"
SERVER = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    runtime = Runtime("proxies")
    fleet = MemoryProxies("nobody:1")
    served = FramesServer(TcpNetwork(), fleet["nobody:1"])
    runtime.run(served.start("127.0.0.1", 0))
    address = f"127.0.0.1:{served.port}"
    served.service = fleet.add(address)
    yield address
    Runtime.shared().close()
    runtime.run(served.close())
    runtime.close()


@pytest.mark.timeout(60)
def test_the_examples_run_and_print_what_the_page_says(server: str) -> None:
    names: dict[str, object] = {"__name__": "page_client"}
    found = examples(PAGE)
    assert len(found) > 4
    for example in found:
        source = "\n" * (example.line - 1) + example.source.replace(SERVER, server)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, str(PAGE), "exec"), names)
        if example.printed is not None:
            assert out.getvalue().replace(server, SERVER) == example.printed, f"line {example.line}"


@pytest.mark.timeout(280)
def test_the_examples_type_check_strictly(tmp_path: Path) -> None:
    program = tmp_path / "page_client.py"
    program.write_text("\n".join(example.source for example in examples(PAGE)))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--strict", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert broken_links(PAGE) == []


@pytest.mark.parametrize("kind", [sync.Client, sync.Producer, sync.ProxyReader], ids=lambda kind: kind.__name__)
def test_every_method_is_named_on_the_page(kind: type) -> None:
    words = set(re.findall(r"\w+", PAGE.read_text()))
    assert [name for name, _ in getmembers(kind) if not name.startswith("_") and name not in words] == []
