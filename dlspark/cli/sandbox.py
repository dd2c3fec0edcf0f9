"""`dlspark sandbox start|stop|status|region`."""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dlspark.sandbox.state import (
    DEFAULT_NODES,
    DEFAULT_NODES_A_REGION,
    DEFAULT_ROUND_TRIP_MS,
    RegionPlace,
    SandboxState,
    default_directory,
    entering_line,
)
from metadata.foundation.errors import CallerError, NotAppliedError

MAX_ROUND_TRIP_MS = 60_000
_USUAL_RTT = f"{DEFAULT_ROUND_TRIP_MS:g}ms"

DirectoryOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Where the sandbox keeps its data, across restarts; ~/.dlspark/sandbox if not said."),
]

SecureOption = Annotated[
    bool, typer.Option("--secure", help="TLS on every connection; who is to enter needs a folder with a certificate.")
]


def start(
    directory: DirectoryOption = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help=f"Storage nodes; {DEFAULT_NODES} if not said: three copies and a spare; with 1 or 2 there are as many "
            f"copies. With regions: of each, {DEFAULT_NODES_A_REGION} if not said.",
            min=1,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="ZooKeeper's port; 0 picks a free one and keeps it.", min=0, max=65535)] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it serves; stop it with `stop`.")] = False,
    auto_recovery: Annotated[
        bool, typer.Option("--auto-recovery", help="Copy what a lost storage node held to the others.")
    ] = False,
    proxies: Annotated[
        int,
        typer.Option(
            help="Write proxies; with any, there is a read proxy as well. With regions: in each.", min=0, max=100
        ),
    ] = 0,
    cold: Annotated[
        Path | None,
        typer.Option("--cold", help="Folder for cold storage: completed segments are moved there by a mover."),
    ] = None,
    regions: Annotated[
        int, typer.Option(help="Regions, from 3 on, each with one of ZooKeeper's servers.", min=0, max=9)
    ] = 0,
    rtt: Annotated[
        str | None,
        typer.Option(help="Round trip between two regions.", metavar="TIME", show_default=_USUAL_RTT),
    ] = None,
    secure: SecureOption = False,
) -> None:
    """Start ZooKeeper and the storage nodes and print the namespace's URI. While it runs (in the default directory), it
    is the namespace where no other is given."""
    from dlspark.sandbox.sandbox import Sandbox

    directory = directory or default_directory()
    if rtt is not None and not regions:
        raise CallerError("--rtt is the way between regions, and there are none", advice="Add --regions 3")
    rtt = rtt or _USUAL_RTT
    round_trip_ms = parse_round_trip_ms(rtt)
    if detach:
        typer.echo(_start_detached(directory, nodes, port, auto_recovery, proxies, cold, regions, rtt, secure))
        _say_more(directory, cold, secured=secure)
        return
    # SIGTERM ends the sandbox in order, like Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    with Sandbox(
        directory,
        nodes=nodes,
        port=port,
        auto_recovery=auto_recovery,
        proxies=proxies,
        cold=cold,
        regions=regions,
        round_trip_ms=round_trip_ms,
        secure=secure,
    ) as sandbox:
        if regions:
            sandbox.take_commands()
        typer.echo(sandbox.uri)
        _say_more(directory, cold, secured=secure)
        sys.stdout.flush()
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)


def stop(directory: DirectoryOption = None) -> None:
    """Stop the sandbox of a directory; its data stay."""
    from dlspark.sandbox.processes import STOP_TIMEOUT_S

    directory = directory or default_directory()
    state = _known_state(directory)
    try:
        signalled = state.signal_owner(signal.SIGTERM)
    except PermissionError as error:
        raise NotAppliedError(
            f"process {state.pid} of the sandbox in {directory} is another user's; it was not stopped",
            advice="Stop it as that user",
        ) from error
    if not signalled:
        typer.echo(f"the sandbox in {directory} is not running")
        return
    deadline = time.monotonic() + 2 * STOP_TIMEOUT_S
    # The process is not our child: its end can only be looked for.
    while state.running():
        if time.monotonic() > deadline:
            raise NotAppliedError(
                f"process {state.pid} did not end within {2 * STOP_TIMEOUT_S:.0f} s",
                advice=f"Look at {directory}, or end it with: kill -9 {state.pid}",
            )
        time.sleep(0.05)
    typer.echo("stopped")


