"""`dlspark cold run|move|status|verify|audit|sweep`: the past of logs as files: the mover, and how far it is."""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import (
    At,
    ConcurrencyOption,
    FilterOption,
    Json,
    NameArgument,
    NamesArgument,
    YesOption,
    chosen_logs,
    confirm,
    each,
    exit_with,
    file_address,
    over_namespace,
    size_text,
    table,
)
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dlspark.cold.moving.auditing import ColdFinding
    from dlspark.cold.moving.log_mover import MoverPass
    from dlspark.cold.moving.planning import ColdTotals
    from dlspark.cold.moving.stores import MoverStores
    from dlspark.cold.moving.verifying import FileReport
    from dlspark.core.log import AsyncLog
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.settings.settings import Settings
    from metadata.distributedlog.cold_away import AwayNote

_SUFFIX = ".parquet"


@over_namespace
async def run(
    at: At,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Logs that are moved at a time.")] = 4,
) -> None:
    """Move the logs of the namespace that have coldStoragePath, until SIGTERM or Ctrl-C, which end it at once: what it
    has begun is taken up by the next one. Any number of processes may run."""
    import asyncio

    from dlspark.cold.moving.daemon import MoverDaemon
    from metadata.foundation.tasks import end_tasks

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with at.open() as namespace:
        moving = loop.create_task(MoverDaemon(namespace, concurrency=concurrency).run())
        stopped = loop.create_task(stopping.wait())
        at.line({"mover": "at work", "uri": str(namespace.uri)}, f"the mover of {namespace.uri} is at work")
        try:
            await asyncio.wait([moving, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([stopped])
            ended = moving.done()
            await end_tasks([moving])
    if ended:
        moving.result()  # what ended it, which is never a signal


@over_namespace
async def move(
    at: At,
    name: NameArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="Every completed segment, whether its time has come or not.")
    ] = False,
) -> None:
    """Make one pass over a log now: copy what is due into files, and delete what is due, hot copies and files."""
    from dlspark.cold.lake.syncing import sync_tables
    from dlspark.cold.moving.log_mover import LogMover
    from dlspark.cold.moving.stores import MoverStores
    from dlspark.core.write_lock import default_client_id
    from metadata.distributedlog.cold_store import ColdStore

    stores = MoverStores()
    async with at.open() as namespace, await namespace.open_log(name) as log:
        _check_cold(log.settings, name)
        try:
            cold = ColdStore(namespace.services.logs)
            mover = LogMover(namespace.services, cold, stores, name, lambda: log.settings, default_client_id())
            done = await mover.run(at_once=everything)
            done.problems += [
                f"lake table {report.table}: {said}"
                for report in await sync_tables(namespace.services.logs)
                for said in (report.error, *report.findings)
                if said is not None
            ]
        finally:
            await stores.close()
    at.result(_pass_fields(name, done), _pass_lines(name, done))
    if done.busy is not None or done.problems:
        exit_with(failed=[name])


def _check_cold(settings: Settings, name: str) -> None:
    if not settings.cold_path:
        raise CallerError(
            f"log {name} has no cold storage; nothing was moved",
            advice="Set coldStoragePath, in the file of --conf or with --set",
        )


def _pass_fields(name: str, done: MoverPass) -> dict[str, Json]:
    return {
        "log": name,
        "busy": done.busy,
        "moved": [
            {
                "first": unit.first,
                "last": unit.last,
                "url": unit.file.url if unit.file is not None else None,
                "bytes": unit.file.bytes if unit.file is not None else 0,
                "rows": unit.file.rows if unit.file is not None else 0,
            }
            for unit in done.moved
        ],
        "hot_deleted": [{"first": unit.first, "last": unit.last} for unit in done.hot_deleted],
        "cold_deleted": [{"first": unit.first, "last": unit.last} for unit in done.cold_deleted],
        "replaced_deleted": list(done.replaced_deleted),
        "left": list(done.left),
        "copies_left": list(done.copies_left),
        "problems": list(done.problems),
        "next_ms": done.next_ms,
    }


