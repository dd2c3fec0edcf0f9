"""`dlspark cold owner`: whose the place for files is, and taking it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import At, YesOption, confirm, exit_with, over_namespace
from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from dlspark.cold.moving.owning import OwnerMark


@over_namespace
async def owner(
    at: At,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Make this namespace the owner: the other one is gone for good.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Show which ZooKeeper's namespace owns the files below coldStoragePath. Exits with 3 if that is another one, which
    no mover or sweep of this one touches.

    A namespace whose znodes were copied into another ZooKeeper has the first one's id and so its folder; only one of
    the two may move and delete there. --take-over is for the one that is left. Each former coldStoragePath that has
    files has an owner of its own: ask for it with --set coldStoragePath=...
    """
    from dlspark.cold.moving.owning import owner_of, take_over_place
    from dlspark.cold.moving.stores import MoverStores
    from metadata.distributedlog.cold_store import ColdStore

    stores = MoverStores()
    async with at.open() as namespace:
        root, options = at.settings.cold_root, at.settings.cold_write_options
        if not root:
            raise CallerError(
                "nothing was asked: there is no place for files",
                advice="Set coldStoragePath, in the file of --conf or with --set",
            )
        cold = ColdStore(namespace.services.logs)
        namespace_id, mine = await cold.owner()
        folder = f"{root}/{namespace_id}/"
        try:
            found = await owner_of(stores.at(root, options), folder)
            if take_over and (found is None or found.owner != mine):
                confirm(f"Is the namespace that owns {folder} gone for good, and are its movers stopped?", yes=yes)
                found = await take_over_place(namespace.services, cold, stores, root, options)
        finally:
            await stores.close()
    ours = found is not None and found.owner == mine
    at.result(
        {
            "folder": folder,
            "this": mine,
            "owner": found.owner if found is not None else None,
            "ours": ours,
            "disputed": found is not None and found.owner is None,
        },
        _owner_text(folder, found, mine),
    )
    exit_with(attention=found is not None and not ours)


def _owner_text(folder: str, found: OwnerMark | None, mine: str) -> str:
    if found is None:
        return f"{folder} has no owner yet: the first mover makes this namespace its owner"
    if found.owner == mine:
        return f"{folder} is this namespace's"
    if found.owner is None:
        return (
            f"{folder} is nobody's: two copies of this namespace claimed it at the same time (this one is {mine}). "
            "Neither moves or deletes there until one of them runs --take-over"
        )
    return f"{folder} belongs to another ZooKeeper's copy of this namespace (owner {found.owner}; this one is {mine})"
