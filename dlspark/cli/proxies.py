"""`dlspark proxy ...`: start proxies; list them with what they own; move streams, empty a proxy, balance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    ConfOption,
    DryRunOption,
    InsecureListenOption,
    Json,
    SetOption,
    UriOption,
    exit_with,
    namespace_uri,
    over_namespace,
    table,
)
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.serving.process.membership import ProxyMember
    from dlspark.serving.process.peers import ProxyPeers
    from dlspark.serving.write_proxy.tier.administration import BalanceResult, ProxyReport
    from dlspark.serving.write_proxy.tier.balancing import Balance, StreamMove


class BalanceMeasure(str, Enum):
    """By which figure are proxies balanced?"""

    COUNT = "count"
    LOAD = "load"


class Appraiser(str, Enum):
    """How the leader of placement weighs streams."""

    EQUAL = "equal"
    MEASURED = "measured"


PortOption = Annotated[int | None, typer.Option("--port", "-p", min=0, max=65535, help="For frames; 0: any.")]
GrpcPortOption = Annotated[
    int | None, typer.Option("--grpc-port", min=-1, max=65535, help="For gRPC; 0: any, -1: no gRPC.")
]
ProxyArgument = Annotated[str, typer.Argument(help="The proxy, by host:port, shard number or location.")]
RegexOption = Annotated[
    str | None, typer.Option("--filter", help="Regular expression: streams whose whole names match.")
]
RateOption = Annotated[float, typer.Option("--rate", min=0, help="Moves a second at most; 0: as fast as they go.")]


# ---------------------------------------------------------------------- starting


def write(
    uri: UriOption = None,
    conf: ConfOption = None,
    values: SetOption = None,
    port: PortOption = None,
    grpc_port: GrpcPortOption = None,
    stats_port: Annotated[
        int | None, typer.Option("--stats-port", min=-1, max=65535, help="For health and metrics; 0: any, -1: none.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option("--shard", min=-1, help="Its number among all proxies; 0 leads placement.")
    ] = None,
    stream_conf: Annotated[
        Path | None, typer.Option("--stream-conf", help="Directory with the <stream>.conf of single streams.")
    ] = None,
    announce: Annotated[
        bool, typer.Option("--announce/--no-announce", help="Whether clients and other proxies find it.")
    ] = True,
    load_appraiser: Annotated[
        Appraiser,
        typer.Option("--load-appraiser", help="How streams are weighed: all alike, or by the bytes that they take."),
    ] = Appraiser.EQUAL,
    insecure_listen: InsecureListenOption = False,
) -> None:
    """Run a write proxy in the foreground, until SIGTERM: it hands its streams over to the others then.

    Settings: docs/settings/write-proxy.md. A second signal ends it at once.
    """
    from dlspark.serving.write_proxy.__main__ import Flags, run_write_proxy
    from dlspark.serving.write_proxy.proxy import ProxyRole

    flags = Flags(port, grpc_port, stats_port, shard, insecure_listen)
    role = ProxyRole(announce, measured_loads=load_appraiser is Appraiser.MEASURED)
    raise typer.Exit(run_write_proxy(namespace_uri(uri), conf, values or (), flags, role, stream_conf))


def read(
    uri: UriOption = None,
    conf: ConfOption = None,
    values: SetOption = None,
    insecure_listen: InsecureListenOption = False,
) -> None:
    """Run a read proxy in the foreground, until SIGTERM. Settings: docs/settings/read-proxy.md.

    A second signal ends it at once.
    """
    from dlspark.serving.read_proxy.__main__ import run_read_proxy

    raise typer.Exit(run_read_proxy(namespace_uri(uri), conf, values or (), insecure_listen=insecure_listen))


# ---------------------------------------------------------------------- listing them


@over_namespace
async def list_proxies(at: At) -> None:
    """List the proxies of the namespace: where they listen, what they take, how many streams they own.

    Exits with 3 if one does not answer, or announces another region than the storage nodes of its host.
    """
    from dlspark.serving.process.membership import READ_PROXIES, read_members
    from dlspark.serving.write_proxy.tier.administration import survey
    from metadata.store import join

    async with write_tier(at) as (namespace, peers, members):
        reports = await survey(peers, members)
        readers = await read_members(namespace.store, join(namespace.uri.path, READ_PROXIES))
        differing = await _differing_regions(namespace, (*members, *readers))
    foreign = [one for one in members if one.frames is None]
    rows: list[Json] = [_described(one) for one in reports]
    rows += [_member(one, "write") | {"error": "it speaks no frames"} for one in foreign]
    rows += [_member(one, "read") for one in readers]
    described = [row for row in rows if isinstance(row, dict)]
    columns = [key for key in _COLUMNS if key not in ("region", "error") or any(row.get(key) for row in described)]
    cells = [[row.get(key) for key in columns] for row in described]
    at.result({"proxies": rows, "differing": dict(differing)}, table(*columns, rows=cells))
    for location, region in differing.items():
        typer.echo(
            f"dlspark: {location} announces another region than the storage nodes of its host, which say {region}. A "
            "proxy learns its region when it starts: start it again, with the right one (region, or DLSPARK_REGION)",
            err=True,
        )
    exit_with(attention=bool(differing) or any(one.status is None for one in reports))


async def _differing_regions(namespace: AsyncNamespace, members: Iterable[ProxyMember]) -> Mapping[str, str]:
    """Return proxies whose region is not the one that the storage nodes of their host announce, and that one."""
    from dlspark.core.administration.regions import announced_regions

    placed = [one for one in members if one.region is not None]
    topology = namespace.ledgers.topology
    if not placed or topology is None:
        return {}
    found = await announced_regions(namespace.ledgers.bookies, topology)
    there = {one.location: (one.region, found.get(one.endpoint.host)) for one in placed}
    return {location: says for location, (region, says) in there.items() if says is not None and says != region}


_COLUMNS = ("kind", "shard", "address", "region", "status", "streams", "region_id", "grpc", "stats", "error")


def _member(member: ProxyMember, kind: str) -> dict[str, Json]:
    return {
        "kind": kind,
        "shard": member.shard if member.shard >= 0 else None,
        "address": str(member.endpoint),
        "location": member.location,
        "region": member.region,
        "grpc": str(member.grpc) if member.grpc is not None else None,
        "stats": str(member.stats) if member.stats is not None else None,
        "stats_tls": str(member.stats_tls) if member.stats_tls is not None else None,
    }


def _described(report: ProxyReport) -> dict[str, Json]:
    return _member(report.member, "write") | {
        "status": report.status.name if report.status is not None else None,
        "streams": len(report.streams) if report.status is not None else None,
        "region_id": report.region_id,
        "error": report.error,
    }


@over_namespace
async def owners(at: At, pattern: RegexOption = None) -> None:
    """List streams and the write proxies that own them, as these say themselves."""
    from dlspark.serving.write_proxy.tier.administration import survey

    async with write_tier(at) as (_, peers, members):
        reports = await survey(peers, members, pattern)
    owned = sorted((stream, one.location) for one in reports for stream in one.streams)
    silent = {one.location: one.error for one in reports if one.status is None}
    listed: list[Json] = [{"stream": one, "proxy": where} for one, where in owned]
    result: dict[str, Json] = {"owners": listed, "silent": list(silent)}
    at.result(result, table("stream", "proxy", rows=owned))
    for one, error in silent.items():
        typer.echo(f"dlspark: the streams of {one} are not listed: {error}", err=True)
    exit_with(attention=bool(silent))


# ---------------------------------------------------------------------- moving streams


@over_namespace
async def move(
    at: At,
    stream: Annotated[str, typer.Argument(help="The stream.")],
    target: ProxyArgument,
) -> None:
    """Hand a stream over to another write proxy; clients see no error."""
    from dlspark.serving.write_proxy.tier.administration import member_named, owner_of
    from dlspark.serving.write_proxy.tier.administration import move as move_stream

    async with write_tier(at) as (_, peers, members):
        to = member_named(members, target).location
        source = await move_stream(peers, await owner_of(peers, members, stream), stream, to)
    moved = source != to
    text = f"{stream} was handed over from {source} to {to}" if moved else f"{stream} belongs to {to} already"
    at.result({"stream": stream, "from": source, "to": to, "moved": moved}, text)


@over_namespace
async def release(at: At, stream: Annotated[str, typer.Argument(help="The stream.")]) -> None:
    """Have the write proxy that owns a stream end its segment and give the log up, for a writer without proxies. The
    next write of a client makes a proxy own it again, unless another writer has it by then."""
    from dlspark.serving.write_proxy.tier.administration import release as release_stream

    async with write_tier(at) as (_, peers, members):
        owner = await release_stream(peers, members, stream)
    at.result({"stream": stream, "from": owner}, f"{owner} has given {stream} up; no write proxy owns it now")


@over_namespace
async def drain(
    at: At,
    proxy: ProxyArgument,
    rate: RateOption = 0.0,
    undo: Annotated[bool, typer.Option("--undo", help="Have it take streams again; nothing is moved.")] = False,
) -> None:
    """Have a write proxy take no other streams, and hand all of its own over to the others."""
    from dlspark.serving.write_proxy.tier.administration import accept_streams, distribution_of, member_named, survey
    from dlspark.serving.write_proxy.tier.balancing import ClusterBalance

    async with write_tier(at) as (_, peers, members):
        member = member_named(members, proxy)
        if not undo and len(members) < 2:
            raise CallerError(f"{member.location} is the only proxy; nothing was done", advice="Start another first")
        await accept_streams(peers, member, enabled=undo)
        if undo:
            at.result({"proxy": member.location, "accepts": True}, f"{member.location} takes streams again")
            return
        taking = _taking(await survey(peers, members), but=member.location)
        balance = ClusterBalance(distribution_of(taking), source=member.location)
        result = await _run(at, peers, balance, rate)
    _report(at, result, {"proxy": member.location, "accepts": False})


def _taking(reports: Sequence[ProxyReport], but: str | None = None) -> list[ProxyReport]:
    """Return the proxies that take streams, and the one that gives."""
    from dlspark.serving.protocol.operations import ProxyStatus

    return [one for one in reports if one.status is ProxyStatus.WRITE_AND_ACCEPT or one.location == but]


@over_namespace
async def balance(
    at: At,
    by: Annotated[
        BalanceMeasure,
        typer.Option(help="The number of streams, or the loads that the leader of placement wrote down."),
    ] = BalanceMeasure.COUNT,
    water_mark: Annotated[
        float, typer.Option("--water-mark", min=0, help="A proxy with no more than this gives nothing away.")
    ] = 0,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, help="Percent above the average that a proxy may have.")
    ] = 0.0,
    rate: RateOption = 0.0,
    regions: Annotated[
        str | None,
        typer.Option("--regions", metavar="A,B", help="Between the proxies of two regions, by their names or numbers."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Empty this proxy or, with --regions, this region, into the others.")
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Balance the streams of the write proxies: those that have more than the average hand some over."""
    from dlspark.serving.write_proxy.tier.administration import survey

    async with write_tier(at) as (namespace, peers, members):
        reports = await survey(peers, members)
        loads = await _loads(namespace) if by is BalanceMeasure.LOAD else None
        rules = (water_mark, tolerance)
        if regions is not None:
            machine = _between_regions(reports, regions, source, rules, loads)
        else:
            machine = _within_cluster(reports, members, source, rules, loads)
        if dry_run:
            moves = list(_planned(machine))
            at.result({"moves": [_moved(one) for one in moves]}, [_shown(one) for one in moves] or ["nothing to move"])
            return
        result = await _run(at, peers, machine, rate)
    _report(at, result, {})


