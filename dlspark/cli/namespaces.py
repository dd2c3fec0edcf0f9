"""`dlspark namespace ...`: the binding of a namespace, its access control, its pools of ledgers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import At, Json, NameArgument, YesOption, confirm, over_namespace
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from metadata.distributedlog.bindings import Binding
    from metadata.distributedlog.permissions import Permissions


def _servers(name: str, what: str) -> object:
    return typer.Option(name, metavar="HOST:PORT,...", help=what)


@over_namespace
async def bind(
    at: At,
    ledgers_path: Annotated[str, typer.Option("--ledgers-path", "-l", help="BookKeeper's root znode.")] = "/ledgers",
    ledger_servers: Annotated[
        str | None, _servers("--ledger-servers", "BookKeeper's ZooKeeper; the URI's if not said.")
    ] = None,
    ledger_reader_servers: Annotated[
        str | None, _servers("--ledger-reader-servers", "The same for readers; the writers' if not said.")
    ] = None,
    log_servers: Annotated[
        str | None, _servers("--log-servers", "ZooKeeper of the logs' metadata; the URI's if not said.")
    ] = None,
    log_reader_servers: Annotated[
        str | None, _servers("--log-reader-servers", "The same for readers; the writers' if not said.")
    ] = None,
    sanity_check_txid: Annotated[
        bool, typer.Option("--sanity-check-txid/--no-sanity-check-txid", help="Kept for upstream's tools.")
    ] = True,
    encode_region_id: Annotated[
        bool, typer.Option("--encode-region-id", help="Segments name the region of their writer.")
    ] = False,
    acl_root: Annotated[
        str | None, typer.Option("--acl-root", help="Name of the znode of access control, as .acl.")
    ] = None,
    first_lssn: Annotated[int | None, typer.Option("--first-lssn", min=1, help="Of logs' first segments.")] = None,
    federated: Annotated[bool, typer.Option("--federated", help="Spread the logs over sub-namespaces.")] = False,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Make the path if it is not there.")] = True,
    yes: YesOption = False,
) -> None:
    """Make a namespace at --uri, or bind one anew (asks before it replaces a binding). Logs stay."""
    from dlspark.core.binding import bind as bind_namespace

    before = await _own_binding(at)
    if before is not None:
        confirm(f"{at.uri} is bound already. Replace its binding?", yes=yes)
    binding = await bind_namespace(
        at.uri,
        ledgers_path=ledgers_path,
        ledger_servers=ledger_servers,
        ledger_reader_servers=ledger_reader_servers,
        log_servers=log_servers,
        log_reader_servers=log_reader_servers,
        sanity_check_txid=sanity_check_txid,
        encode_region_id=encode_region_id,
        acl_root=acl_root,
        first_lssn=first_lssn,
        federated=federated,
        create=create,
        settings=at.settings,
    )
    at.result({"uri": at.uri, "binding": _as_dict(binding)}, [f"{at.uri} is bound", *_lines(binding)])


async def _own_binding(at: At) -> Binding | None:
    from dlspark.core.binding import find_binding
    from metadata.distributedlog.namespaces import NamespaceUri, NotBoundError

    try:
        binding, path = await find_binding(at.uri, settings=at.settings)
    except NotBoundError:
        return None
    return binding if NamespaceUri.parse(at.uri).path == path else None


@over_namespace
async def unbind(
    at: At,
    force: Annotated[bool, typer.Option("--force", help="Though it has logs: they stay, out of reach.")] = False,
    yes: YesOption = False,
) -> None:
    """Take a namespace's binding away."""
    from dlspark.core.binding import unbind as unbind_namespace

    confirm(f"Unbind {at.uri}?", yes=yes)
    await unbind_namespace(at.uri, force=force, settings=at.settings)
    at.result({"uri": at.uri, "bound": False}, f"{at.uri} is not bound any more")


@over_namespace
async def show(at: At) -> None:
    """Show what a namespace is bound to."""
    from dlspark.core.binding import find_binding

    binding, path = await find_binding(at.uri, settings=at.settings)
    at.result({"uri": at.uri, "bound_at": path, "binding": _as_dict(binding)}, [f"bound at {path}", *_lines(binding)])


def _as_dict(binding: Binding) -> dict[str, Json]:
    return asdict(binding)


def _lines(binding: Binding) -> list[str]:
    return [f"{name}: {value}" for name, value in asdict(binding).items() if value is not None]


# ---------------------------------------------------------------------- access control


def _deny(what: str) -> object:
    return typer.Option(f"--deny-{what}", help=f"Deny {what}.")