def _pass_lines(name: str, done: MoverPass) -> list[str]:
    if done.busy is not None:
        return [f"{done.busy} is moving {name}; nothing was done here"]
    lines = [
        f"segments {unit.first} to {unit.last} are in "
        + ("no file: they have no records" if unit.file is None else f"{unit.file.url} ({unit.file.bytes} bytes)")
        for unit in done.moved
    ]
    lines += [f"segments {unit.first} to {unit.last} are no longer hot" for unit in done.hot_deleted]
    lines += [f"segments {unit.first} to {unit.last} were deleted" for unit in done.cold_deleted]
    lines += [f"{url} was deleted, another file has taken its place" for url in done.replaced_deleted]
    lines += [f"{url} stays: its place belongs to another ZooKeeper's copy of this namespace" for url in done.left]
    return [*lines, *done.copies_left, *done.problems] or ["nothing is due"]


# ---------------------------------------------------------------------- how far it is


@over_namespace
async def status(at: At, names: NamesArgument = None, pattern: FilterOption = None) -> None:
    """Show how many segments of logs are hot, in files alone, or both, with the bytes of one copy; the files; and how
    long the oldest segment waits for its file; and mirrors, with those that a mover cannot reach at present. Without
    names: of all logs that have cold storage."""
    from metadata.distributedlog.cold_store import ColdStore

    found: list[dict[str, Json]] = []
    async with at.open() as namespace:
        chosen = await chosen_logs(namespace, names, pattern)

        async def look(name: str) -> None:
            async with await namespace.open_log(name) as log:
                totals = await _totals(namespace, log)
                if totals is not None and (names or log.settings.cold_path or totals.files):
                    mirrors = await _mirrors(namespace, log, away)
                    path = log.settings.cold_root
                    found.append({"log": name, "path": path, "mirrors": mirrors, **_totals_fields(totals)})

        away = await ColdStore(namespace.services.logs).away.all()
        failed = await each(chosen, 16, look)
    found.sort(key=lambda one: str(one["log"]))
    rows = [
        (one["log"], *(_cell(one, place) for place in ("hot", "both", "cold")), _cell(one, "file"), _waits(one))
        for one in found
    ]
    shown = list(table("log", "hot", "both", "cold", "files", "waits", rows=rows).lines())
    stay = "hot copies of the oldest unit stay"
    shown += [f"{one['log']}: {stay}: {why}" for one in found if (why := one["hot_kept_because"])]
    shown += [line for one in found for line in _mirror_lines(one)]
    at.result({"logs": list(found), "failed": failed}, shown if found else "no log has cold storage")
    exit_with(failed=failed)


async def _mirrors(namespace: AsyncNamespace, log: AsyncLog, away: Sequence[AwayNote]) -> list[Json]:
    """Return the mirrors that a log names, and those that its settings name and no mover has noted yet; and of each
    since when a mover cannot reach it."""
    from metadata.distributedlog.cold_store import ColdStore

    about = await ColdStore(namespace.services.logs).cold_log(log.name)
    noted = () if about is None else about.value.mirrors
    wanted = [one.noted for one in log.settings.cold_mirrors]
    found: list[Json] = []
    for one in [*noted, *(new for new in wanted if new not in noted)]:
        fields: dict[str, Json] = {"region": one.region, "root": one.root}
        fields["noted"] = one in noted
        fields["set"] = any(one.same_place(kept.root, kept.options) for kept in wanted)
        missed = [note for note in away if (note.root, note.options) == (one.root, one.options)]
        first = min(missed, key=lambda note: note.since_ms, default=None)
        fields["away_since_ms"] = first.since_ms if first is not None else None
        fields["away_for"] = first.worker if first is not None else None
        found.append(fields)
    return found


