"""`dlspark bookie init`: the configuration file of a new storage node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metadata.foundation.errors import CallerError


def init(
    file: Annotated[Path, typer.Argument(help="Where the file goes; it must not exist.")],
    journal: Annotated[list[Path], typer.Option("--journal", help="Directory of a journal; several: give it again.")],
    ledgers: Annotated[list[Path], typer.Option("--ledgers", help="Directory for ledgers; several: give it again.")],
    zookeeper: Annotated[str | None, typer.Option(help="ZooKeeper's servers: host:port,host:port.")] = None,
    port: Annotated[int | None, typer.Option(help="Port for clients; 0 takes a free one.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Another key of the file, as key=value; give it again for more.")
    ] = None,
) -> None:
    """Write a new node's configuration, every setting with its default and meaning; nothing is started."""
    from storage_node.settings.node_file import write_node_file

    values = dict(map(_setting, settings or ()))
    values |= {"journalDirectories": _directories(journal), "ledgerDirectories": _directories(ledgers)}
    if zookeeper is not None:
        values["zkServers"] = zookeeper
    if port is not None:
        values["bookiePort"] = str(port)
    write_node_file(file, values)
    typer.echo(f"written: {file}")
    typer.echo(f"Start the node with: dlspark bookie --conf {file}")


def _directories(paths: list[Path]) -> str:
    """The directories as one value; the node may be started from another one than this command."""
    for path in paths:
        if "," in str(path.absolute()):
            raise CallerError(f"directory {path} has a comma in its name", advice="Commas separate directories there")
    return ",".join(str(path.absolute()) for path in paths)


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise CallerError(f"--set {text} is no setting", advice="Give key=value")
    return key.strip(), value.strip()
