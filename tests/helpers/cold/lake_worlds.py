"""A log as a model, a table of it, and commits whose answers lie: for rounds of faults without a cluster.

`LakeModel` has units with real files of a few rows. `LyingCatalog` and `LyingDelta` stand before the real table:

    LOST      nothing was applied, and no answer comes (503, a cut connection)
    DONE      it was applied, and no answer comes (500, 502, 504)
    LATE      it is on its way, and arrives at some later moment
    CONFLICT  it was applied, and a repetition of ours on the way is answered with a conflict (409)
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ServerError

from dlspark.cold.lake.columns import table_columns
from dlspark.cold.lake.delta import DeltaLakeTable
from dlspark.cold.lake.planning import LogUnits, TableChanges
from dlspark.cold.lake.targets import FileFigures, TableMovedError, TableUnclearError
from dlspark.core.cold.files.columns import file_schema
from helpers.cold.servers import BUCKET, S3Server
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_tables import ColdTable, TableLog
from metadata.distributedlog.cold_units import ColdSegment, ColdUnit
from metadata.distributedlog.segments import SegmentMetadata


class Lie(Enum):
    """What becomes of a commit, and what its sender hears?"""

    LOST = "lost"
    DONE = "done"
    LATE = "late"
    CONFLICT = "conflict"


class Liar:
    """Which commits are lied about? By seed; `late` ones are applied by `settle`, or before a later commit."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self._rng = rng
        self.rate = rate
        self._late: list[Callable[[], object]] = []
        self.told: Counter[str] = Counter()

    def settle(self) -> None:
        """Let what is on its way arrive; most of it is refused, and nobody hears."""
        late, self._late = self._late, []
        for one in late:
            try:
                one()
            except (CommitFailedException, CommitFailedError, TableMovedError):
                continue

    def send(self, commit: Callable[[], object], lost: Exception, conflict: Exception) -> object:
        """Apply a commit, or not, and answer, or not."""
        if self._rng.random() < 0.3:
            self.settle()
        if self._rng.random() >= self.rate:
            return commit()
        lie = self._rng.choice(list(Lie))
        self.told[lie.name] += 1
        if lie is Lie.LATE:
            self._late.append(commit)
        elif lie is not Lie.LOST:
            commit()
        raise conflict if lie is Lie.CONFLICT else lost


class LyingCatalog:
    """An Iceberg catalog whose answers to commits lie."""

    def __init__(self, catalog: Catalog, liar: Liar) -> None:
        self._catalog = catalog
        self._liar = liar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def close(self) -> None:
        """Do nothing: it is opened once, by the test."""

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> object:
        """Commit as the catalog does, and answer as the liar does."""
        return self._liar.send(
            lambda: self._catalog.commit_table(table, requirements, updates),
            ServerError("the answer was lost"),
            CommitFailedException("requirement failed"),
        )


class LyingDelta(DeltaLakeTable):
    """A Delta table whose answers to commits lie."""

    liar: Liar

    def _send(self, commit: Callable[[], None]) -> None:
        self.liar.send(
            lambda: DeltaLakeTable._send(self, commit), TableUnclearError("lost"), TableMovedError("a conflict")
        )


class LakeModel:
    """A log's units as they come and go, with files of few rows.

    Args:
        folder: where files are made.
        rng: how many rows they have.
        server: takes the files; None: they stay in `folder`.
    """

    def __init__(self, folder: Path, rng: random.Random, server: S3Server | None = None) -> None:
        self._folder = folder
        self._server = server
        self._rng = rng
        self._number = 0
        self.units: list[ColdUnit] = []
        self.rows: dict[str, int] = {}
        self._key = f"files/{uuid.uuid4().hex}"
        self.folder = f"file://{folder}/" if server is None else f"s3://{BUCKET}/{self._key}/"
        self._figures: dict[str, FileFigures] = {}
        self.deleted = False
        self._columns = file_schema(None)

    def add(self) -> ColdUnit:
        """Add the next unit of one to three segments."""
        first = self.units[-1].last + 1 if self.units else 1
        numbers = range(first, first + self._rng.randint(1, 3))
        file = self._file(first)
        segments = tuple(ColdSegment(_segment(lssn), 0, 0, 10) for lssn in numbers)
        unit = ColdUnit(UnitState.FINISHED, f"{self._number:032x}", segments, file, 0)
        self.units.append(unit)
        return unit

    def begin_delete(self) -> ColdUnit:
        """Mark the oldest unit."""
        self.units[0] = replace(self.units[0], state=UnitState.COLD_DELETE_STARTED)
        return self.units[0]

    def replace(self, index: int) -> ColdUnit:
        """Put another file in the place of a unit's."""
        unit = self.units[index]
        assert unit.file is not None
        self.units[index] = replace(unit, file=self._file(unit.first), replaced=(*unit.replaced, unit.file))
        return self.units[index]

    def forget_replaced(self, index: int) -> None:
        """Take the marks of files that were replaced away, once no table names them."""
        self.units[index] = replace(self.units[index], replaced=())

    def _file(self, first: int) -> ColdFile:
        self._number += 1
        path = self._folder / f"{first}-{self._number}.parquet"
        count = self._rng.randint(1, 5)
        place = {"log": "flights", "segment": first, "entry": 0, "row": 0, "flags": 0, "schema": -1}
        place |= {"sequence_id": 0, "transaction_id": 0}
        rows = [{"_log": {**place, "slot": at}, "value": b"x", "_error": None} for at in range(count)]
        pq.write_table(pa.Table.from_pylist(rows, schema=self._columns), path)
        url = f"{self.folder}{path.name}"
        if self._server is not None:
            self._server.client().put_object(Bucket=BUCKET, Key=f"{self._key}/{path.name}", Body=path.read_bytes())
        self._figures[url] = FileFigures("flights", pq.read_metadata(path), self._columns)
        self.rows[url] = count
        return ColdFile(url, path.stat().st_size, "", "", count, 1)

    # -- as a LogSource

    async def prepare(self) -> None:
        """Do nothing: there is no namespace."""

    async def log_id(self, name: str) -> str | None:
        """Return the log's id."""
        return "log-id"

    async def members(self, table: ColdTable, *, search: bool = False) -> tuple[TableLog, ...]:
        """Return the log, or what was it."""
        return (TableLog("flights", "log-id", self.deleted),)

    async def logs(self, table: ColdTable) -> list[LogUnits]:
        """Return the units as they are now."""
        if self.deleted:
            return [LogUnits("flights", "log-id", (), frozenset(), (self.folder,), deleted=True)]
        return [LogUnits("flights", "log-id", tuple(self.units), frozenset())]

    async def columns(self, table: ColdTable) -> pa.Schema:
        """Return the columns of a log that declares nothing."""
        return table_columns({"flights": None})

    async def figures(self, changes: TableChanges) -> dict[str, FileFigures]:
        """Return what the files' footers say."""
        return {one.url: self._figures[one.url] for one in changes.coming}


def _segment(lssn: int) -> SegmentMetadata:
    return SegmentMetadata(
        ledger_id=lssn,
        lssn=lssn,
        first_txid=0,
        completion_time_ms=1,
        in_progress=False,
    )
