"""`dlspark sink ...`: what Spark's sinks have published, what failed attempts of theirs have left, and its removal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import At, DryRunOption, Json, YesOption, confirm, over_namespace, table
from metadata.foundation.plurals import counted
from metadata.foundation.times import short_time, time_text

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.spark.sink.segments.leftovers import SinkLeftovers
    from metadata.distributedlog.sinks import SinkStore

_HOUR_MS = 3_600_000
_MIN_AGE_HOURS = 24.0

SinksArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[SINK]...", help="Sinks, as `list` names them; all if none is named.")
]
AgeOption = Annotated[
    float,
    typer.Option("--min-age", min=0, help="Hours without news after which an attempt counts as abandoned."),
]


@over_namespace
async def list_sinks(
    at: At,
    sinks: SinksArgument = None,
    ledgers: Annotated[bool, typer.Option("--ledgers", help="Each staged ledger.")] = False,
    min_age: AgeOption = _MIN_AGE_HOURS,
) -> None:
    """List Spark's sinks: a query's is its id, with the last batch published and what is staged.

    A staged ledger is `settled` (its log has its batch from another attempt), `abandoned` (its attempt has shown no
    sign of life for --min-age), `condemned` (being swept) or `live` (its query may still publish it).
    """
    async with at.open() as namespace:
        _, found = await _found(namespace, sinks, min_age)
    rows: list[Json] = [_as_json(one, ledgers) for one in found]
    at.result({"sinks": rows}, table("sink", "kind", "batch", "when", "staged", rows=_cells(found, ledgers)))


def _cells(found: list[SinkLeftovers], ledgers: bool) -> Iterator[tuple[object, ...]]:
    from dlspark.spark.sink.segments.leftovers import StagedLedgerState
    from metadata.distributedlog.sink_marks import NO_BATCH

    for one in found:
        counts = [f"{len(one.of(verdict))} {verdict.value}" for verdict in StagedLedgerState if one.of(verdict)]
        batch = None if one.state.batch == NO_BATCH else one.state.batch
        yield one.sink_id, one.kind, batch, short_time(one.moved_ms), ", ".join(counts) or "nothing"
        if ledgers:
            for listed in one.ledgers:
                what = f"ledger {listed.ledger.ledger_id}: {listed.state.value}"
                what += f", for {listed.log}" if listed.log else ""
                yield None, None, listed.ledger.batch, short_time(listed.listed_ms), what


@over_namespace
async def sweep_sinks(
    at: At,
    sinks: SinksArgument = None,
    min_age: AgeOption = _MIN_AGE_HOURS,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete the ledgers that failed attempts of Spark's sinks have left: settled, condemned and abandoned ones.

    What a query may still publish is left. Running queries sweep by themselves with their next commit; this is for
    those that will not commit again. Marks stay, so that a checkpoint's replay is still recognised. Says first what it
    would do, and asks.
    """
    from dlspark.spark.sink.segments.leftovers import LedgerSweeper, StagedLedgerState, sweep_leftovers

    async with at.open() as namespace:
        store, found = await _found(namespace, sinks, min_age)
        doomed = [one for one in found if one.sweepable or one.removable]
        if not dry_run and doomed:
            if not at.as_json:
                for line in map(_plan, doomed):
                    typer.echo(line)
            confirm(f"Delete {counted(sum(len(one.sweepable) for one in doomed), 'ledger')}?", yes=yes)
        sweeper = LedgerSweeper(store, namespace.services.ledgers.delete)
        rows: list[Json] = []
        lines: list[str] = []
        for one in doomed:
            swept, removed = (
                (len(one.sweepable), one.removable) if dry_run else await sweep_leftovers(sweeper, store, one)
            )
            rows.append({"sink": one.sink_id, "ledgers": swept, "removed": removed})
            lines.append(
                _plan(one) if dry_run else f"{one.sink_id}: {counted(swept, 'ledger')} deleted{_gone(removed)}"
            )
    live = sum(len(one.of(StagedLedgerState.LIVE)) for one in found)
    lines.append(
        f"{counted(live, 'ledger is', 'ledgers are')} left, which queries may still publish"
        if live
        else "nothing else is staged"
    )
    at.result({"sinks": rows, "live": live, "dry_run": dry_run}, lines)


def _plan(one: SinkLeftovers) -> str:
    from dlspark.spark.sink.segments.leftovers import StagedLedgerState

    counts = [
        f"{len(one.of(verdict))} {verdict.value}"
        for verdict in StagedLedgerState
        if verdict is not StagedLedgerState.LIVE
    ]
    return f"{one.sink_id}: to delete: ledgers {', '.join(counts)}{_gone(one.removable)}"


def _gone(removed: bool) -> str:
    return ", and the sink itself" if removed else ""


async def _found(
    namespace: AsyncNamespace, names: list[str] | None, min_age_hours: float
) -> tuple[SinkStore, list[SinkLeftovers]]:
    from dlspark.spark.sink.segments.leftovers import find_leftovers
    from metadata.distributedlog.sinks import SinkStore

    store = SinkStore(namespace.store, namespace.uri.path)
    now_ms = namespace.services.clock.now_ms()
    min_age_ms = int(min_age_hours * _HOUR_MS)
    found = await find_leftovers(store, namespace.services.logs, now_ms, names=names or None, min_age_ms=min_age_ms)
    return store, found


def _as_json(one: SinkLeftovers, ledgers: bool) -> dict[str, Json]:
    from dlspark.spark.sink.segments.leftovers import StagedLedgerState
    from metadata.distributedlog.sink_marks import NO_BATCH

    result: dict[str, Json] = {
        "sink": one.sink_id,
        "kind": one.kind,
        "batch": None if one.state.batch == NO_BATCH else one.state.batch,
        "attempt": one.state.attempt or None,
        "rows": one.state.rows,
        "moved": time_text(one.moved_ms),
        "staged": {verdict.value: len(one.of(verdict)) for verdict in StagedLedgerState},
    }
    if ledgers:
        result["ledgers"] = [
            {
                "ledger": listed.ledger.ledger_id,
                "log": listed.log or None,
                "batch": listed.ledger.batch,
                "attempt": listed.ledger.attempt,
                "listed": time_text(listed.listed_ms),
                "verdict": listed.state.value,
            }
            for listed in one.ledgers
        ]
    return result
