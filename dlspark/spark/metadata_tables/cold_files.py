"""The rows of `cold_files`: which segments of a log lie in which file, and which are being copied into one.

All of it is what the log's own metadata say. No file is looked at: whether each is there and whole, `dlspark cold
verify` says.
"""

from __future__ import annotations

from typing import Final

from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.metadata_tables.logs import Row, micros
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdAttempt, ColdUnit
from metadata.foundation.errors import CorruptDataError

_WORDS: Final = {
    UnitState.FINISHED: "both",
    UnitState.HOT_DELETED: "cold",
    UnitState.COLD_DELETE_STARTED: "being deleted",
}


async def cold_file_rows(namespace: AsyncNamespace, name: str) -> list[Row]:
    """Return a row a unit, copied or being copied, in the log's order. Raises LogNotFoundError."""
    cold = ColdStore(namespace.logs_store)
    try:
        # Attempts first: one that is finished between the two questions is a unit then, and not missing.
        attempts = [one.value for one in await cold.attempts(name)]
        units = [one.value for one in await cold.units(name)]
    except CorruptDataError as error:
        return [{"log": name, "error": str(error)}]
    known = {unit.first for unit in units}
    rows = [_of_unit(name, one) for one in units]
    rows += [_of_attempt(name, one) for one in attempts if one.first not in known]
    return sorted(rows, key=lambda row: str(row["first_segment"]).zfill(20))


def _of_unit(name: str, unit: ColdUnit) -> Row:
    file = unit.file
    row: Row = {
        "log": name,
        "first_segment": unit.first,
        "last_segment": unit.last,
        "state": _WORDS[unit.state],
        "ledger_bytes": sum(one.bytes for one in unit.segments),
        "rows": sum(one.rows for one in unit.segments),
        "attempt": unit.attempt,
        "replaced": [one.url for one in unit.replaced],
        "finished_at": micros(unit.finished_ms),
        "hot_deleted_at": micros(unit.hot_deleted_ms),
    }
    if file is None:
        return row
    return row | {
        "file": file.url,
        "bytes": file.bytes,
        "schema_version": file.schema_version,
        "redacted": file.redacted,
        "sha256": file.sha256,
    }


def _of_attempt(name: str, attempt: ColdAttempt) -> Row:
    return {
        "log": name,
        "first_segment": attempt.first,
        "last_segment": attempt.last,
        "state": "being copied",
        "file": attempt.url,
        "attempt": attempt.attempt,
        "worker": attempt.worker,
        "started_at": micros(attempt.started_ms),
    }
