"""Logs whose past lies in cold files, made at once: what a mover does in many steps, without one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dlspark.core.cold.files.footer import FileIdentity, Footer
from dlspark.core.cold.files.writing import ColdFileWriter
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.opening import open_store
from dlspark.tables.declaration import Declaration
from helpers.cold.places import put
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_units import WORKER, ColdLog, ColdSegment, ColdUnit, object_name, parse_unit_name
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import NoNodeError
from metadata.store import ANY_VERSION, Create, Delete, SetData

FINISHED_MS = 1_764_300_000_000
FIVE_SEGMENTS = [[b"a0", b"a1", b"a2"], [b"b0"], [b"c0", b"c1", b"c2"], [b"d0", b"d1"], [b"e0"]]
"""The payloads of a log that is moved, returned, rebuilt and erased in many tests."""


async def moved(
    namespace: AsyncNamespace,
    name: str,
    root: str,
    runs: Sequence[tuple[int, int]],
    *,
    declaration: Declaration | None = None,
    row_group_bytes: int = 4 << 20,
    keep_hot: bool = False,
    options: Mapping[str, str] | None = None,
) -> list[ColdUnit]:
    """Move runs of a log's segments, first and last of each, into files below `root`, oldest first; the units."""
    store, paths = namespace.store, namespace.logs_store.paths(name)
    cold = await _cold_log(namespace, name)
    hot = {one.lssn: one for one in await namespace.logs_store.hot_segments(name)}
    units = []
    for first, last in runs:
        segments = [hot[lssn] for lssn in range(first, last + 1)]
        unit = await _filed(namespace, name, root, cold, segments, declaration, row_group_bytes, options or {})
        if not keep_hot:
            unit = replace(unit, state=UnitState.HOT_DELETED, hot_deleted_ms=FINISHED_MS)
        gone = [] if keep_hot else [Delete(paths.segment(one)) for one in segments]
        await store.multi(
            [
                Create(f"{paths.cold_units}/{unit.name}", unit.encode()),
                SetData(paths.cold, (await store.get(paths.cold))[0], ANY_VERSION),
                *gone,
            ]
        )
        for one in [] if keep_hot else segments:
            await namespace.ledgers.delete(one.ledger_id)
        units.append(unit)
    return units


async def units_of(namespace: AsyncNamespace, name: str) -> list[ColdUnit]:
    """Return a log's units as they are, oldest first."""
    paths = namespace.logs_store.paths(name)
    names, _ = await namespace.store.children(paths.cold_units)
    found = []
    for one in sorted(one for one in names if parse_unit_name(one) is not None):
        path = f"{paths.cold_units}/{one}"
        found.append(ColdUnit.decode((await namespace.store.get(path))[0], path))
    return found


async def truncate_cold(namespace: AsyncNamespace, name: str, to: tuple[int, int, int]) -> None:
    """Hide what is below a position in the log's files."""
    path = namespace.logs_store.paths(name).cold
    data, stat = await namespace.store.get(path)
    await namespace.store.put(path, replace(ColdLog.decode(data, path), truncated_to=to).encode(), stat.version)


async def all_ledgers(namespace: AsyncNamespace) -> set[int]:
    """Return which ledgers exist."""
    return {one async for one in namespace.services.ledger_store.ids()}


def footer_of(file: ColdFile) -> Footer:
    """Return the footer of a file in a folder."""
    data = _path(file).read_bytes()
    return Footer.parse(data, len(data), file.url)


def damage_value(file: ColdFile) -> None:
    """Flip a bit in the payloads of a file in a folder."""
    data = bytearray(_path(file).read_bytes())
    data[footer_of(file).row_groups[0].columns["value"].end - 1] ^= 1
    _path(file).write_bytes(data)


def delete_files(root: str) -> None:
    """Delete all files below a folder, given by its address."""
    for path in Path(root.removeprefix("file://")).rglob("*.parquet"):
        path.unlink()


def _path(file: ColdFile) -> Path:
    return Path(file.url.removeprefix("file://"))


async def _cold_log(namespace: AsyncNamespace, name: str) -> ColdLog:
    paths = namespace.logs_store.paths(name)
    try:
        data, _ = await namespace.store.get(paths.cold)
        return ColdLog.decode(data, paths.cold)
    except NoNodeError:
        cold = ColdLog("a" * 32, uuid.uuid4().hex)
        await namespace.store.multi([Create(path, data) for path, data in _made(paths, cold)])
        return cold


def _made(paths: LogPaths, cold: ColdLog) -> list[tuple[str, bytes]]:
    others = (paths.cold_attempts, paths.cold_units, f"{paths.cold}/{WORKER}")
    return [(paths.cold, cold.encode()), *((path, b"") for path in others)]


async def _filed(
    namespace: AsyncNamespace,
    name: str,
    root: str,
    cold: ColdLog,
    segments: Sequence[SegmentMetadata],
    declaration: Declaration | None,
    row_group_bytes: int,
    options: Mapping[str, str],
) -> ColdUnit:
    attempt = uuid.uuid4().hex
    pieces: list[bytes] = []
    identity = FileIdentity(cold.namespace_id, cold.log_id, name, attempt)
    writer = ColdFileWriter(pieces.append, identity, declaration, row_group_bytes=row_group_bytes)
    for segment in segments:
        reader = await namespace.ledgers.open(segment.ledger_id, recover=False)
        writer.begin_segment(segment, reader.length)
        if segment.last_entry >= 0:  # else what its metadata tell of has no entry
            entries = reader.entries(0, segment.last_entry)
            writer.add([(one.entry_id, memoryview(one.payload)) async for one in entries])
        writer.end_segment()
        await reader.close()
    written = writer.finish()
    if written.records == 0:
        parts = tuple(ColdSegment(one.metadata, 0, 0, one.bytes) for one in written.segments)
        return ColdUnit(UnitState.FINISHED, attempt, parts, None, FINISHED_MS)
    url = f"{root}/{object_name(cold, segments[0].lssn, segments[-1].lssn, attempt)}"
    store = open_store(root, options)
    await put(store, url, b"".join(bytes(piece) for piece in pieces))
    await store.close()
    file = ColdFile(
        url,
        written.bytes,
        written.sha256,
        written.digest,
        written.rows,
        written.entries,
        options=dict(options),
        schema_version=written.schema_version,
    )
    return ColdUnit(UnitState.FINISHED, attempt, written.segments, file, FINISHED_MS)