async def _loads(namespace: AsyncNamespace) -> dict[str, int]:
    from dlspark.serving.write_proxy.tier.placement import LoadTable

    written = await LoadTable(namespace.store, namespace.uri.path).read()
    if not written:
        raise CallerError(
            "no loads are written down", advice="They are by the proxy with shard 0; or balance --by count"
        )
    return {stream.stream: stream.load for one in written for stream in one.streams}


def _within_cluster(
    reports: Sequence[ProxyReport],
    members: Sequence[ProxyMember],
    source: str | None,
    rules: tuple[float, float],
    loads: dict[str, int] | None,
) -> Balance:
    from dlspark.serving.write_proxy.tier.administration import distribution_of, member_named
    from dlspark.serving.write_proxy.tier.balancing import BalanceRules, ClusterBalance

    giving = member_named(members, source).location if source is not None else None
    taking = _taking(reports, but=giving)
    return ClusterBalance(distribution_of(taking), BalanceRules(*rules), source=giving, loads=loads)


def _between_regions(
    reports: Sequence[ProxyReport],
    regions: str,
    source: str | None,
    rules: tuple[float, float],
    loads: dict[str, int] | None,
) -> Balance:
    from dlspark.serving.write_proxy.tier.administration import distribution_of
    from dlspark.serving.write_proxy.tier.balancing import BalanceRules, RegionBalance

    names = [one.strip() for one in regions.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise CallerError(f"--regions {regions} does not name two regions", advice="Write --regions A,B")
    if source is not None and source not in names:
        raise CallerError(f"{source} is neither of the regions {names[0]} and {names[1]}")
    taking = _taking(reports)
    sides = [distribution_of([one for one in taking if name in (one.region, one.region_id)]) for name in names]
    for name, side in zip(names, sides, strict=True):
        if not side:
            raise CallerError(f"no proxy of region {name} takes streams", advice="dlspark proxy list shows them")
    giving = names.index(source) + 1 if source is not None else None
    return RegionBalance(sides[0], sides[1], BalanceRules(*rules), source=giving, loads=loads)


def _planned(machine: Balance) -> Iterator[StreamMove]:
    while (step := machine.next_move()) is not None:
        yield step
        # As if each move went well: a plan asks no proxy for anything.
        machine.ended(True)


async def _run(at: At, peers: ProxyPeers, machine: Balance, rate: float) -> BalanceResult:
    from dlspark.serving.write_proxy.tier.administration import run_balance

    def say(step: StreamMove, error: str | None) -> None:
        if error is not None:
            typer.echo(f"dlspark: {_shown(step)} failed: {error}", err=True)
        elif not at.as_json:
            typer.echo(_shown(step))

    return await run_balance(peers, machine, per_second=rate, on_move=say)


def _report(at: At, result: BalanceResult, about: dict[str, Json]) -> None:
    moved: list[Json] = [_moved(one) for one in result.moved]
    failed: list[Json] = [_moved(one) | {"error": error} for one, error in result.failed]
    text = f"{counted(len(result.moved), 'stream')} handed over"
    at.result(about | {"moved": moved, "failed": failed}, text)
    exit_with(failed=[one.stream for one, _ in result.failed])


def _moved(step: StreamMove) -> dict[str, Json]:
    return {"stream": step.stream, "from": step.source, "to": step.target}


def _shown(step: StreamMove) -> str:
    return f"{step.stream}: {step.source} to {step.target}"


@asynccontextmanager
async def write_tier(at: At) -> AsyncIterator[tuple[AsyncNamespace, ProxyPeers, tuple[ProxyMember, ...]]]:
    """Open the namespace, connections to proxies, and find the write proxies. Raises CallerError where there
    are none.
    """
    from dlspark.serving.process.membership import WRITE_PROXIES, read_members
    from dlspark.serving.process.peers import ProxyPeers
    from dlspark.serving.security.credentials import client_credentials
    from metadata.security.settings import SecurityMode
    from metadata.store import join
    from storage_node.transport.tcp import TcpNetwork

    async with at.open() as namespace:
        members = await read_members(namespace.store, join(namespace.uri.path, WRITE_PROXIES))
        credentials = client_credentials(namespace.settings.client_settings().security)
        # In the midst of a rolling change some proxies do not speak TLS yet: each says so where it is announced.
        plain = {str(member.endpoint) for member in members if not member.secured}
        optional = namespace.settings.security == SecurityMode.OPTIONAL.value
        peers = ProxyPeers(
            TcpNetwork(), credentials_for=lambda address: None if optional and address in plain else credentials
        )
        try:
            yield namespace, peers, members
        finally:
            await peers.close()
