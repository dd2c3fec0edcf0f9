"""`dlspark bench`: a load at a fixed rate, or the highest rate that is sustained, on ours and on peers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import ConfOption, Output, OutputOption, SetOption, print_result, settings_of, table
from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from dlspark.bench.measuring import RunResult
    from dlspark.bench.systems import System

DEFAULT_RATE = 10_000
NODES = 3
PROXIES = "proxies"


def bench(
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload", "-w", help="1-log-100B, 1-log-1KB, 16-logs-100B or 16-logs-1KB; all if not said. Repeatable."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help=f"Records a second, in all logs together; {DEFAULT_RATE} if not said.", min=1, max=1e8),
    ] = None,
    maximum: Annotated[bool, typer.Option("--max", help="Look for the highest rate that is sustained.")] = False,
    seconds: Annotated[float, typer.Option(help="That are measured of each run.", min=1)] = 10,
    warm_up: Annotated[
        float,
        typer.Option("--warm-up", help="Seconds before these, at the same rate; Java needs many.", min=0),
    ] = 2,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="PEER",
            help="kafka=HOST:PORT, kafka-synced=HOST:PORT, pulsar=pulsar://HOST:PORT (with any suffix: pulsar-NAME), "
            "or proxies. Repeatable.",
        ),
    ] = None,
    p99: Annotated[
        float, typer.Option("--p99", help="With --max: milliseconds from due to acknowledged that p99 stays below.")
    ] = 100,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the result as this SVG file.")] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            "--uri", "-u", help="Namespace URI, distributedlog://host:port/path; a sandbox of its own if not said."
        ),
    ] = None,
    conf: ConfOption = None,
    values: SetOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write and read a load like OpenMessaging's, and say how long records took from when they were due. Logs of its
    own in the namespace of --uri alone (not of DLSPARK_URI), else on a sandbox of three nodes that is made for it; both
    are taken away. Exits with 3 where records were lost or came twice, else with 1 where a system failed; what was
    measured of others is printed, and what was measured before Ctrl-C.
    """
    from dlspark.bench.comparing import Plan, check_plot, compare, run_interruptibly
    from dlspark.bench.comparing import plot as draw
    from dlspark.bench.ending import left_whole, sigterm_as_ctrl_c
    from dlspark.bench.rate_search import Bound
    from dlspark.bench.workloads import WORKLOADS, workload_named

    if maximum and rate is not None:
        raise CallerError("a rate is given, and to be looked for; nothing was started", advice="Give --rate or --max")
    workloads = [workload_named(name) for name in workload] if workload else list(WORKLOADS)
    if plot is not None:
        check_plot(plot)
    peers = _peers(against or ())
    plan = Plan(workloads, None if maximum else rate or DEFAULT_RATE, seconds, warm_up, Bound(p99_ms=p99))
    ours = _ours(uri, conf, values, proxies=PROXIES in (against or ()))
    results: list[RunResult] = []
    failures: list[str] = []
    at_the_end = printed(results, failures, plan.bound if maximum else None, output)
    with at_the_end, sigterm_as_ctrl_c(), left_whole(ours) as systems:
        run_interruptibly(compare([*systems, *peers], plan, results, _tell, failures.append))
    if plot is not None and results:
        draw(results, plot)
    _exit_by(results, failures)


def _peers(against: Sequence[str]) -> list[System]:
    """Return the peers that are named, all of which take a connection."""
    from dlspark.bench.peers import check_answers, peer_of

    named = [given for given in against if given != PROXIES]
    peers = [peer_of(given) for given in named]
    for given in named:
        check_answers(given)
    return peers


@contextmanager
def printed(results: list[RunResult], failures: list[str], bound: object | None, output: Output) -> Iterator[None]:
    """Print results and failures behind the block; where Ctrl-C or an error ends it, those that there are."""
    try:
        yield
    except BaseException as ended:
        if isinstance(ended, KeyboardInterrupt):
            typer.echo(f"dlspark: interrupted with {len(results)} results; what was under way has none", err=True)
        if results or failures:
            with suppress(OSError):  # what has ended it comes before an output that takes nothing
                _print_all(results, failures, bound, output)
        raise
    _print_all(results, failures, bound, output)


def _print_all(results: list[RunResult], failures: list[str], bound: object | None, output: Output) -> None:
    for failure in failures:
        typer.echo(f"dlspark: {failure}", err=True)
    _print_results(results, bound, output)


def _exit_by(results: list[RunResult], failures: list[str]) -> None:
    from dlspark.bench.comparing import is_wrong

    if any(map(is_wrong, results)):
        typer.echo("dlspark: records were lost or came twice", err=True)
        raise typer.Exit(3)
    if failures:
        raise typer.Exit(1)


def _print_results(results: list[RunResult], bound: object | None, output: Output) -> None:
    """Print all results, if any, as a table with its notes, or all as one JSON object. `bound`: of a search for the
    highest rate.
    """
    from dlspark.bench.comparing import COLUMNS, SPARE, notes, table_rows

    shown = []
    if results:
        shown += [*table(*COLUMNS, rows=table_rows(results), spare=SPARE).lines(), "", *notes(results)]
    if results and bound is not None:
        shown.append(f"highest: {bound}")
    print_result(output, {"results": [one.as_json() for one in results]}, shown)


def _tell(result: RunResult) -> None:
    typer.echo(
        f"{result.system}, {result.workload}: {result.offered:.0f}/s offered, {result.achieved:.0f}/s achieved, "
        f"p99 {result.publish_ms['p99']:.1f} ms",
        err=True,
    )


@contextmanager
def _ours(uri: str | None, conf: Path | None, values: list[str] | None, *, proxies: bool) -> Iterator[list[System]]:
    """Yield our systems: of the namespace that is named, or of a sandbox, which has ended when the block is left."""
    from dlspark.bench.our_systems import OurLogs, ThroughProxies
    from dlspark.core.settings.settings import Settings
    from dlspark.core.sync.namespace import Namespace

    settings = settings_of(conf, values)
    if uri is not None:
        typer.echo(f"measuring {uri}", err=True)
        Namespace.open(uri, settings).close()  # what cannot be reached is said once, and not for each workload
        yield [OurLogs(uri, settings), *([ThroughProxies(uri)] if proxies else [])]
        return
    typer.echo(f"measuring a temporary sandbox of {NODES} nodes (--uri measures a namespace)", err=True)
    from dlspark.sandbox.proxies import READER
    from dlspark.sandbox.sandbox import Sandbox

    with (
        tempfile.TemporaryDirectory(prefix="dlspark-load-") as directory,
        Sandbox(directory, nodes=NODES, proxies=1 if proxies else 0) as sandbox,
    ):
        nodes = tuple(pid for index in range(NODES) if (pid := sandbox.node_pid(index)) is not None)
        systems: list[System] = [OurLogs(sandbox.uri, settings, nodes)]
        if proxies:
            between = tuple(pid for index in (0, READER) if (pid := sandbox.proxies.pid(index)) is not None)
            systems.append(
                ThroughProxies(sandbox.uri, (*nodes, *between), about=OurLogs(sandbox.uri, Settings()).about)
            )
        yield systems
