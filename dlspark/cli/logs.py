"""`dlspark log create|list|info|delete`."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dlspark.cli.common import UriOption, namespace_uri
from dlspark.core.sync import Namespace
from metadata.logs import SegmentMetadata

# Wide enough for every column; a narrower terminal wraps lines rather than losing digits.
_TABLE_WIDTH = 130

NameArgument = Annotated[str, typer.Argument(help="The log's name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def create(name: NameArgument, uri: UriOption = None) -> None:
    """Create an empty log."""
    with Namespace.open(namespace_uri(uri)) as namespace:
        namespace.create_log(name)
    typer.echo(f"created {name}")


def list_logs(
    prefix: Annotated[str, typer.Argument(help="Only logs under this parent.")] = "", uri: UriOption = None
) -> None:
    """List the logs of the namespace, one a line."""
    with Namespace.open(namespace_uri(uri)) as namespace:
        for name in namespace.logs(prefix):
            typer.echo(name)


def info(name: NameArgument, uri: UriOption = None, as_json: JsonOption = False) -> None:
    """Show a log's segments: DLSNs, records, transaction ids, ledgers."""
    with Namespace.open(namespace_uri(uri)) as namespace, namespace.open_log(name) as log:
        segments = log.segments()
        end = log.end()
    if as_json:
        typer.echo(json.dumps({"log": name, "end": str(end), "segments": [_as_dict(s) for s in segments]}, indent=2))
        return
    table = Table("segment", "state", "records", "first txid", "last txid", "last entry", "ledger", "completed")
    for segment in segments:
        table.add_row(*(str(value) for value in _as_dict(segment).values()))
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)
    console.print(f"next position to read: {end}")


def delete(
    name: NameArgument,
    uri: UriOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a log with all its records."""
    if not yes:
        typer.confirm(f"Delete the log {name} and every record in it?", abort=True)
    with Namespace.open(namespace_uri(uri)) as namespace:
        namespace.delete_log(name)
    typer.echo(f"deleted {name}")


def _as_dict(segment: SegmentMetadata) -> dict[str, int | str | None]:
    closed = not segment.in_progress
    return {
        "segment": segment.lssn,
        "state": "completed" if closed else "in progress",
        "records": segment.record_count if closed else None,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid if closed else None,
        "last_entry": segment.last_entry if closed else None,
        "ledger": segment.ledger_id,
        "completed": _time(segment.completion_time_ms) if closed else None,
    }


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
