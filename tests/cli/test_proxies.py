"""`dlspark proxy` and the sandbox's proxies, as processes: found, moved, drained, killed, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from helpers.security.secured_runs import credentials_for, role_settings
from helpers.waiting import wait_until
from typer.testing import CliRunner, Result

from dlspark.cli.main import app
from dlspark.core.settings.settings import Settings
from dlspark.core.sync.namespace import Namespace
from dlspark.errors import OwnershipAcquireFailedError
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.proxies import READER
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import SandboxState
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.operations import (
    Answer,
    Done,
    Refusal,
    ReleaseStream,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import CallerError
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session
from storage_node.transport.tcp import TcpNetwork

pytestmark = [pytest.mark.processes, pytest.mark.identity("operator")]


@pytest.fixture(scope="module", name="tier")
def _tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with ExitStack() as ending:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("DLSPARK_REGION", "home")  # of its processes
            running = ending.enter_context(Sandbox(tmp_path_factory.mktemp("proxies") / "sandbox", nodes=1, proxies=2))
        yield running


def run(tier: Sandbox, *arguments: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["proxy", *arguments], env={"DLSPARK_URI": tier.uri})
    assert done.exit_code == status, (arguments, done.output, done.stderr, done.exception)
    return done


def result(tier: Sandbox, *arguments: str, status: int = 0) -> Any:
    return json.loads(run(tier, *arguments, "--output", "json", status=status).stdout)


def owners(tier: Sandbox) -> dict[str, str]:
    return {one["stream"]: one["proxy"].rpartition(";")[2] for one in result(tier, "owners")["owners"]}


def write(address: str, *streams: str) -> list[Answer]:
    async def asked() -> list[Answer]:
        peers = ProxyPeers(TcpNetwork(), credentials_for=credentials_for)
        try:
            return [await peers.call(address, WriteRecords(stream, (b"x",)), 30_000) for stream in streams]
        finally:
            await peers.close()

    return asyncio.run(asked())


def peers_release(address: str, stream: str) -> None:
    async def asked() -> Answer:
        peers = ProxyPeers(TcpNetwork(), credentials_for=credentials_for)
        try:
            return await peers.call(address, ReleaseStream(stream), 30_000)
        finally:
            await peers.close()

    assert asyncio.run(asked()) == Done()


def written(address: str, *streams: str) -> None:
    for answer in write(address, *streams):
        assert isinstance(answer, WriteReceipt), answer


def test_proxies_are_listed_with_what_they_own(tier: Sandbox) -> None:
    first, second = tier.proxies.write_addresses
    written(first, "listed-a", "listed-b")
    proxies = result(tier, "list")["proxies"]
    assert [(one["kind"], one["address"]) for one in proxies] == [
        ("write", first),
        ("write", second),
        ("read", tier.proxies.read_address),
    ]
    assert proxies[0]["status"] == "WRITE_AND_ACCEPT"
    assert proxies[0]["streams"] >= 2
    assert first in run(tier, "list").stdout
    only = result(tier, "owners", "--filter", "listed-a")["owners"]
    assert [one["stream"] for one in only] == ["listed-a"]
    assert "listed-b" in run(tier, "owners").stdout


def test_a_stream_is_moved_and_balanced_back(tier: Sandbox) -> None:
    first, second = tier.proxies.write_addresses
    written(first, *(f"moved-{number}" for number in range(4)))
    assert "handed over" in run(tier, "move", "moved-0", "1").stdout
    assert result(tier, "move", "moved-0", second)["moved"] is False
    written(second, "moved-0")
    (refused,) = write(first, "moved-0")
    assert isinstance(refused, Refusal)
    assert refused.code is StatusCode.FOUND
    planned = result(tier, "balance", "--dry-run")["moves"]
    assert len(result(tier, "balance")["moved"]) == len(planned) > 0
    assert result(tier, "balance")["moved"] == []
    counts = [one["streams"] for one in result(tier, "list")["proxies"] if one["kind"] == "write"]
    assert abs(counts[0] - counts[1]) <= 1


def test_a_stream_is_given_up_for_a_writer_that_was_told_how(tier: Sandbox) -> None:
    first, _ = tier.proxies.write_addresses
    written(first, "wanted")
    settings = Settings.from_mapping({"lockTimeoutSeconds": 0})
    with Namespace.open(tier.uri, settings) as namespace, namespace.open_log("wanted") as log:
        with pytest.raises(OwnershipAcquireFailedError, match="dlspark proxy release LOG"):
            log.open_writer()
        assert result(tier, "release", "wanted")["from"].endswith(first)
        with log.open_writer() as writer:
            writer.write(2**41, b"y")
    assert "no write proxy says that it owns the stream" in run(tier, "release", "wanted", status=1).stderr


def test_a_log_is_moved_to_a_region_or_refused_with_what_to_do(tier: Sandbox) -> None:
    first, second = tier.proxies.write_addresses
    written(first, "at-home")
    assert {one["region"] for one in result(tier, "list")["proxies"]} == {"home"}
    assert "home" in run(tier, "list").stdout

    def moved(log: str, region: str, *more: str, status: int) -> Result:
        arguments = ["regions", "move", log, region, *more]
        done = CliRunner().invoke(app, arguments, env={"DLSPARK_URI": tier.uri})
        assert done.exit_code == status, (done.output, done.stderr, done.exception)
        return done

    assert "already" in moved("at-home", "home", status=0).stdout
    away = moved("at-home", "away", status=1).stderr
    assert "DLSPARK_REGION=away dlspark proxy write" in away
    assert "home" in away
    assert "no such log" in moved("mistyped", "home", status=1).stderr
    run(tier, "move", "at-home", second)
    write(second, "at-home")
    peers_release(second, "at-home")
    opened = json.loads(moved("at-home", "home", "--output", "json", status=0).stdout)
    assert (opened["from"], opened["moved"], opened["round_trips"]) == (None, True, 2)
    assert owners(tier)["at-home"] in (first, second)


def test_a_proxy_whose_host_is_in_another_region_by_now_is_to_be_started_again(tier: Sandbox) -> None:
    def announce(location: str | None) -> None:
        async def announced() -> None:
            store = await open_session(tier.zookeeper_address, SecuritySettings())
            try:
                await TopologyStore(store, LEDGERS_PATH).announce(tier.node_ids[0], location)
            finally:
                await store.close()

        asyncio.run(announced())

    announce("/home/rack1")
    assert result(tier, "list")["differing"] == {}
    announce("/away/rack1")
    listed = result(tier, "list", status=3)
    assert listed["differing"] == {one["location"]: "away" for one in listed["proxies"]}
    assert "which say away" in run(tier, "list", status=3).stderr
    announce(None)
    assert result(tier, "list")["differing"] == {}


def test_a_drained_proxy_takes_nothing_until_it_may_again(tier: Sandbox) -> None:
    first, second = tier.proxies.write_addresses
    written(first, "drained")
    run(tier, "drain", first)
    assert set(owners(tier).values()) == {second}
    (refused,) = write(first, "new")
    assert isinstance(refused, Refusal)
    assert refused.code is StatusCode.SERVICE_UNAVAILABLE
    run(tier, "drain", first, "--undo")
    written(first, "new")
    assert owners(tier)["new"] == first


def test_wrong_names_are_said_to_be_wrong(tier: Sandbox) -> None:
    assert "dlspark proxy list" in run(tier, "move", "listed-a", "nowhere:1", status=1).stderr
    assert "two regions" in run(tier, "balance", "--regions", "A", status=1).stderr
    assert "region A" in run(tier, "balance", "--regions", "A,B", status=1).stderr
    wrong = run(tier, "owners", "--filter", "(?=x)", status=3)
    assert "are not listed: not a regular expression" in wrong.stderr
    assert "error" not in run(tier, "list").stdout, "a column that would be empty"


def test_loads_are_written_down_by_the_leader_and_balanced_by(tier: Sandbox) -> None:
    def there() -> bool:
        done = CliRunner().invoke(app, ["proxy", "balance", "--by", "load", "--dry-run"], env={"DLSPARK_URI": tier.uri})
        return done.exit_code == 0

    wait_until(there, "the leader has written loads", every_s=0.5)


def test_the_streams_of_a_killed_proxy_are_taken_over(tier: Sandbox) -> None:
    first, second = tier.proxies.write_addresses
    written(first, "orphan")
    tier.proxies.kill(0)
    wait_until(lambda: isinstance(write(second, "orphan")[0], WriteReceipt), "the session of the dead has ended")
    assert owners(tier)["orphan"] == second
    tier.proxies.start_one(0)
    assert [one["address"] for one in result(tier, "list")["proxies"]][:2] == [first, second]


def test_a_stopped_proxy_hands_over_and_a_second_signal_does_not_wait(tier: Sandbox) -> None:
    first, second = tier.proxies.write_addresses
    written(first, "handed")
    tier.proxies.stop_one(0)
    assert owners(tier)["handed"] == second
    written(second, "handed")
    arguments = [
        sys.executable,
        "-m",
        "dlspark.cli",
        "proxy",
        "write",
        "--uri",
        tier.uri,
        "--port",
        first.split(":")[1],
    ]
    arguments += ["--set", "server_advertised_host=127.0.0.1", "--grpc-port=-1"]
    arguments += ["--set", "server_graceful_shutdown_period_ms=600000"]
    arguments += [f"--set={key}={value}" for key, value in role_settings("proxy").items()]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment(), text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert first in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    while "are given up" not in (line := process.stderr.readline()):
        assert line, "it ended before it waited"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    tier.proxies.start_one(0)


def test_the_state_says_which_proxies_there_are(tier: Sandbox) -> None:
    shown = CliRunner().invoke(app, ["sandbox", "status", "--dir", str(tier.directory)])
    proxies = tier.proxies
    frames, grpc = ", ".join(proxies.write_addresses), ", ".join(proxies.write_grpc_addresses)
    assert f"write proxies: {frames} for frames, {grpc} for gRPC\n" in shown.stderr
    assert f"read proxy: {proxies.read_address} for frames, {proxies.read_grpc_address} for gRPC\n" in shown.stderr
    listed = result(tier, "list")["proxies"]
    assert [one["grpc"] for one in listed] == [*proxies.write_grpc_addresses, proxies.read_grpc_address]
    assert all(one["stats"] for one in listed)
    assert proxies.pid(READER) is not None
    assert os.path.isdir(tier.directory / "read-proxy")


def test_a_sandbox_without_the_option_has_no_proxies(tmp_path: Any) -> None:
    with Sandbox(tmp_path / "plain", nodes=1) as plain:
        with pytest.raises(CallerError, match="no proxies"):
            _ = plain.proxies
        state = SandboxState.load(plain.directory)
        assert state is not None
        assert (state.proxy_ports, state.read_proxy_port, state.proxies) == ((), None, 0)
        assert (state.proxy_grpc_ports, state.read_proxy_grpc_port) == ((), None)
        assert not (plain.directory / "read-proxy").exists()
    with pytest.raises(CallerError):
        Sandbox(tmp_path / "less", proxies=-1)
