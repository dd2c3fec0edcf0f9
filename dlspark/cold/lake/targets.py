"""`LakeTable`: what a sync asks of a table, whichever kind it is; and what may come of a commit.

All calls block, on network and disk, and are made in a thread, one at a time.

Fault model: any call may fail, and a commit may be applied though its answer was lost, or be applied later. A commit
depends on the head of the state that it was planned with, so that at most one of all commits planned with one head is
ever applied, however late. Whoever got no answer loads the state again and plans anew: nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dlspark.cold.lake.planning import TableChanges, TableState
from dlspark.tables.errors import MissingExtraError
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError

STATE: Final = "dlspark.state"
TABLE_ID: Final = "dlspark.table"
WATERMARKS: Final = "dlspark.watermarks"


class TableMovedError(NotAppliedError):
    """Another commit was first; this one was not applied. Load the table again, and plan anew."""


class TableUnreachableError(NotAppliedError):
    """The table, or its catalog, could not be asked; nothing was changed by this request."""


class TableUnclearError(OutcomeUnknownError):
    """The commit may have been applied, or may be yet. Load the table again, and plan anew."""


@dataclass(frozen=True, slots=True)
class FileFigures:
    """What goes into a table's metadata of a file beside its address: what its footer says."""

    parquet: pq.FileMetaData
    columns: pa.Schema


class LakeTable(Protocol):
    """One table. Errors: TableMovedError, TableUnclearError, TableUnreachableError; CallerError for what cannot be."""

    def ensure(self, columns: pa.Schema) -> None:
        """Make the table, if it is not there. Raises CallerError where another one is."""

    def load(self) -> TableState:
        """Return what the table says of itself now."""

    def evolve(self, state: TableState, columns: pa.Schema) -> bool:
        """Have the table show these columns from the next commit on. True: that was a commit; load it again."""

    def commit(self, state: TableState, changes: TableChanges, figures: Mapping[str, FileFigures]) -> bool:
        """Apply the changes in one commit that depends on the state's head. False: there was nothing to apply."""

    def named(self, urls: Collection[str] | None) -> set[str]:
        """Return which of these files the table names, as it was loaded last; None: all that it names."""


def need(package: str, extra: str, load: Callable[[], object]) -> None:
    """Raise MissingExtraError unless a library can be loaded; it names the command that installs it."""
    try:
        load()
    except ImportError as error:
        raise MissingExtraError(
            f"{package} is not installed, which tables of this kind need; nothing was done",
            advice=f"Install it with: pip install 'dlspark[{extra}]'",
        ) from error


def replaced_files(changes: TableChanges, named: Collection[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return which files go from a table that names `named`, and which come for them (log, address).

    Where the table names none of a unit's files any more, a rewrite from outside has put its rows into files of its
    own: nothing comes, else they would be there twice. `TableSync.check` reports it.
    """
    gone: list[str] = []
    come: list[tuple[str, str]] = []
    for one in changes.replaced:
        here = [url for url in one.gone if url in named]
        gone += here
        if here and one.file is not None and one.file.url not in named:
            come.append((one.log, one.file.url))
    return gone, come


def urls_looked_for(changes: TableChanges) -> set[str]:
    """Return the files that changes ask a table for."""
    return {url for one in changes.replaced for url in (*one.gone, *([one.file.url] if one.file else []))}


def added_files(changes: TableChanges, come: Sequence[tuple[str, str]]) -> list[tuple[str, str, int, int]]:
    """Return log, address, bytes and rows of all files that a commit adds."""
    coming = {url for _, url in come}
    found = [(one.log, one.file.url, one.file.bytes, one.file.rows) for one in changes.added]
    for one in changes.replaced:
        if one.file is not None and one.file.url in coming:
            found.append((one.log, one.file.url, one.file.bytes, one.file.rows))
    return found
