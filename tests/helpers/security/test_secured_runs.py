"""`--secured` secures what it says, and the tests know it: run by the last test, in a process with the option."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlspark.core.sync.namespace import Namespace
from dlspark.errors import DistributedLogError
from dlspark.testing.cluster import InProcessCluster
from helpers.paths import ROOT
from helpers.security.secured_runs import OPTION, VARIABLE, is_secured
from helpers.worlds.warm_sandbox import WarmSandbox
from storage_node.settings.client import ClientSettings

inside = pytest.mark.skipif("not config.getoption('--secured')", reason="the last test runs it with --secured")


@pytest.fixture
def small_sandbox(tmp_path: Path) -> Iterator[WarmSandbox]:
    made = WarmSandbox(tmp_path / "sandbox", nodes=1)
    with made:
        yield made


@inside
@pytest.mark.processes
def test_a_sandbox_takes_who_has_the_variable_and_nobody_in_plain(small_sandbox: WarmSandbox) -> None:
    assert small_sandbox.state.secured
    with Namespace.open(small_sandbox.uri) as namespace:
        namespace.create_log("log")
        with namespace.open_log("log") as log, log.open_writer() as writer:
            writer.write(1, b"hidden").result(60)
    with pytest.raises(DistributedLogError):
        Namespace.open(small_sandbox.uri, {"security": "off"})


@inside
async def test_nodes_of_this_process_demand_certificates_and_their_clients_have_one(tmp_path: Path) -> None:
    assert VARIABLE not in os.environ  # the test is not marked: worlds in memory know no TLS
    async with InProcessCluster(tmp_path, nodes=3) as cluster:
        modes = [bookie.settings.security.security for bookie in cluster.bookies if bookie is not None]
        assert modes == ["on"] * 3
        namespace = await cluster.connect(client=ClientSettings())
        await namespace.create_log("log")
        log = await namespace.open_log("log")
        writer = await log.open_writer()
        written = writer.write(1, b"hidden")
        await writer.flush()
        await written
        await writer.close()


@inside
@pytest.mark.plain_only(reason="to see that it is skipped")
def test_what_is_plain_on_purpose_is_skipped() -> None:
    assert not is_secured()


@pytest.mark.processes
@pytest.mark.skipif("config.getoption('--secured')", reason="it is what runs the others")
def test_the_option_secures_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", OPTION, str(Path(__file__))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert re.search("2 passed, 2 skipped", done.stdout), done.stdout