def _mirror_lines(one: Mapping[str, Json]) -> list[str]:
    lines = []
    mirrors = one["mirrors"]
    for mirror in mirrors if isinstance(mirrors, list) else []:
        if isinstance(mirror, dict):
            said = "" if mirror["noted"] else ", which no mover has noted yet"
            said += "" if mirror["set"] else ", which the settings do not name: see dlspark cold mirror --drop"
            if (since_ms := mirror["away_since_ms"]) is not None:
                moment = datetime.fromtimestamp(int(str(since_ms)) / 1000, timezone.utc).isoformat(timespec="seconds")
                said += f", out of reach for the mover {mirror['away_for']} since {moment}"
            lines.append(f"{one['log']}: mirror of region {mirror['region']}: {mirror['root']}{said}")
    return lines


def _cell(totals: Mapping[str, Json], what: str) -> str:
    """Return how many there are of something, and their bytes."""
    count = totals["files" if what == "file" else f"{what}_segments"]
    return f"{count}, {size_text(int(str(totals[f'{what}_bytes'])))}" if count else "-"


def _waits(totals: Mapping[str, Json]) -> str:
    return f"{int(str(totals['lag_ms'])) // 1000} s"


async def _totals(namespace: AsyncNamespace, log: AsyncLog) -> ColdTotals | None:
    from dlspark.cold.moving.pictures import LogPictures
    from dlspark.cold.moving.planning import totals_of
    from metadata.distributedlog.cold_store import ColdStore

    services = namespace.services
    pictures = LogPictures(services, ColdStore(services.logs), log.name)
    look = await pictures.look()
    sizes = await pictures.ledger_bytes(list(look.picture.segments))
    return totals_of(look.picture, sizes, log.settings, services.clock.now_ms())


def _totals_fields(totals: ColdTotals) -> dict[str, Json]:
    fields = asdict(totals)
    blocks = fields.pop("blocks")
    return {**fields, "hot_kept_because": blocks[0] if blocks else None}


# ---------------------------------------------------------------------- whether it is right


@over_namespace
async def verify(
    at: At,
    names: Annotated[
        list[str],
        typer.Argument(metavar="LOG|FILE...", help="Logs; or files: paths or addresses that end with .parquet."),
    ],
    concurrency: ConcurrencyOption = 4,
    mirrors: Annotated[
        bool, typer.Option("--mirrors", help="Of logs: also the copies of their files in mirrors.")
    ] = False,
) -> None:
    """Read files whole and check every byte: those of logs against the logs' metadata, or files alone. Exits with 3 if
    one is not right."""
    from dlspark.cold.moving.stores import MoverStores

    results: list[FileReport] = []
    stores = MoverStores()
    files = [one for one in names if one.endswith(_SUFFIX)]
    logs = [one for one in names if not one.endswith(_SUFFIX)]
    try:
        failed = await each(files, concurrency, lambda one: _verify_alone(at, stores, one, results))
        if logs:
            async with at.open() as namespace:
                failed += await each(
                    logs, concurrency, lambda one: _verify_log(namespace, stores, one, results, mirrors)
                )
    finally:
        await stores.close()
    results.sort(key=lambda one: (one.log, one.first, one.url))
    wrong = [one for one in results if one.wrong is not None]
    lines = [
        f"{one.url}: "
        + (one.wrong or f"right: segments {one.first} to {one.last} of {one.log}, {counted(one.records, 'record')}")
        for one in results
    ]
    at.result({"files": [asdict(one) for one in results], "failed": failed}, lines or ["there are no files"])
    exit_with(failed=failed, attention=bool(wrong))


async def _verify_alone(at: At, stores: MoverStores, given: str, results: list[FileReport]) -> None:
    from dlspark.cold.moving.verifying import verify_object

    url = file_address(given)
    options = at.settings.cold_options if not url.startswith("file:") else {}
    results.append(await verify_object(stores.at(url, options), url))