def status(directory: DirectoryOption = None) -> None:
    """Say whether the sandbox of a directory runs, and its URI. Exits with 3 if it or a part of it does not run."""
    state = _known_state(directory or default_directory())
    if not state.running():
        typer.echo(f"not running; its URI is {state.uri}")
        raise typer.Exit(3)
    typer.echo(state.uri)
    conditions = _conditions(state) if state.regions else {}
    if state.regions:
        _say_regions(directory or default_directory(), state, conditions)
    else:
        typer.echo(f"process {state.pid}, ZooKeeper on port {state.zookeeper_port}", err=True)
        ports = ", ".join(map(str, state.node_ports))
        typer.echo(f"storage {'node on port' if len(state.node_ports) == 1 else 'nodes on ports'} {ports}", err=True)
        for line in _proxy_lines(state, None):
            typer.echo(line, err=True)
    cold = None if state.cold is None else Path(state.cold)
    _say_more(directory or default_directory(), cold, secured=state.secured)
    killed = [name for name, words in conditions.items() if words.startswith("killed")]
    _check_listening(state, killed, "" if directory is None else f" --dir {shlex.quote(str(directory))}")


def _check_listening(state: SandboxState, killed: Sequence[str], where: str) -> None:
    """Exit with 3 where a part of the sandbox does not listen, and say what to do."""
    parts = [*state.zookeeper_servers.split(","), *(state.node_id(index) for index in range(len(state.node_ports)))]
    parts += [place.frames for place in (*state.write_proxies, *state.read_proxies)]
    parts += [f"{place.host}:{place.gateway_port}" for place in state.regions]
    silent = [address for address in parts if not _listens(address)]
    if silent:
        hosts = tuple(f"{place.host}:" for place in state.regions if place.name in killed)
        # What does not listen because it was killed is no sandbox that is being started, and needs no other one.
        advice = [
            f"{name} was killed, to have it come back: dlspark sandbox region heal {name}{where}" for name in killed
        ]
        if not all(address.startswith(hosts) for address in silent):
            advice.append("wait if the sandbox is being started, else stop it and start it again")
        typer.echo(f"dlspark: nothing listens on {', '.join(silent)}: {'; '.join(advice)}", err=True)
        raise typer.Exit(3)


class RegionAction(str, Enum):
    """What `dlspark sandbox region` does."""

    CUT = "cut"
    SLOW = "slow"
    KILL = "kill"
    HEAL = "heal"
    ENV = "env"


class CutDirection(str, Enum):
    """What is cut off of a region: what it sends, what it receives, or both."""

    BOTH = "both"
    IN = "in"
    OUT = "out"


def region(
    action: Annotated[RegionAction, typer.Argument(help="What to do.")],
    name: Annotated[str, typer.Argument(help="The region: r1, r2, ...")],
    directory: DirectoryOption = None,
    direction: Annotated[
        CutDirection, typer.Option(help="With cut: all, only what it receives (in), or only what it sends (out).")
    ] = CutDirection.BOTH,
    rtt: Annotated[str, typer.Option(help="With slow: a round trip to any other region.", metavar="TIME")] = "500ms",
) -> None:
    """Cut a region of the sandbox off (what is sent waits), slow it down, kill all that runs in it, or heal it: then it
    is as at the start. `env` prints the line for a shell whose programs are to be in that region.
    """
    from dlspark.sandbox.region_control import RegionCommand, tell

    where = directory or default_directory()
    state = _known_state(where)
    if action is RegionAction.ENV:
        from dlspark.sandbox.regions import export_line

        places = {place.name: place for place in state.regions}
        if name not in places:
            raise CallerError(f"there is no region {name}", advice=f"It has {', '.join(places) or 'none'}")
        typer.echo(export_line(where, places[name]))
        return
    command = RegionCommand(action.value, name, direction.value, parse_round_trip_ms(rtt))
    for region_name, words in tell(state, command).items():
        typer.echo(f"{region_name}: {words or 'well'}")


def parse_round_trip_ms(text: str) -> float:
    """Return the milliseconds of "20ms", "0.5s" or "20". Raises CallerError."""
    number, factor = text.strip(), 1.0
    if number.endswith("ms"):
        number = number.removesuffix("ms")
    elif number.endswith("s"):
        number, factor = number.removesuffix("s"), 1000.0
    try:
        value = float(number) * factor
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_ROUND_TRIP_MS:
        raise CallerError(f"{text!r} is no round trip time", advice="Write it as 20ms or 0.5s, up to 60s")
    return value


def _conditions(state: SandboxState) -> Mapping[str, str]:
    """Return what is wrong with each region; nothing of a sandbox that takes no commands."""
    from dlspark.sandbox.region_control import RegionCommand, tell

    try:
        return tell(state, RegionCommand("list"))
    except NotAppliedError:
        return {}  # a program's sandbox, or one that is being started


