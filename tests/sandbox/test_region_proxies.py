"""The proxies of a sandbox with regions: where each is, what it announces, what comes and goes with a region."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.sandbox.proxies import READER, SandboxProxies
from dlspark.sandbox.regions import SandboxRegions
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import RegionPlace, SandboxState
from metadata.foundation import processes
from metadata.foundation.errors import CallerError

PLACES = tuple(RegionPlace(f"r{n}", f"127.0.{n}.1", 20000 + n, 20010 + n, 20020 + n, 20030 + n) for n in (1, 2, 3))
PORTS = tuple(range(21000, 21006))
STATE = SandboxState(
    2181,
    (3001, 3002, 3003),
    proxy_ports=PORTS,
    read_proxy_port=22000,
    proxies=6,
    proxy_grpc_ports=tuple(port + 100 for port in PORTS),
    read_proxy_grpc_port=22100,
    regions=PLACES,
)
STAND_IN = """
import json, os, sys
json.dump({"arguments": sys.argv[1:], "region": os.environ["DLSPARK_REGION"], "socks": os.environ["DLSPARK_SOCKS"],
           "direct": os.environ["DLSPARK_SOCKS_DIRECT"], "conf": os.environ["DLSPARK_CONF"]}, open("said.json", "w"))
print("serves", flush=True)
sys.stdin.read()
import time
time.sleep(600)
"""


class StandIns(SandboxProxies):
    """Starts programs that say what they were given in place of proxies."""

    def _arguments(self, index: int) -> list[str]:
        _, _, module, *rest = super()._arguments(index)
        return [sys.executable, "-c", STAND_IN, module, *rest]

    def said(self, index: int) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads((self._folder(index) / "said.json").read_text()))


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[StandIns]:
    spawner = ThreadPoolExecutor(1)
    regions = SandboxRegions(tmp_path, STATE, 250, cast(Any, None))
    # One write proxy a region: the others' ports are of an earlier start.
    proxies = StandIns(tmp_path, replace(STATE, proxies=3), spawner, regions=regions)
    yield proxies
    proxies.stop()
    spawner.shutdown()


def test_each_region_has_so_many_write_proxies_and_a_read_proxy_at_its_own_address() -> None:
    assert [(one.region and one.region.name, one.frames, one.grpc) for one in STATE.write_proxies] == [
        ("r1", "127.0.1.1:21000", "127.0.1.1:21100"),
        ("r2", "127.0.2.1:21001", "127.0.2.1:21101"),
        ("r3", "127.0.3.1:21002", "127.0.3.1:21102"),
        ("r1", "127.0.1.1:21003", "127.0.1.1:21103"),
        ("r2", "127.0.2.1:21004", "127.0.2.1:21104"),
        ("r3", "127.0.3.1:21005", "127.0.3.1:21105"),
    ]
    assert [one.frames for one in STATE.read_proxies] == ["127.0.1.1:22000", "127.0.2.1:22000", "127.0.3.1:22000"]
    assert replace(STATE, proxies=0).write_proxies == replace(STATE, proxies=0).read_proxies == []
    plain = replace(STATE, regions=(), proxies=2)
    assert [one.frames for one in plain.write_proxies] == ["127.0.0.1:21000", "127.0.0.1:21001"]
    assert [one.grpc for one in plain.read_proxies] == ["127.0.0.1:22100"]


def test_a_sandbox_keeps_ports_for_the_proxies_of_all_its_regions(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, regions=3, proxies=2)
    state = sandbox._claim()
    assert len(set(state.proxy_ports)) == len(state.write_proxies) == 6
    assert len(state.read_proxies) == 3
    replace(state, pid=None, started=None).save(tmp_path)
    assert Sandbox(tmp_path, regions=3, proxies=1)._claim().write_proxies == state.write_proxies[:3]


def test_a_proxy_is_in_its_region_and_announces_an_address_of_it_and_is_lost_and_back_with_it(
    stand_ins: StandIns, tmp_path: Path
) -> None:
    stand_ins.start()
    assert stand_ins.write_addresses == ["127.0.1.1:21000", "127.0.2.1:21001", "127.0.3.1:21002"]
    assert stand_ins.read_address == "127.0.1.1:22000"
    assert stand_ins.numbers_in("r2") == [1, READER - 1]
    said = stand_ins.said(1)
    assert (said["region"], said["socks"], said["direct"]) == ("r2", "127.0.2.1:20032", "127.0.2.1")
    assert said["conf"] == str(tmp_path / "regions.conf")
    assert said["arguments"][0] == "dlspark.serving.write_proxy"
    assert {"--set=server_host=127.0.2.1", "--set=server_advertised_host=127.0.2.1", "--set=server_port=21001"} <= set(
        said["arguments"]
    )
    reader = stand_ins.said(READER - 2)
    assert reader["region"] == "r3"
    assert {"--set=listenHost=127.0.3.1", "--set=advertisedHost=127.0.3.1", "--set=port=22000"} <= set(
        reader["arguments"]
    )

    before = {index: stand_ins.pid(index) for index in (0, 1, 2, READER, READER - 1, READER - 2)}
    stand_ins.kill_region("r2")
    assert {index for index in before if stand_ins.pid(index) is None} == {1, READER - 1}
    stand_ins.start_region("r2")
    after = {index: stand_ins.pid(index) for index in before}
    assert None not in after.values()
    assert {index for index in before if before[index] != after[index]} == {1, READER - 1}

    stand_ins.kill_region("r2")
    stand_ins.stop()
    with pytest.raises(CallerError, match="being stopped"):
        stand_ins.start_region("r2")


def test_status_names_the_proxies_of_each_region(tmp_path: Path) -> None:
    replace(STATE, pid=os.getpid(), started=processes.started(os.getpid())).save(tmp_path)
    result = CliRunner().invoke(app, ["sandbox", "status", "--dir", str(tmp_path)])
    assert result.exit_code == 3
    lines = result.output.splitlines()
    assert (
        "region r2: write proxies: 127.0.2.1:21001, 127.0.2.1:21004 for frames, 127.0.2.1:21101, 127.0.2.1:21104 "
        "for gRPC" in lines
    )
    assert "region r3: read proxy: 127.0.3.1:22000 for frames, 127.0.3.1:22100 for gRPC" in lines
    assert any(line.endswith("; thin clients there ask its proxies first") for line in lines)
    silent = next(line for line in lines if "nothing listens on" in line)
    assert "127.0.3.1:21005" in silent
    assert "127.0.2.1:22000" in silent
