"""`dlspark cold mirror`: copies of cold files in other regions' stores."""

from __future__ import annotations

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
            help="Delete the copies in a region's former mirror, which coldStorageMirrors does not name any more.",
        ),
    ] = None,
) -> None:
    """Copy what the mirrors of logs lack (coldStorageMirrors), newest files first, and check size and digest. It may be
    stopped anywhere and run again; movers do it as well. Without names: for all logs that have mirrors. Exits with 1
    where something could not be copied, and says what."""
    from dlspark.cold.moving.mirroring import LogMirrors, drop_mirror
    from dlspark.cold.moving.stores import MoverStores
    from metadata.distributedlog.cold_store import ColdStore

    if drop is not None and not names:
        raise CallerError(
            "--drop needs the names of logs; nothing was done", advice="Name each log whose copies are to go"
        )
    stores = MoverStores()
    found: dict[str, Mirrored] = {}
    dropped: dict[str, int] = {}
    async with at.open() as namespace:
        services = namespace.services
        cold = ColdStore(services.logs)

        async def work(name: str) -> None:
            async with await namespace.open_log(name) as log:
                if drop is not None:
                    dropped[name] = await drop_mirror(services, cold, stores, name, log.settings, drop)
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
    lines += [
        f"{name}: {counted(dropped[name], 'copy', 'copies')} of region {drop} deleted" for name in sorted(dropped)
    ]
    logs: list[Json] = [{"log": name, **asdict(found[name])} for name in sorted(found)]
    fields: dict[str, Json] = {"logs": logs, "dropped": dict(dropped), "failed": failed}
    at.result(fields, lines or ["no log has mirrors"])
    exit_with(failed=[*failed, *(name for name, one in found.items() if one.problems or one.busy is not None)])


def _lines(name: str, done: Mirrored) -> list[str]:
    copies = f"{counted(len(done.copied), 'copy', 'copies')} made ({size_text(done.bytes)}), {done.there} were there"
    lines = [f"{name}: {copies}"]
    lines += [f"{name}: {url} had another size and was made anew" for url in done.mended]
    lines += [f"{name}: {done.busy} is at work there; the rest was not copied"] if done.busy is not None else []
    return [*lines, *(f"{name}: {one}" for one in done.problems)]
