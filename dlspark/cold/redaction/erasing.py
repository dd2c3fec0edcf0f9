"""`LogErasure`: records of a log erased from its cold files, file by file.

For each unit whose file has some of the records: the file is written anew and read back (`rewriting`), then one
conditional step puts it in the other's place (`ColdStore.replace_file`). The former object goes after a lag, by the
mover, because readers may be inside. Readers that come later see the new one, at the same positions.

What is in ledgers is not erased: segments that no unit has, and those whose hot copies are still there. Both are told
of, never passed over in silence.

An erasure is planned with one declaration of the log, and asks it of every file; a log that declares something else by
then refuses the rest, because the same words would mean other records.

Fault model: the process may die anywhere, answers may be lost, a mover may work on the log at the same time. A unit has
the one file or the other. Running it again finds what is left: what is erased is not asked again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from dlspark.cold.redaction.rewriting import RewrittenFile, rewrite_file
from dlspark.cold.redaction.selection import ErasureRequest, RecordSelection
from dlspark.cold.restoring.checking import in_thread, read_footer
from dlspark.core.cold.files.digests import RecordColumns
from dlspark.core.cold.files.footer import FileIdentity, Footer
from dlspark.core.cold.files.row_groups import decode_records
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id
from dlspark.errors import DamagedColdFileError
from dlspark.objects.addresses import root_of
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectStore
from dlspark.tables.declaration import Declaration, SchemaChangedError
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_steps import ColdMovedError
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdLog, ColdUnit, object_name
from metadata.distributedlog.permissions import Action
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.tasks import each
from metadata.retry import MAX_REPEATS

_log = logging.getLogger(__name__)

ClearCopies: TypeAlias = Callable[[], Awaitable[list[str]]]
OpenStore: TypeAlias = Callable[[str, Mapping[str, str]], ObjectStore]


@dataclass(frozen=True, slots=True)
class UnitErasure:
    """What is to be erased from one unit's file?

    Args:
        first, last: numbers of its segments.
        url: its file.
        records: its records.
        meant: how many of them are to be erased.
        erased: how many were erased before.
        misfits: records that do not fit the schema, of which the condition could not be asked.
        hot: how many of those that are meant are in ledgers, too, where they stay until the hot copies go.
    """

    first: int
    last: int
    url: str
    records: int
    meant: int
    erased: int
    misfits: int
    hot: int


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """What would an erasure do?

    Args:
        request: what is meant.
        declaration: what the log declared when it was planned; None: nothing.
        declared: the id of that declaration; "": none.
        units: every unit that was looked at, oldest first.
        unfiled: numbers of the segments, first and last, that are in no file: they were not looked at; None: none.
    """

    request: ErasureRequest
    declaration: Declaration | None
    declared: str
    units: tuple[UnitErasure, ...]
    unfiled: tuple[int, int] | None

    @property
    def meant(self) -> int:
        """Records that would be erased."""
        return sum(one.meant for one in self.units)

    @property
    def hot(self) -> int:
        """Records of these that are in ledgers, too."""
        return sum(one.hot for one in self.units)

    @property
    def misfits(self) -> int:
        """Records of which the condition could not be asked."""
        return sum(one.misfits for one in self.units)


@dataclass(frozen=True, slots=True)
class ErasedUnit:
    """Which file was put in which one's place, and how many records were erased?"""

    first: int
    last: int
    before: str
    url: str
    records: int


