"""`dlspark autorecovery`: run it as a process of its own, switch it for the whole cluster, and see what it is at."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.cluster import (
    ClusterPlace,
    ConfOption,
    LedgersPathOption,
    UriOption,
    ZooKeeperOption,
    in_cluster,
    named_place,
)
from dlspark.cli.common import Output, OutputOption
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from storage_node.autorecovery.status import RecoveryStatus


def run(
    context: typer.Context,
    conf: Annotated[
        Path | None, typer.Option("--conf", help="Properties file; `dlspark bookie init` writes one.")
    ] = None,
) -> None:
    """Run auto-recovery as a process of its own, until SIGTERM: it restores the copies that lost nodes held; or one of
    the commands below."""
    if context.invoked_subcommand is not None:
        return
    if conf is None:
        raise CallerError("no configuration was named", advice="Give --conf FILE, or enable, disable or status")
    from storage_node.autorecovery.__main__ import main

    raise typer.Exit(main(["--conf", str(conf)]))


def enable(
    conf: ConfOption = None,
    zookeeper: ZooKeeperOption = None,
    ledgers_path: LedgersPathOption = "/ledgers",
    uri: UriOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Switch auto-recovery on for the whole cluster."""
    _switch(named_place(conf, zookeeper, ledgers_path, uri), output, on=True)


def disable(
    conf: ConfOption = None,
    zookeeper: ZooKeeperOption = None,
    ledgers_path: LedgersPathOption = "/ledgers",
    uri: UriOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Switch auto-recovery off for the whole cluster, until it is enabled: for maintenance."""
    _switch(named_place(conf, zookeeper, ledgers_path, uri), output, on=False)


def status(
    conf: ConfOption = None,
    zookeeper: ZooKeeperOption = None,
    ledgers_path: LedgersPathOption = "/ledgers",
    uri: UriOption = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Ledgers and locks to list, each a read of its own; all are counted.")
    ] = 1000,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show whether it is enabled, the auditor, the ledgers that lack copies and since when, and the nodes that repair
    them.
    """
    from storage_node.autorecovery.status import recovery_status
    from storage_node.edge import SystemClock

    place = named_place(conf, zookeeper, ledgers_path, uri)
    found = in_cluster(place, lambda store, root: recovery_status(store, root, SystemClock(), limit=limit))
    typer.echo(json.dumps(asdict(found), indent=2) if output is Output.JSON else "\n".join(status_lines(found)))


def _switch(place: ClusterPlace, output: Output, *, on: bool) -> None:
    from storage_node.autorecovery.status import switch

    changed = in_cluster(place, lambda store, root: switch(store, root, on=on))
    if output is Output.JSON:
        typer.echo(json.dumps({"enabled": on, "changed": changed}))
        return
    typer.echo(f"auto-recovery {'is' if changed else 'was already'} switched {'on' if on else 'off'}")


def status_lines(found: RecoveryStatus) -> list[str]:
    """Return the status in lines, for people."""
    delay = found.lost_bookie_recovery_delay_s
    lines = [
        f"auto-recovery is {'enabled' if found.enabled else 'disabled'}; "
        + (f"{found.auditor} is the auditor" if found.auditor else "there is no auditor"),
        "a single lost bookie has "
        + ("its auditor's lostBookieRecoveryDelay" if delay is None else f"{delay} s")
        + " to come back",
        f"{counted(found.marked, 'ledger lacks', 'ledgers lack')} copies, {counted(found.locked, 'is', 'are')} locked",
    ]
    for ledger in found.ledgers:
        missing = "its mark cannot be read" if ledger.missing is None else f"lacks {', '.join(ledger.missing)}"
        if ledger.missing == ():  # Java's auditor marks so, too
            missing = "lies where the placement policy does not want it"
        age = "" if ledger.age_s is None else f", marked {ledger.age_s} s ago"
        lines.append(f"ledger {ledger.ledger_id}: {missing}{age}")
    lines += [f"ledger {lock.ledger_id}: locked by {lock.owner or 'an unknown worker'}" for lock in found.locks]
    hidden = found.marked - len(found.ledgers)
    return (
        [*lines, f"{counted(hidden, 'more ledger is', 'more ledgers are')} not listed (--limit)"]
        if hidden > 0
        else lines
    )
