"""`dlspark bookie`: run a storage node, and the tools for one that does not run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import InsecureListenOption, Output, OutputOption, confirm
from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from storage_node.bookie.tools.commands import ToolReport

ConfOption = Annotated[Path, typer.Option("--conf", help="The node's properties file.")]
IdOption = Annotated[str | None, typer.Option("--bookie-id", help="Default: the one whose directories these are.")]


def run(
    context: typer.Context,
    conf: Annotated[
        Path | None, typer.Option("--conf", help="Properties file; `dlspark bookie init` writes one.")
    ] = None,
    insecure_listen: InsecureListenOption = False,
) -> None:
    """Run one storage node in the foreground until SIGTERM, or one of the tools below."""
    if context.invoked_subcommand is not None:
        return
    if conf is None:
        raise CallerError(
            "no configuration was named",
            advice="Give --conf FILE (dlspark bookie init writes one), or the name of a tool",
        )
    from storage_node.bookie.__main__ import main

    raise typer.Exit(main(["--conf", str(conf), *(["--insecure-listen"] if insecure_listen else [])]))


def status(conf: ConfOption, output: OutputOption = Output.TEXT) -> None:
    """Show space, files and the last checkpoint of a node, running or not."""
    from storage_node.bookie.tools import commands

    _print(commands.status(conf), output)


def list_ledgers(conf: ConfOption, output: OutputOption = Output.TEXT) -> None:
    """List the ledgers that a stopped node holds."""
    from storage_node.bookie.tools import commands

    _print(commands.list_ledgers(conf), output)


def read_entry(
    ledger: Annotated[int, typer.Argument(help="Ledger id.")],
    entry: Annotated[int, typer.Argument(help="Entry id; -1 is the last one (write it behind `--`).")],
    conf: ConfOption,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print one entry as its client sent it, in hexadecimal."""
    from storage_node.bookie.tools import commands

    _print(commands.read_entry(conf, ledger, entry), output)


def verify(conf: ConfOption, output: OutputOption = Output.TEXT) -> None:
    """Read everything that a stopped node holds. Exits with 3 if anything is damaged."""
    from storage_node.bookie.tools import commands

    _print(commands.verify(conf), output)


def rebuild_index(conf: ConfOption, output: OutputOption = Output.TEXT) -> None:
    """Write the index of every entry log of a stopped node anew. Exits with 3 if a log is damaged."""
    from storage_node.bookie.tools import commands

    _print(commands.rebuild_index(conf), output)


def format_node(
    conf: ConfOption,
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    delete_cookie: Annotated[bool, typer.Option("--delete-cookie", help="Remove the cookie in metadata too.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove everything that a stopped node stored."""
    from storage_node.bookie.tools import commands

    def agreed(question: str) -> bool:
        confirm(question, yes=force, by="--force")
        return True

    _print(commands.format_node(conf, agreed, force=force, delete_cookie=delete_cookie), output)


def limbo(
    conf: ConfOption,
    clear: Annotated[bool, typer.Option("--clear", help="Take those out that need it no longer.")] = False,
    mark: Annotated[bool, typer.Option("--mark", help="Ask auto-recovery to replicate what is missing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the ledgers of which a stopped node may have lost entries. Exits with 3 while there are any."""
    from storage_node.bookie.tools import commands

    _print(commands.limbo(conf, clear=clear, mark=mark), output)


def decommission(
    conf: ConfOption,
    bookie_id: IdOption = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for auto-recovery.")] = 3600.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Have a stopped node's ledgers replicated elsewhere by auto-recovery, then remove its cookie."""
    from storage_node.bookie.tools import commands

    _print(commands.decommission(conf, bookie_id, timeout, lambda line: typer.echo(line, err=True)), output)


def cookie_show(conf: ConfOption, bookie_id: IdOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show a bookie's cookie in metadata."""
    from storage_node.bookie.tools import commands

    _print(commands.cookie_show(conf, bookie_id), output)


def cookie_list(conf: ConfOption, output: OutputOption = Output.TEXT) -> None:
    """List the bookies that have a cookie."""
    from storage_node.bookie.tools import commands

    _print(commands.cookie_list(conf), output)


def cookie_delete(
    conf: ConfOption,
    bookie_id: IdOption = None,
    force: Annotated[bool, typer.Option("--force", help="Though ledgers name the bookie: they may lose data.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove a bookie's cookie; refused while it runs, or while a ledger names it."""
    from storage_node.bookie.tools import commands

    _print(commands.cookie_delete(conf, bookie_id, force=force), output)


def _print(report: ToolReport, output: Output) -> None:
    typer.echo(report.text(output.value))
    if report.status:
        raise typer.Exit(report.status)


# ---------------------------------------------------------------------- the configuration file of a new node


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
    from storage_node.settings.files import write_node_file

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
    """Return the directories as one value; the node may be started from another one than this command."""
    for path in paths:
        if "," in str(path.absolute()):
            raise CallerError(f"directory {path} has a comma in its name", advice="Commas separate directories there")
    return ",".join(str(path.absolute()) for path in paths)


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise CallerError(f"--set {text} is not a setting", advice="Give key=value")
    return key.strip(), value.strip()
