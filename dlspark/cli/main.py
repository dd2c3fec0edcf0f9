"""The `dlspark` command: sandbox, storage node, logs, reading and writing from a terminal.

Errors of dlspark itself end with status 1 and one plain message on standard error (2 for wrong usage, as click does);
anything else is a bug and shows its trace.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer

from dlspark.cli import autorecovery, bookies, logs, sandbox, streams
from dlspark.errors import DistributedLogError
from dlspark.version import __version__

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="dlspark",
    help="Apache DistributedLog in Python, as a Spark-native connector.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print dlspark's own errors as a message instead of a stack trace, and exit with status 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except DistributedLogError as error:
            typer.echo(f"dlspark: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of our output (head, less) is gone; there is nobody left to write to.
            sys.stderr.close()
            raise typer.Exit(0) from None

    return wrapped


@app.command()
@plain_errors
def demo(
    output: Annotated[Path, typer.Option(help="Where the plot is written.")] = Path("demo-output"),
) -> None:
    """The main job: a year of flights through a replicated log and Spark, with faults, every figure checked."""
    from dlspark.cli.demo import run_demo

    raise typer.Exit(run_demo(output))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


sandbox_app = typer.Typer(help="A local cluster: a real ZooKeeper and storage nodes.", no_args_is_help=True)
sandbox_app.command("start")(plain_errors(sandbox.start))
sandbox_app.command("stop")(plain_errors(sandbox.stop))
sandbox_app.command("status")(plain_errors(sandbox.status))
app.add_typer(sandbox_app, name="sandbox")

bookie_app = typer.Typer(help="Run a storage node; tools for one that does not run.")
bookie_app.callback(invoke_without_command=True)(plain_errors(bookies.run))
bookie_app.command("status")(plain_errors(bookies.status))
bookie_app.command("list-ledgers")(plain_errors(bookies.list_ledgers))
bookie_app.command("read-entry")(plain_errors(bookies.read_entry))
bookie_app.command("verify")(plain_errors(bookies.verify))
bookie_app.command("rebuild-index")(plain_errors(bookies.rebuild_index))
bookie_app.command("format")(plain_errors(bookies.format_node))
bookie_app.command("limbo")(plain_errors(bookies.limbo))
bookie_app.command("decommission")(plain_errors(bookies.decommission))
cookie_app = typer.Typer(help="Cookies in metadata: who a node is.", no_args_is_help=True)
cookie_app.command("show")(plain_errors(bookies.cookie_show))
cookie_app.command("list")(plain_errors(bookies.cookie_list))
cookie_app.command("delete")(plain_errors(bookies.cookie_delete))
bookie_app.add_typer(cookie_app, name="cookie")
app.add_typer(bookie_app, name="bookie")


recovery_app = typer.Typer(help="Run auto-recovery, switch it for the whole cluster, or see what it is at.")
recovery_app.callback(invoke_without_command=True)(plain_errors(autorecovery.run))
recovery_app.command("enable")(plain_errors(autorecovery.enable))
recovery_app.command("disable")(plain_errors(autorecovery.disable))
recovery_app.command("status")(plain_errors(autorecovery.status))
app.add_typer(recovery_app, name="autorecovery")

log_app = typer.Typer(help="Create, list, describe and delete logs.", no_args_is_help=True)
log_app.command("create")(plain_errors(logs.create))
log_app.command("list")(plain_errors(logs.list_logs))
log_app.command("info")(plain_errors(logs.info))
log_app.command("delete")(plain_errors(logs.delete))
app.add_typer(log_app, name="log")

app.command("write")(plain_errors(streams.write))
app.command("read")(plain_errors(streams.read))