DenyWrite = Annotated[bool, _deny("write")]
DenyTruncate = Annotated[bool, _deny("truncate")]
DenyDelete = Annotated[bool, _deny("delete")]
DenyAcquire = Annotated[bool, _deny("acquire")]
DenyRelease = Annotated[bool, _deny("release")]


@over_namespace
async def acl_show(
    at: At, name: Annotated[str | None, typer.Argument(metavar="[LOG]", help="A log; the default if not said.")] = None
) -> None:
    """Show the default entry and the logs that have one of their own, or what holds for a log."""
    from metadata.distributedlog.permissions import Permissions

    async with at.open() as namespace:
        control = namespace.access_control
        own = await control.get(name)
        holds = own if name is None else await control.of(name)
        logs = await control.logs() if name is None else []
    result: dict[str, Json] = {"log": name, "own": own is not None, "denied": _denied(holds or Permissions())}
    if name is None:
        result["logs"] = logs
    text = [f"denied: {', '.join(_denied(holds or Permissions())) or 'nothing'}"]
    if name is not None:
        text.append("by an entry of its own" if own is not None else "by the default")
    at.result(result, text + [f"{log} has an entry of its own" for log in logs])


def _denied(permissions: Permissions) -> list[str]:
    return [name.removeprefix("deny_") for name, denied in asdict(permissions).items() if denied]


@over_namespace
async def acl_set_default(
    at: At,
    write: DenyWrite = False,
    truncate: DenyTruncate = False,
    delete: DenyDelete = False,
    acquire: DenyAcquire = False,
    release: DenyRelease = False,
) -> None:
    """Set what is denied on logs that have no entry of their own; what is not named is allowed."""
    await _set(at, None, write, truncate, delete, acquire, release)


@over_namespace
async def acl_set(
    at: At,
    name: NameArgument,
    write: DenyWrite = False,
    truncate: DenyTruncate = False,
    delete: DenyDelete = False,
    acquire: DenyAcquire = False,
    release: DenyRelease = False,
) -> None:
    """Set what is denied on one log, in place of the default; what is not named is allowed."""
    await _set(at, name, write, truncate, delete, acquire, release)


async def _set(at: At, name: str | None, *denials: bool) -> None:
    from metadata.distributedlog.permissions import Permissions

    permissions = Permissions(*denials)
    async with at.open() as namespace:
        await namespace.access_control.set(permissions, name)
    denied = _denied(permissions)
    at.result({"log": name, "denied": denied}, f"{name or 'default'}: denied: {', '.join(denied) or 'nothing'}")


@over_namespace
async def acl_delete(at: At, name: NameArgument) -> None:
    """Remove a log's own entry, so that the default holds."""
    async with at.open() as namespace:
        removed = await namespace.access_control.delete(name)
    at.result({"log": name, "removed": removed}, "removed" if removed else "there was no entry of its own")


# ---------------------------------------------------------------------- pools of ledgers

FolderOption = Annotated[
    str | None, typer.Option("--folder", help="Where pools are; ledgerAllocatorPoolPath if not said.")
]


@over_namespace
async def pool_list(at: At, folder: FolderOption = None) -> None:
    """List the pools of ledgers that were made in advance."""
    from dlspark.core.writing.ledger_allocators import list_pools

    async with at.open() as namespace:
        pools = await list_pools(namespace.services, folder)
    rows: list[Json] = [{"pool": name, "allocators": len(ready), "ledgers": _ids(ready)} for name, ready in pools]
    at.result(
        {"pools": rows},
        [
            f"{name}: {counted(len(ready), 'allocator')}, ledgers ready: {_ids(ready) or 'none'}"
            for name, ready in pools
        ],
    )


def _ids(ready: list[int | None]) -> list[int]:
    return [ledger for ledger in ready if ledger is not None]


@over_namespace
async def pool_delete(
    at: At,
    name: Annotated[str, typer.Argument(help="The pool's name.")],
    folder: FolderOption = None,
    yes: YesOption = False,
) -> None:
    """Delete a pool with the ledgers that it has ready. Its clients lose their allocators, and no segment."""
    from dlspark.core.writing.ledger_allocators import list_pools

    confirm(f"Delete the pool {name} with its ledgers?", yes=yes)
    async with at.open() as namespace:
        if name not in dict(await list_pools(namespace.services, folder)):
            raise CallerError(
                f"there is no pool {name!r}; nothing was deleted", advice="See: dlspark namespace allocator-pool list"
            )
        deleted = await namespace.delete_allocator_pool(name, folder)
    at.result({"pool": name, "ledgers_deleted": deleted}, f"{name} is deleted, with {counted(deleted, 'ledger')}")
