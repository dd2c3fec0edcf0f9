"""`dlspark sandbox start|stop|status`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dlspark.errors import CallerError, NotAppliedError
from dlspark.sandbox import DEFAULT_NODES, START_TIMEOUT_S, STOP_TIMEOUT_S, Sandbox, SandboxState
from metadata.private_files import DIRECTORY_MODE

DEFAULT_DIRECTORY = Path.home() / ".dlspark" / "sandbox"

DirectoryOption = Annotated[Path, typer.Option("--dir", help="Where the sandbox keeps its data, across restarts.")]


def start(
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    nodes: Annotated[int, typer.Option(help="Storage nodes (three replicas and a spare).", min=1)] = DEFAULT_NODES,
    port: Annotated[int, typer.Option(help="ZooKeeper's port; 0 picks a free one and keeps it.", min=0)] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it serves; stop it with `stop`.")] = False,
    auto_recovery: Annotated[
        bool, typer.Option("--auto-recovery", help="Copy what a lost storage node held to the others.")
    ] = False,
) -> None:
    """Start ZooKeeper and the storage nodes and print the namespace's URI."""
    if detach:
        typer.echo(_start_detached(directory, nodes, port, auto_recovery))
        return
    # SIGTERM ends the sandbox in order, like Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    with Sandbox(directory, nodes=nodes, port=port, auto_recovery=auto_recovery) as sandbox:
        typer.echo(sandbox.uri)
        sys.stdout.flush()
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)


def stop(directory: DirectoryOption = DEFAULT_DIRECTORY) -> None:
    """Stop the sandbox of a directory; its data stay."""
    state = _known_state(directory)
    if state.pid is None or not state.running():
        typer.echo(f"the sandbox in {directory} is not running")
        return
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + 2 * STOP_TIMEOUT_S
    while state.running():
        if time.monotonic() > deadline:
            raise NotAppliedError(
                f"process {state.pid} did not end within {2 * STOP_TIMEOUT_S:.0f} s",
                advice=f"Look at {directory}, or end it with: kill -9 {state.pid}",
            )
        time.sleep(0.05)
    typer.echo("stopped")


def status(directory: DirectoryOption = DEFAULT_DIRECTORY) -> None:
    """Say whether the sandbox of a directory runs, and its URI. Exits with 3 if it does not run."""
    state = _known_state(directory)
    if not state.running():
        typer.echo(f"not running; its URI is {state.uri}")
        raise typer.Exit(3)
    typer.echo(state.uri)
    typer.echo(f"process {state.pid}, ZooKeeper on port {state.zookeeper_port}", err=True)
    typer.echo(f"storage nodes on ports {', '.join(map(str, state.node_ports))}", err=True)


def _known_state(directory: Path) -> SandboxState:
    state = SandboxState.load(directory)
    if state is None:
        raise CallerError(f"there is no sandbox in {directory}", advice="Start one: dlspark sandbox start")
    return state


def _start_detached(directory: Path, nodes: int, port: int, auto_recovery: bool) -> str:
    """Run `sandbox start` in a session of its own and wait for the URI it prints."""
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    log = directory / "sandbox.log"
    arguments = ["--dir", str(directory), "--nodes", str(nodes), "--port", str(port)]
    arguments += ["--auto-recovery"] if auto_recovery else []
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "dlspark.cli", "sandbox", "start", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    output = child.stdout
    uri = output.readline().decode().strip() if output is not None else ""
    if uri:
        return uri
    child.wait(START_TIMEOUT_S)
    raise NotAppliedError(f"the sandbox did not start: {log.read_text(errors='replace').strip()}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