async def _verify_log(
    namespace: AsyncNamespace, stores: MoverStores, name: str, results: list[FileReport], mirrors: bool
) -> None:
    from dlspark.cold.moving.verifying import verify_object
    from metadata.distributedlog.cold_places import UnitState
    from metadata.distributedlog.cold_store import ColdStore

    await namespace.services.logs.check(name)
    cold = ColdStore(namespace.services.logs)
    about = await cold.cold_log(name)
    for unit in await cold.units(name):
        file = unit.value.file
        if file is not None and unit.value.state is not UnitState.COLD_DELETE_STARTED:
            results.append(await verify_object(stores.of(file), file.url, file))
            for mirror in file.copies_in(about.value.mirrors) if mirrors and about is not None else ():
                copy = mirror.url_of(file.url)
                found = await verify_object(stores.put_off.at(mirror.root, mirror.options), copy, file)
                if found.wrong is not None:
                    advice = f"if it is damaged, delete it there: dlspark cold mirror {name} makes it anew"
                    found = replace(found, wrong=f"{found.wrong}; {advice}")
                results.append(found)


@over_namespace
async def audit(at: At, names: NamesArgument = None, pattern: FilterOption = None) -> None:
    """Look whether every file is there that the metadata name, with its size. Exits with 3 if not. A mover does it
    every hour."""
    from dlspark.cold.moving.auditing import audit_log
    from dlspark.cold.moving.stores import MoverStores
    from metadata.distributedlog.cold_store import ColdStore

    stores = MoverStores()
    found: list[ColdFinding] = []
    looked = 0
    async with at.open() as namespace:
        chosen = await chosen_logs(namespace, names, pattern)
        cold = ColdStore(namespace.services.logs)

        async def look(name: str) -> None:
            nonlocal looked
            async with await namespace.open_log(name) as log:
                count, wrong = await audit_log(namespace.services, cold, stores, name, log.settings)
            looked += count
            found.extend(wrong)

        try:
            failed = await each(chosen, 16, look)
        finally:
            await stores.close()
    lines = [f"{one.log}: {one.url}: {one.text}" for one in found]
    lines.append(f"{counted(looked, 'file')}, {counted(len(found), 'finding')}")
    fields: list[Json] = [{**asdict(one), "kind": one.kind.value} for one in found]
    at.result({"files": looked, "findings": fields, "failed": failed}, lines)
    exit_with(failed=failed, attention=bool(found))


@over_namespace
async def sweep(
    at: At,
    names: NamesArgument = None,
    pattern: FilterOption = None,
    min_age_hours: Annotated[
        int, typer.Option("--min-age-hours", min=1, help="Younger objects and uploads stay: they may be in the making.")
    ] = 24,
    yes: YesOption = False,
) -> None:
    """Delete objects and open uploads that nothing names any more, and files of deleted logs. A mover does it every six
    hours."""
    from dlspark.cold.moving.stores import MoverStores
    from dlspark.cold.moving.sweeping import Swept, sweep_deleted_log, sweep_log
    from metadata.distributedlog.cold_store import ColdStore

    confirm("Delete what nothing names in the logs' folders?", yes=yes)
    stores = MoverStores()
    swept = Swept()
    age_s = min_age_hours * 3600
    async with at.open() as namespace:
        services = namespace.services
        cold = ColdStore(services.logs)
        chosen = await chosen_logs(namespace, names, pattern)

        async def work(name: str) -> None:
            async with await namespace.open_log(name) as log:
                swept.add(await sweep_log(services, cold, stores, name, log.settings, min_age_s=age_s))

        try:
            failed = await each(chosen, 4, work)
            for deleted in [] if names or pattern is not None else await cold.deleted_logs():
                swept.add(await sweep_deleted_log(services, cold, stores, deleted, min_age_s=age_s))
        finally:
            await stores.close()
    lines = [*(f"deleted {url}" for url in swept.objects), *(f"ended the upload of {url}" for url in swept.uploads)]
    lines += [f"nothing is left of the deleted log {log}" for log in swept.logs]
    lines += [f"kept {url}: no mark names it, and no other file that is there has its records" for url in swept.kept]
    lines += [
        f"{url} was not swept: its place belongs to another ZooKeeper's copy of this namespace" for url in swept.foreign
    ]
    lines += [f"not swept, for the mirror could not be reached: {one}" for one in swept.unreached]
    at.result({**asdict(swept), "failed": failed}, lines or ["there is nothing to sweep"])
    exit_with(failed=failed, attention=bool(swept.unreached))