@dataclass(slots=True)
class ErasureReport:
    """What was done?

    Args:
        units: the units that have another file now.
        gone: units that truncation or retention took away meanwhile, by name.
        copies_left: copies of former files that may be left in mirrors, in words: they have what was erased.
    """

    units: list[ErasedUnit] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    copies_left: list[str] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Records that were erased."""
        return sum(one.records for one in self.units)


class _Stores:
    """The stores that one erasure has open, each once."""

    def __init__(self, opener: OpenStore) -> None:
        self._opener = opener
        self._opened: dict[tuple[str, tuple[tuple[str, str], ...]], ObjectStore] = {}

    def at(self, address: str, options: Mapping[str, str]) -> ObjectStore:
        """Return the store of a root, or of an object."""
        key = (root_of(address).url, tuple(sorted(options.items())))
        if key not in self._opened:
            self._opened[key] = self._opener(address, options)
        return self._opened[key]

    def of(self, file: ColdFile) -> ObjectStore:
        """Return the store that has a file."""
        return self.at(file.url, file.options)

    async def close(self) -> None:
        """Close them all."""
        await each([store.close for store in self._opened.values()])


class LogErasure:
    """Erases records of one log from its cold files.

    Args:
        services: the namespace's.
        settings: the log's.
        log: the log.
        client_id: who does it, for others that want to work on the log's cold storage meanwhile.
        opener: opens the store of an address.
        clear_copies: deletes the copies that mirrors have of files which others have taken the place of, under the
            worker's lock, and returns in words what may be left (`moving.mirroring.clear_replaced`). Without it all
            such copies are told of as left.
    """

    def __init__(
        self,
        services: Services,
        settings: Settings,
        log: str,
        *,
        client_id: str | None = None,
        opener: OpenStore = open_store,
        clear_copies: ClearCopies | None = None,
    ) -> None:
        self._clear_copies = clear_copies
        self._services = services
        self._settings = settings
        self._log = log
        self._client_id = client_id or default_client_id()
        self._opener = opener
        self._cold = ColdStore(services.logs)
        self._schemas = SchemaStore(services.logs)

    # ------------------------------------------------------------------ planning

    async def plan(
        self, request: ErasureRequest, told: Callable[[UnitErasure], None] = lambda one: None
    ) -> ErasurePlan:
        """Read the files that may have such records, and count them; nothing is changed.

        `told` is called with each unit that was looked at. Raises SqlTextError, LogNotFoundError, CallerError for a log
        with nothing in files, DamagedColdFileError, ObjectStoreErrors.
        """
        stored = await self._schemas.get(self._log)
        declaration = None if stored is None else Declaration.decode(stored.data, f"schema/{stored.id}")
        selection = RecordSelection(request, self._log, declaration)
        units = await self._cold.units(self._log)
        if not units:
            raise CallerError(
                "nothing of the log is in cold files; nothing was done",
                log=self._log,
                advice="Records in ledgers cannot be erased one by one: move them first (dlspark cold move), then "
                "erase them once their hot copies have gone",
            )
        found: list[UnitErasure] = []
        hot = {one.lssn for one in await self._services.logs.hot_segments(self._log)}
        async with self._stores() as stores:
            for one in units:
                unit = one.value
                if unit.file is None or unit.state is UnitState.COLD_DELETE_STARTED:
                    continue
                counted = await self._count(stores, unit, unit.file, selection, hot)
                found.append(counted)
                told(counted)
        filed = {segment.metadata.lssn for one in units for segment in one.value.segments}
        unfiled = sorted(hot - filed)
        return ErasurePlan(
            request,
            declaration,
            "" if stored is None else stored.id,
            tuple(found),
            (unfiled[0], unfiled[-1]) if unfiled else None,
        )

    async def _count(
        self, stores: _Stores, unit: ColdUnit, file: ColdFile, selection: RecordSelection, hot: set[int]
    ) -> UnitErasure:
        store = stores.of(file)
        footer = await _footer(store, file)
        meant = erased = misfits = in_ledgers = 0
        for index, group in enumerate(footer.row_groups):
            if not selection.may_have(group.first, group.last, group.lowest_txid):
                continue
            records = await _records(store, footer, index)
            selected = await in_thread(partial(selection.of, records))
            meant += int(selected.chosen.sum())
            misfits += selected.misfits
            erased += int(records.value.null_count)
            in_ledgers += int(np.isin(records.segment[selected.chosen], list(hot)).sum())
        return UnitErasure(unit.first, unit.last, file.url, footer.records, meant, erased, misfits, in_ledgers)

    # ------------------------------------------------------------------ erasing

    async def run(
        self,
        plan: ErasurePlan,
        *,
        even_strict: bool = False,
        told: Callable[[ErasedUnit], None] = lambda one: None,
    ) -> ErasureReport:
        """Erase what was planned. Units that were told of are done whatever comes; the rest is as it was.

        Args:
            plan: from `plan`; records that came into files since are looked at as well.
            even_strict: do it in a log that is strict, too, whose readers of rows stop at an erased record.
            told: called with each unit that has another file.

        Raises SchemaChangedError where the log declares something else by now, RequestDeniedError,
        OwnershipAcquireFailedError while another worker has the log's cold storage, DamagedColdFileError,
        ObjectStoreErrors, and CallerError where it is not known where a new file is to go.
        """
        await self._services.permit(self._log, Action.TRUNCATE)
        declaration = plan.declaration
        if declaration is not None and declaration.strict and not even_strict:
            raise CallerError(
                "the log is strict: whoever reads its rows would stop at an erased record; nothing was erased",
                log=self._log,
                advice=f"Have such records be rows that say why: dlspark log schema set {self._log} --no-strict; or "
                "erase them all the same: --even-strict",
            )
        selection = RecordSelection(plan.request, self._log, declaration)
        report = ErasureReport()
        lock = await self._cold.worker(self._log, self._client_id)
        await lock.acquire(self._settings.lock_timeout_s * 1000)
        try:
            async with self._stores() as stores:
                try:
                    for name in [one.value.name for one in await self._cold.units(self._log)]:
                        await self._check_declaration(plan)
                        await self._erase(stores, name, selection, plan, report, told)
                except DistributedLogError:
                    await self._clear_before_raising()
                    raise
            # At once, and not after a lag as the files: whoever is inside a copy goes on in the file itself.
            report.copies_left = await self._clear()
        finally:
            await lock.release()
        return report

    async def clear_mirrors(self) -> list[str]:
        """Delete copies, in mirrors, of files that earlier erasures have replaced; return in words what may be left.

        Raises RequestDeniedError, OwnershipAcquireFailedError while another worker has the log's cold storage.
        """
        cold = await self._cold.cold_log(self._log)
        if cold is None or not (cold.value.mirrors or self._settings.cold_mirrors):
            return []  # no mirror, so nothing to have a right or a turn for
        await self._services.permit(self._log, Action.TRUNCATE)
        lock = await self._cold.worker(self._log, self._client_id)
        await lock.acquire(self._settings.lock_timeout_s * 1000)
        try:
            return await self._clear()
        finally:
            await lock.release()

    async def _clear_before_raising(self) -> None:
        """Clear mirrors of what was erased before something failed, which is told of instead."""
        try:
            left = await self._clear()
        except DistributedLogError as error:
            left = [str(error)]
        for one in left:
            _log.warning("log %s: not erased in a mirror yet: %s", self._log, one, extra=about(log=self._log))

    async def _clear(self) -> list[str]:
        wanted = [one.noted for one in self._settings.cold_mirrors]
        if wanted:
            # Mirrors that stores fill by themselves may have copies before any mover has noted them.
            await self._cold.note_mirrors(self._log, wanted)
        if self._clear_copies is not None:
            return await self._clear_copies()
        cold = await self._cold.cold_log(self._log)
        mirrors = () if cold is None else cold.value.mirrors
        files = [file for unit in await self._cold.units(self._log) for file in unit.value.replaced]
        return [f"{one.url_of(file.url)} was not looked at" for file in files for one in file.copies_in(mirrors)]

    async def _check_declaration(self, plan: ErasurePlan) -> None:
        stored = await self._schemas.get(self._log)
        if plan.request.where.strip() and (stored.id if stored is not None else "") != plan.declared:
            raise SchemaChangedError(
                "the log declares other records than when the erasure was planned; nothing more was erased",
                log=self._log,
                advice="Plan it again: the condition may mean other records now",
            )

    async def _erase(
        self,
        stores: _Stores,
        name: str,
        selection: RecordSelection,
        plan: ErasurePlan,
        report: ErasureReport,
        told: Callable[[ErasedUnit], None],
    ) -> None:
        """Erase records from one unit's file, if it has some that are meant."""
        unit = await self._unit(name)
        if unit is None:
            report.gone.append(name)
            return
        file = unit.value.file
        if file is None:
            return
        counted = await self._count(stores, unit.value, file, selection, set())
        if not counted.meant:
            return
        store = stores.of(file)
        footer = await _footer(store, file)
        attempt = uuid.uuid4().hex
        cold = await self._cold.cold_log(self._log)
        if cold is None:
            raise ColdMovedError("the log was deleted meanwhile; its file was not replaced", log=self._log)
        about = cold.value
        new, url, options = self._place(stores, about, unit.value, file, attempt)
        identity = FileIdentity(about.namespace_id, about.log_id, self._log, attempt)
        rewritten = await rewrite_file(store, footer, new, url, identity, selection)
        fault_points.reach("cold.rewritten")
        if not rewritten.erased:
            raise DamagedColdFileError("what was to be erased from it was not found again", url=file.url)
        await self._check_declaration(plan)
        if await self._swap(unit, file, rewritten, attempt, new, options):
            done = ErasedUnit(unit.value.first, unit.value.last, file.url, url, rewritten.erased)
            report.units.append(done)
            told(done)
        else:
            report.gone.append(name)

    async def _unit(self, name: str) -> Versioned[ColdUnit] | None:
        first, last = map(int, name.split("-"))
        unit = await self._cold.unit(self._log, first, last)
        if unit is None or unit.value.state is UnitState.COLD_DELETE_STARTED:
            return None
        return unit

    def _place(
        self, stores: _Stores, about: ColdLog, unit: ColdUnit, file: ColdFile, attempt: str
    ) -> tuple[ObjectStore, str, Mapping[str, str]]:
        """Return where the new file is to go, and what its readers need: beside the other one, where the sweep of this
        log looks."""
        settings = self._settings
        name = object_name(about, unit.first, unit.last, attempt)
        if settings.cold_root and (file.borrowed or file.url.startswith(f"{settings.cold_root}/")):
            # With what the settings say of encryption; a reader needs none of that.
            store = stores.at(settings.cold_root, settings.cold_write_options)
            return store, f"{settings.cold_root}/{name}", settings.cold_options
        if file.borrowed:
            raise CallerError(
                f"{file.url} is another log's file, and it is not said where this one's files go; nothing more was "
                "erased",
                log=self._log,
                advice="Set coldStoragePath for the log",
            )
        root = file.url.rpartition("/")[0]
        return stores.of(file), f"{root}/{name.rpartition('/')[2]}", file.options

    async def _swap(
        self,
        unit: Versioned[ColdUnit],
        file: ColdFile,
        rewritten: RewrittenFile,
        attempt: str,
        store: ObjectStore,
        options: Mapping[str, str],
    ) -> bool:
        """Put the new file in the other's place; False where the unit has gone meanwhile."""
        written = rewritten.written
        after = ColdFile(
            url=rewritten.url,
            bytes=written.bytes,
            sha256=written.sha256,
            digest=written.digest,
            rows=written.rows,
            entries=written.entries,
            options=dict(options),
            schema_version=written.schema_version,
            redacted=written.redacted,
        )
        for _ in range(MAX_REPEATS):
            # Just before it counts: no mark names it yet, so the sweep takes it from whoever stands still for a day.
            info = await store.head(rewritten.url)
            if info.bytes != written.bytes:
                raise DamagedColdFileError(
                    f"it has {info.bytes} bytes, and {written.bytes} were written; it replaces no file",
                    url=rewritten.url,
                )
            try:
                await self._cold.replace_file(self._log, unit, after, attempt=attempt, segments=written.segments)
                return True
            except ColdMovedError as error:
                now = await self._unit(unit.value.name)
                if now is None:
                    await self._discard(store, rewritten.url)
                    return False
                if now.value.file is None or now.value.file.url != file.url:
                    await self._discard(store, rewritten.url)
                    raise
                unit = now  # only its hot copies came or went: the records are the same
                moved = error
        raise moved

    async def _discard(self, store: ObjectStore, url: str) -> None:
        """Delete a file that no mark names; where that is not certain, or fails, the sweep does it.

        That the unit is not there says nothing: the log may have been renamed, with the new file in its unit."""
        try:
            marks = await self._cold.marks(self._log)
            if marks is not None and marks.dead(url):
                await store.delete(url)
        except DistributedLogError:
            pass

    @asynccontextmanager
    async def _stores(self) -> AsyncIterator[_Stores]:
        stores = _Stores(self._opener)
        try:
            yield stores
        finally:
            await stores.close()


async def _footer(store: ObjectStore, file: ColdFile) -> Footer:
    info = await store.head(file.url)
    if info.bytes != file.bytes:
        raise DamagedColdFileError(f"it has {info.bytes} bytes, and its mark says {file.bytes}", url=file.url)
    footer = await read_footer(store, info)
    if footer.digest != file.digest:
        raise DamagedColdFileError("it has other records than its mark says", url=file.url)
    return footer


async def _records(store: ObjectStore, footer: Footer, index: int) -> RecordColumns:
    ranges = footer.ranges(index, footer.record_columns(index))
    found = await store.read(footer.url, ranges)
    return await in_thread(partial(decode_records, footer, index, dict(zip(ranges, found, strict=True))))
