"""A warm sandbox is a sandbox: nodes die, come back with their data, and end with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlspark.core.sync.namespace import Namespace
from helpers.worlds.warm_sandbox import WarmSandbox

pytestmark = pytest.mark.processes


def test_what_a_log_holds_outlives_a_kill_of_every_node_and_an_orderly_stop(tmp_path: Path) -> None:
    with WarmSandbox(tmp_path, nodes=3) as sandbox:
        with Namespace.open(sandbox.uri) as namespace:
            namespace.create_log("log")
            with namespace.open_log("log") as log, log.open_writer() as writer:
                writer.write(1, b"kept").result(60)
        for index in range(3):
            first = sandbox.node_pid(index)
            sandbox.kill_node(index)
            assert sandbox.node_pid(index) is None
            sandbox.start_node(index)
            assert sandbox.node_pid(index) not in (None, first)
    assert all(not Path(f"/proc/{sandbox.node_pid(index)}").exists() for index in range(3))
    with (
        WarmSandbox(tmp_path, nodes=3) as sandbox,
        Namespace.open(sandbox.uri) as namespace,
        namespace.open_log("log") as log,
        log.open_reader() as reader,
    ):
        assert reader.read_next().payload == b"kept"
