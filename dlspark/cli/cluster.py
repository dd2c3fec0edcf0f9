"""`dlspark cluster ...`: a BookKeeper cluster as a whole: how it is created, and how it is."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from dlspark.cli.common import ATTENTION, Json
from metadata.foundation.addresses import address_text
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.foundation.times import time_text

if TYPE_CHECKING:
    from dlspark.core.administration.cluster import ClusterStatus, NodeStatus
    from metadata.security.settings import SecuritySettings
    from metadata.store import MetadataStore
    from storage_node.autorecovery.status import RecoveryStatus

T = TypeVar("T")


class ClusterPlace(NamedTuple):
    """Which cluster is worked on?"""

    servers: str
    root: str
    """Of its ledgers, at these servers."""
    security: SecuritySettings | None = None
    """How its ZooKeeper is spoken to; None: as this process's settings for namespaces say."""


WIDTH = 80
_SHORT_NAME = 28

ConfOption = Annotated[
    Path | None, typer.Option("--conf", help="Properties file of a storage node: it says where the cluster is.")
]
ZooKeeperOption = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOST:PORT,...", help="The cluster's ZooKeeper, in place of a file."),
]
LedgersPathOption = Annotated[str, typer.Option("--ledgers-path", "-l", help="Root znode, with --zookeeper.")]
UriOption = Annotated[
    str | None,
    typer.Option("--uri", "-u", help="Namespace: its cluster, where no other is named. [env: DLSPARK_URI]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def init(
    conf: ConfOption = None,
    zookeeper: ZooKeeperOption = None,
    ledgers_path: LedgersPathOption = "/ledgers",
    layout: Annotated[
        str | None,
        typer.Option(help="hierarchical (the usual one), longhierarchical, legacyhierarchical or flat."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make what a new cluster needs in ZooKeeper: root, LAYOUT, INSTANCEID, folders of registrations.

    What exists is kept as it is; a tree that lacks a part is completed.
    """
    from metadata.bookkeeper.ledgers import LAYOUT_NAMES, LedgerStore

    if layout is not None and layout not in LAYOUT_NAMES:
        raise CallerError(f"there is no layout {layout!r}", advice=f"There are: {', '.join(LAYOUT_NAMES)}")
    place = _place(conf, zookeeper, ledgers_path)

    async def work(store: MetadataStore, root: str) -> dict[str, Json]:
        from metadata.bookkeeper.bookies import BookieRegistry

        ledgers, registry = LedgerStore(store, root), BookieRegistry(store, root)
        made = await ledgers.format(None if layout is None else LAYOUT_NAMES[layout])
        return {
            "zookeeper": place[0],
            "root": root,
            "layout": (await ledgers.layout()).value,
            "instance_id": await registry.instance_id(),
            "made": made,
            "nodes": len({*await registry.cookies(), *(one.bookie_id for one in await registry.registrations())}),
        }

    done = in_cluster(place, work)
    if as_json:
        typer.echo(json.dumps(done, indent=2))
        return
    made = done["made"]
    whole = isinstance(made, list) and done["root"] in made
    if not made:
        typer.echo(f"{done['root']} is initialised already; nothing was changed")
    else:
        typer.echo(f"{done['root']} {'is initialised' if whole else 'was there, and is complete now'}; made:")
        for path in made if isinstance(made, list) else ():
            typer.echo(f"  {path}")
    _echo_pairs({"layout": done["layout"], "instance": done["instance_id"] or "none", "nodes": done["nodes"]})


def status(
    conf: ConfOption = None,
    zookeeper: ZooKeeperOption = None,
    ledgers_path: LedgersPathOption = "/ledgers",
    uri: UriOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Ledgers without copies to list; all are counted.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show storage nodes and their room, ledgers that lack copies, and repairs. Exits with 3 where that needs a
    person.
    """
    place = named_place(conf, zookeeper, ledgers_path, uri)

    async def work(store: MetadataStore, root: str) -> ClusterStatus:
        from dlspark.core.administration.cluster import cluster_status
        from storage_node.edge import SystemClock

        return await cluster_status(store, root, SystemClock(), limit=limit)

    found = in_cluster(place, work)
    if as_json:
        typer.echo(json.dumps(_as_json(place, found), indent=2))
    else:
        _echo_status(place, found)
    if found.faults:
        raise typer.Exit(ATTENTION)


# ---------------------------------------------------------------------- where


def named_place(conf: Path | None, zookeeper: str | None, ledgers_path: str, uri: str | None) -> ClusterPlace:
    """Return the cluster that the options name, else that of the namespace. Raises CallerError, NotBoundError."""
    return _place(conf, zookeeper, ledgers_path) if conf or zookeeper else _place_of(uri)


def _place(conf: Path | None, zookeeper: str | None, ledgers_path: str) -> ClusterPlace:
    """Return the cluster that the options name. Raises CallerError for none or both."""
    if (conf is None) == (zookeeper is None):
        raise CallerError(
            "no cluster was named" if conf is None else "a cluster was named twice",
            advice="Give --zookeeper HOST:PORT (and --ledgers-path), or --conf FILE, a storage node's properties",
        )
    if zookeeper is not None:
        return ClusterPlace(zookeeper, ledgers_path)
    from storage_node.settings.files import NodeFile

    file = NodeFile.read(str(conf))
    where = file.metadata()
    return ClusterPlace(where.zk_servers, where.zk_ledgers_root_path, file.security())


def _place_of(uri: str | None) -> ClusterPlace:
    """Return the cluster of a namespace, as its binding says. Raises CallerError, NotBoundError."""
    import asyncio

    from dlspark.cli.common import namespace_uri
    from metadata.distributedlog.bindings import Binding
    from metadata.distributedlog.namespaces import NamespaceStore, NamespaceUri

    parsed = NamespaceUri.parse(namespace_uri(uri))
    # URIs and bindings part servers by semicolons, ZooKeeper's clients by commas.
    servers = parsed.servers.replace(";", ",")

    async def resolve(store: MetadataStore) -> Binding:
        return await NamespaceStore(store, parsed.path).resolve()

    binding = asyncio.run(_connected(servers, resolve))
    return ClusterPlace(binding.bk_servers.replace(";", ","), binding.ledgers_path)


def in_cluster(place: ClusterPlace, work: Callable[[MetadataStore, str], Awaitable[T]]) -> T:
    """Do `work` with a session with the cluster's ZooKeeper and the root of the ledgers there, and return its
    result.
    """
    import asyncio

    return asyncio.run(_connected(place.servers, lambda store: work(store, place.root), place.security))


async def _connected(
    servers: str, work: Callable[[MetadataStore], Awaitable[T]], security: SecuritySettings | None = None
) -> T:
    from dlspark.core.settings.settings import Settings
    from metadata.zookeeper.securing import open_session

    if security is None:
        security = Settings.from_environment().client_settings().security
    store = await open_session(servers, security)
    try:
        return await work(store)
    finally:
        await store.close()


# ---------------------------------------------------------------------- how it is printed


def _as_json(place: ClusterPlace, found: ClusterStatus) -> dict[str, Json]:
    from dataclasses import asdict

    return {
        "zookeeper": place[0],
        "root": found.root,
        "healthy": not found.faults,
        "faults": found.faults,
        "layout": None if found.layout is None else found.layout.value,
        "instance_id": found.instance_id,
        "nodes": [_node_json(node) for node in found.nodes],
        "autorecovery": asdict(found.recovery),
    }


def _node_json(node: NodeStatus) -> dict[str, Json]:
    registration, space = node.registration, node.space
    address = None if registration is None else registration.address
    return {
        "node": node.bookie_id,
        "state": node.state.value,
        "address": None if address is None else address_text(address.host, address.port),
        "registered_at": None if registration is None else time_text(registration.since_ms),
        "version": None if registration is None else registration.version,
        "answers": space is not None,
        "total_bytes": None if space is None else space.total,
        "free_bytes": None if space is None else space.free,
        "error": node.error,
    }


def _echo_status(place: ClusterPlace, found: ClusterStatus) -> None:
    from dlspark.core.administration.cluster import NodeState

    counts = ", ".join(f"{found.count(state)} {state.value}" for state in NodeState)
    layout = "none" if found.layout is None else found.layout.value
    _echo_pairs(
        {
            "cluster": f"{found.root} at {place[0]}",
            "layout": layout,
            "instance": found.instance_id or "none",
            "nodes": counts,
            "auditor": found.recovery.auditor or "none: lost copies are not looked for",
            "recovery": "enabled" if found.recovery.enabled else "switched off",
            "copies": f"{counted(found.recovery.marked, 'ledger lacks', 'ledgers lack')} some, "
            f"{counted(found.recovery.locked, 'is', 'are')} being repaired",
        }
    )
    if found.nodes:
        typer.echo("")
        for line in _node_lines(found.nodes):
            typer.echo(line)
    if found.recovery.ledgers:
        typer.echo("")
        for line in _ledger_lines(found.recovery):
            typer.echo(line)
    if found.faults:
        typer.echo("")
    for fault in found.faults:
        typer.echo(textwrap.fill(fault, WIDTH, initial_indent="! ", subsequent_indent="  ", break_on_hyphens=False))


def _echo_pairs(pairs: Mapping[str, Json]) -> None:
    for name, value in pairs.items():
        typer.echo(textwrap.fill(f"{name:<10}{value}", WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False))


def _node_lines(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    """Yield a line a node; a long name has one of its own."""
    width = max([4, *(len(node.bookie_id) for node in nodes if len(node.bookie_id) <= _SHORT_NAME)])
    yield f"{'node':<{width}}  {'state':<14}  {'version':<9}  {'size':>9}  {'free':>9}"
    for node in nodes:
        name, space = node.bookie_id, node.space
        if len(name) > width:
            yield name
            name = ""
        version = (node.registration.version if node.registration is not None else None) or "-"
        total, free = (None, None) if space is None else (space.total, space.free)
        line = f"{name:<{width}}  {node.state.value:<14}  {version:<9}  {_size(total):>9}  {_size(free):>9}"
        yield line.rstrip()


def _ledger_lines(recovery: RecoveryStatus) -> Iterator[str]:
    for ledger in recovery.ledgers:
        missing = "its mark cannot be read" if ledger.missing is None else f"lacks {', '.join(ledger.missing)}"
        age = "" if ledger.age_s is None else f", marked {ledger.age_s} s ago"
        yield from textwrap.wrap(
            f"ledger {ledger.ledger_id}: {missing}{age}", WIDTH, subsequent_indent="  ", break_on_hyphens=False
        )
    hidden = recovery.marked - len(recovery.ledgers)
    if hidden > 0:
        yield f"and {hidden} more (--limit)"


def _size(size: int | None) -> str:
    """Return bytes as people read them."""
    if size is None:
        return "-"
    amount, unit = float(size), "B"
    for following in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, following
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
