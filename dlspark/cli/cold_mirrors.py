"""`dlspark cold mirror`: copies of cold files in other regions' stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    FilterOption,
    Json,
    NamesArgument,
    chosen_logs,
    each,
    exit_with,
    over_namespace,
    size_text,
)
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.cold.moving.mirroring import Mirrored


@over_namespace
async def mirror(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    drop: Annotated[
        str | None,
        typer.Option(
            "--drop",
            metavar="REGION",
            help="Forget a region's former mirror, which coldStorageMirrors does not name any more. Nothing is "
            "deleted: the folders are printed that may be deleted by hand.",
        ),
    ] = None,
) -> None:
    """Copy what the mirrors of logs lack (coldStorageMirrors), newest files first, and check size and digest. It may be
    stopped anywhere and run again; movers do it as well. Without names: for all logs that have mirrors. Exits with 1
    where something could not be copied, and says for each log how many copies are lacking and the first cause; all
    causes are in --output json."""
    from dlspark.cold.moving.mirroring import LogMirrors, forget_mirror
    from dlspark.cold.moving.stores import MoverStores
    from metadata.distributedlog.cold_store import ColdStore

    if drop is not None and not names:
        raise CallerError(
            "--drop needs the names of logs; nothing was done", advice="Name each log whose mirror is to be forgotten"
        )
    stores = MoverStores()
    found: dict[str, Mirrored] = {}
    dropped: dict[str, list[Json]] = {}
    async with at.open() as namespace:
        services = namespace.services
        cold = ColdStore(services.logs)

        async def work(name: str) -> None:
            async with await namespace.open_log(name) as log:
                await log.metadata()  # a name that is none is said to be none
                if drop is not None:
                    dropped[name] = [*await forget_mirror(services, cold, name, log.settings, drop)]
                elif log.settings.cold_mirrors:
                    found[name] = await LogMirrors(services, cold, stores, name).run(log.settings)
                elif names:
                    raise CallerError(
                        f"log {name} has no mirrors; nothing was copied",
                        advice="Set coldStorageMirrors, in the file of --conf or with --set",
                    )

        try:
            failed = await each(await chosen_logs(namespace, names, pattern), 1, work)
        finally:
            await stores.close()
    lines = [line for name in sorted(found) for line in _lines(name, found[name])]
    lines += [line for name in sorted(dropped) for line in _forgotten_lines(name, drop or "", dropped[name])]
    logs: list[Json] = [{"log": name, **asdict(found[name])} for name in sorted(found)]
    fields: dict[str, Json] = {"logs": logs, "dropped": dict(dropped), "failed": failed}
    at.result(fields, lines or ["no log has mirrors"])
    exit_with(failed=[*failed, *(name for name, one in found.items() if one.problems or one.busy is not None)])


def _forgotten_lines(name: str, region: str, folders: Iterable[Json]) -> list[str]:
    return [
        f"{name}: the mirror of region {region} is forgotten: nothing reads or clears it any more",
        *(
            f"{name}: nothing was deleted: {folder} may be deleted by hand once nobody needs it; records that are "
            "erased or deleted from now on stay there"
            for folder in folders
        ),
    ]


def _lines(name: str, done: Mirrored) -> list[str]:
    copies = f"{counted(len(done.copied), 'copy', 'copies')} made ({size_text(done.bytes)}), {done.there} were there"
    lines = [f"{name}: {copies}" + (f"; {done.failure}" if done.failure is not None else "")]
    lines += [f"{name}: {url} had another size and was made anew" for url in done.mended]
    lines += [f"{name}: {done.busy} is at work there; the rest was not copied"] if done.busy is not None else []
    return lines
