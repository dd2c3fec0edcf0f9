"""Commands about regions over their socket; what a sandbox with regions refuses, and keeps in its state."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from dlspark.cli.sandbox import _check_listening, parse_round_trip_ms
from dlspark.sandbox.region_control import RegionCommand, RegionControl, tell
from dlspark.sandbox.regions import SandboxRegions, export_line, region_environment
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import RegionPlace, SandboxState
from metadata.foundation import processes
from metadata.foundation.errors import CallerError, NotAppliedError

PLACES = tuple(RegionPlace(f"r{n}", f"127.0.{n}.1", 20000 + n, 20010 + n, 20020 + n, 20030 + n) for n in (1, 2, 3))
STATE = SandboxState(2181, (3001, 3002, 3003, 3004), regions=PLACES, round_trip_ms=20)


class StandIn:
    """What a sandbox does with commands, noted; its regions take them as real ones whose gateways always answer."""

    def __init__(self, directory: Path) -> None:
        self.done: list[str] = []
        self.regions = Answered(directory)

    def kill_region(self, name: str) -> None:
        self.regions.cut(name)
        self.done.append(f"kill {name}")

    def heal_region(self, name: str) -> None:
        self.regions.heal(name)
        self.done.append(f"heal {name}")


class Answered(SandboxRegions):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, STATE, 250, cast(Any, None))
        self.lines: list[str] = []

    def _tell(self, line: str) -> bytes:
        self.lines.append(line)
        return b"ok\n"

    def closed(self) -> set[tuple[str, str]]:
        return {(way.source, way.target) for way in self._ways() if not way.opened}


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def state(stand_in: StandIn) -> Iterator[SandboxState]:
    control = RegionControl(stand_in)
    started = processes.started(os.getpid())
    yield replace(STATE, pid=os.getpid(), started=started, control_port=control.port)
    control.close()
    control.close()


def test_commands_are_carried_out_and_answered_with_the_conditions(state: SandboxState, stand_in: StandIn) -> None:
    assert tell(state, RegionCommand("list")) == {"r1": "", "r2": "", "r3": ""}
    assert tell(state, RegionCommand("cut", "r2", "in"))["r2"] == "receives nothing"
    assert stand_in.regions.closed() == {("r1", "r2"), ("r3", "r2")}
    assert tell(state, RegionCommand("slow", "r1", round_trip_ms=300))["r1"] == "slow: 300 ms"
    assert tell(state, RegionCommand("cut", "r2", "out"))["r2"] == "is not heard"
    assert stand_in.regions.closed() == {("r2", "r1"), ("r2", "r3")}
    assert tell(state, RegionCommand("kill", "r2"))["r2"] == "cut off"
    assert len(stand_in.regions.closed()) == 4
    assert tell(state, RegionCommand("heal", "r2"))["r2"] == ""
    assert stand_in.done == ["kill r2", "heal r2"]


def test_a_question_is_answered_while_a_region_is_being_healed(state: SandboxState, stand_in: StandIn) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def heal(name: str) -> None:
        begun.set()
        assert go_on.wait(60)

    stand_in.heal_region = heal  # type: ignore[method-assign]
    healing = threading.Thread(target=tell, args=(state, RegionCommand("heal", "r2")))
    healing.start()
    assert begun.wait(60)
    assert tell(state, RegionCommand("list")) == {"r1": "", "r2": "", "r3": ""}
    go_on.set()
    healing.join(60)
    assert not healing.is_alive()


def test_a_command_that_fails_unexpectedly_is_answered_and_others_are_taken(
    state: SandboxState, stand_in: StandIn
) -> None:
    def kill(name: str) -> None:
        raise OSError(12, "no memory")

    stand_in.kill_region = kill  # type: ignore[method-assign]
    with pytest.raises(CallerError, match="kill r2 failed, it may be done in part: OSError"):
        tell(state, RegionCommand("kill", "r2"))
    assert tell(state, RegionCommand("cut", "r1"))["r1"] == "cut off"


def test_closing_does_not_wait_without_end_for_a_command_that_hangs(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlspark.sandbox.region_control.CLOSE_TIMEOUT_S", 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def heal(name: str) -> None:
        begun.set()
        assert go_on.wait(60)

    stand_in.heal_region = heal  # type: ignore[method-assign]
    control = RegionControl(stand_in)
    state = replace(STATE, pid=os.getpid(), started=processes.started(os.getpid()), control_port=control.port)
    healing = threading.Thread(target=tell, args=(state, RegionCommand("heal", "r2")))
    healing.start()
    assert begun.wait(60)
    control.close()
    assert healing.is_alive()
    go_on.set()
    healing.join(60)


def test_a_slow_region_is_as_far_from_all_others_as_it_is_slow(stand_in: StandIn) -> None:
    stand_in.regions.slow("r3", 500)
    delays = {(way.source, way.target): way.delay_ms for way in stand_in.regions._ways()}
    assert delays["r1", "r2"] == delays["r2", "r1"] == 10
    assert delays["r3", "r1"] == delays["r1", "r3"] == delays["r2", "r3"] == 250


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (RegionCommand("cut", "r9"), "there is no region r9. It has r1, r2, r3"),
        (RegionCommand("paint", "r1"), "'paint' is nothing that can be done"),
        (
            RegionCommand("slow", "r1", round_trip_ms=-1),
            "-1 ms is shorter than the usual one here, 20 ms",
        ),
        (RegionCommand("cut", "r1", cast(Any, "up")), "'up' is no direction"),
    ],
)
def test_a_command_that_cannot_be_is_refused_with_the_reason(
    state: SandboxState, stand_in: StandIn, command: RegionCommand, text: str
) -> None:
    with pytest.raises(CallerError, match=text):
        tell(state, command)
    assert stand_in.regions.lines == []


def test_a_sandbox_that_takes_no_commands_is_named_as_such() -> None:
    command = RegionCommand("cut", "r1")
    text = "does not take commands about regions; nothing was done. It does not run; start it: .*--regions 3"
    with pytest.raises(NotAppliedError, match=text):
        tell(STATE, command)
    runs = replace(STATE, pid=os.getpid(), started=processes.started(os.getpid()))
    with pytest.raises(NotAppliedError, match="It belongs to a program"):
        tell(runs, command)
    for plain in (SandboxState(2181, (3001,)), replace(runs, regions=())):
        with pytest.raises(CallerError, match="has no regions; nothing was done"):
            tell(plain, command)


def test_the_state_says_where_everything_is_and_survives_its_file(tmp_path: Path) -> None:
    STATE.save(tmp_path)
    assert SandboxState.load(tmp_path) == STATE
    assert STATE.uri == "distributedlog://127.0.1.1:20001,127.0.2.1:20002,127.0.3.1:20003/distributedlog"
    assert [STATE.node_id(index) for index in range(4)] == [
        "127.0.1.1:3001",
        "127.0.2.1:3002",
        "127.0.3.1:3003",
        "127.0.1.1:3004",
    ]
    assert asdict(STATE)["regions"][2]["name"] == "r3"
    plain = SandboxState(2181, (3001,))
    assert (plain.uri, plain.node_id(0)) == ("distributedlog://127.0.0.1:2181/distributedlog", "127.0.0.1:3001")


def test_a_program_is_in_a_region_by_its_environment(tmp_path: Path) -> None:
    assert region_environment(tmp_path, PLACES[1]) == {
        "DLSPARK_REGION": "r2",
        "DLSPARK_SOCKS": "127.0.2.1:20032",
        "DLSPARK_SOCKS_DIRECT": "127.0.2.1",
        "DLSPARK_CONF": str(tmp_path / "regions.conf"),
    }
    assert export_line(tmp_path, PLACES[1]).startswith("export DLSPARK_REGION=r2 DLSPARK_SOCKS=127.0.2.1:20032 ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"regions": 2}, "cannot have 2 regions: most of ZooKeeper's voters"),
        ({"regions": 11}, "cannot have 11 regions"),
        ({"regions": 3, "port": 2181}, "several ZooKeeper servers"),
        ({"regions": 3, "cold": "cold"}, "no cold storage of its own"),
        ({"regions": 3, "proxies": -1}, "cannot have -1 proxies"),
        ({"regions": 3, "round_trip_ms": -1.0}, "-1.0 ms cannot be"),
        ({"regions": 3, "nodes": 0}, "at least one storage node"),
    ],
)
def test_what_a_sandbox_with_regions_cannot_have_is_refused(
    tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(CallerError, match=text):
        Sandbox(tmp_path, **arguments)


@pytest.mark.parametrize(("regions", "votes"), [(3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_an_odd_number_of_servers_has_a_vote_and_the_others_observe(tmp_path: Path, regions: int, votes: int) -> None:
    places = tuple(replace(PLACES[0], name=f"r{n}", zookeeper_port=20000 + n) for n in range(1, regions + 1))
    made = SandboxRegions(tmp_path, replace(STATE, regions=places), 250, cast(Any, None))
    configurations = [server._member.config() for server in made._zookeepers.values() if server._member is not None]
    assert ["peerType=observer" in one for one in configurations] == [n >= votes for n in range(regions)]
    assert {one.count(":observer\n") for one in configurations} == {regions - votes}


def test_a_region_that_was_killed_is_no_reason_to_start_the_sandbox_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heal = "r2 was killed, to have it come back: dlspark sandbox region heal r2 --dir d"
    again = "wait if the sandbox is being started, else stop it and start it again"
    for away, killed, advice in (
        ({"127.0.2.1"}, ["r2"], heal),
        ({"127.0.2.1", "127.0.3.1"}, ["r2"], f"{heal}; {again}"),
        ({"127.0.3.1"}, [], again),
    ):
        monkeypatch.setattr("dlspark.cli.sandbox._listens", lambda at, away=away: at.partition(":")[0] not in away)
        with pytest.raises(typer.Exit):
            _check_listening(STATE, killed, " --dir d")
        assert capsys.readouterr().err.endswith(f": {advice}\n")


def test_a_directory_keeps_its_regions(tmp_path: Path) -> None:
    STATE.save(tmp_path)
    with pytest.raises(CallerError, match=r"has 3 regions, and keeps that number.*Start it with --regions 3"):
        Sandbox(tmp_path).start()
    SandboxState(2181, (3001,)).save(tmp_path)
    with pytest.raises(
        CallerError, match=r"was made without regions: .*Start it without any, or name another directory"
    ):
        Sandbox(tmp_path, regions=3).start()


def test_round_trips_are_read_with_their_unit() -> None:
    assert [parse_round_trip_ms(text) for text in ("20ms", "0.5s", "7", "0ms")] == [20, 500, 7, 0]
    for text in ("", "x", "-1ms", "nan", "2h", "61s"):
        with pytest.raises(CallerError, match="no round trip time"):
            parse_round_trip_ms(text)


def test_no_sandbox_starts_in_a_shell_that_is_in_a_region_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLSPARK_SOCKS", "127.0.1.1:1080")
    with pytest.raises(CallerError, match="DLSPARK_SOCKS is set") as caught:
        Sandbox(tmp_path / "sandbox").start()
    assert "Unset DLSPARK_SOCKS" in str(caught.value)
    assert not (tmp_path / "sandbox").exists()


def test_a_sandbox_without_regions_says_that_it_has_none(tmp_path: Path) -> None:
    running = replace(SandboxState(2181, (3001,)), pid=os.getpid(), started=processes.started(os.getpid()))
    with pytest.raises(CallerError, match=r"has no regions; nothing was done.*--dir DIR"):
        tell(running, RegionCommand("cut", "r1"))