def _say_regions(directory: Path, state: SandboxState, conditions: Mapping[str, str]) -> None:
    typer.echo(f"process {state.pid}, round trips of {state.round_trip_ms:g} ms between regions", err=True)
    for place in state.regions:
        nodes = [state.node_id(i) for i in range(len(state.node_ports)) if state.node_region(i) == place]
        words = f" ({conditions[place.name]})" if conditions.get(place.name) else ""
        typer.echo(
            f"region {place.name}{words}: ZooKeeper {place.host}:{place.zookeeper_port}, storage nodes "
            f"{', '.join(nodes)}",
            err=True,
        )
        for line in _proxy_lines(state, place):
            typer.echo(f"region {place.name}: {line}", err=True)
    first = "; thin clients there ask its proxies first" if state.proxies else ""
    typer.echo(
        f'to be in a region: eval "$(dlspark sandbox region env r1 --dir {shlex.quote(str(directory))})"{first}',
        err=True,
    )


def _proxy_lines(state: SandboxState, region: RegionPlace | None) -> Iterator[str]:
    for what, places in (("write", state.write_proxies), ("read", state.read_proxies)):
        here = [place for place in places if place.region == region]
        if here:
            frames, grpc = (", ".join(addresses) for addresses in zip(*((p.frames, p.grpc) for p in here), strict=True))
            yield f"{what} {'proxy' if len(here) == 1 else 'proxies'}: {frames} for frames, {grpc} for gRPC"


def _cold_line(directory: Path, files: Path) -> str:
    from dlspark.sandbox.mover import CONF

    conf = directory.absolute() / CONF
    return f"cold storage in {files.absolute()}; for programs that write: DLSPARK_CONF={conf}"


def _say_more(directory: Path, cold: Path | None, *, secured: bool) -> None:
    """Say what a program has to set besides the URI."""
    if cold is not None:
        typer.echo(_cold_line(directory, cold), err=True)
    if secured:
        typer.echo(f"secured; for programs: {entering_line(directory)}", err=True)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1):
            return True
    except OSError:
        return False


def _known_state(directory: Path) -> SandboxState:
    state = SandboxState.load(directory)
    if state is None:
        raise CallerError(f"there is no sandbox in {directory}", advice="Start one: dlspark sandbox start")
    return state


def _start_detached(
    directory: Path,
    nodes: int | None,
    port: int,
    auto_recovery: bool,
    proxies: int,
    cold: Path | None,
    regions: int,
    rtt: str,
    secure: bool,
) -> str:
    """Run `sandbox start` in a session of its own and wait for the URI it prints."""
    import subprocess

    from dlspark.sandbox.processes import START_TIMEOUT_S, child_environment
    from metadata.foundation.private_files import DIRECTORY_MODE, private_opener

    directory = directory.absolute()
    log = directory / "sandbox.log"
    arguments = ["--dir", str(directory), "--port", str(port)]
    arguments += ["--nodes", str(nodes)] if nodes is not None else []
    arguments += ["--regions", str(regions), "--rtt", rtt] if regions else []
    arguments += ["--auto-recovery"] if auto_recovery else []
    arguments += ["--proxies", str(proxies)] if proxies else []
    arguments += ["--secure"] if secure else []
    arguments += ["--cold", str(cold.absolute())] if cold is not None else []
    running = SandboxState.load(directory)
    if running is not None and running.running():
        raise CallerError(
            f"a sandbox is already running in {directory} (process {running.pid}, {running.uri})",
            advice=f"Use its URI, or stop it first: dlspark sandbox stop --dir {shlex.quote(str(directory))}",
        )
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        errors = open(log, "wb", opener=private_opener)  # noqa: SIM115  # closed below
    except OSError as error:
        raise CallerError(
            f"the sandbox cannot use its directory: {error.strerror}; it was not started",
            path=str(directory),
            advice="Name another directory",
        ) from error
    with errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "dlspark.cli", "sandbox", "start", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            cwd=directory,  # and not the user's, which Python would put before all else: a metadata.py may be there
            env=child_environment(),
        )
    output = child.stdout
    try:
        uri = output.readline().decode().strip() if output is not None else ""
    except KeyboardInterrupt:
        child.terminate()
        raise
    if uri:
        return uri
    child.wait(START_TIMEOUT_S)
    said = log.read_text(errors="replace").strip().removeprefix("dlspark: ")
    raise NotAppliedError(said or f"the sandbox did not start: its process ended with status {child.returncode}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
