"""`LakeTable`: what a sync asks of a table, whichever kind it is; and what may come of a commit.

All calls block, on network and disk, and are made in a thread, one at a time.

Fault model: any call may fail, and a commit may be applied though its answer was lost, or be applied later. A commit
depends on the head of the state that it was planned with, so that at most one of all commits planned with one head is
ever applied, however late. Whoever got no answer loads the state again and plans anew: nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dlspark.cold.lake.planning import TableChanges, TableState
from dlspark.tables.errors import MissingExtraError
from metadata.distributedlog.cold_places import ColdFile
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
    """What goes into a table's metadata of a file beside its address: what its footer says.

    Args:
        log: the log's name when the file was written, as its rows say it.
        parquet: Parquet's own part.
        columns: the file's.
    """

    log: str
    parquet: pq.FileMetaData
    columns: pa.Schema


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """How many files have come, gone, and come in the place of one that went?"""

    added: int
    removed: int
    exchanged: int

    @classmethod
    def of(cls, changes: TableChanges, gone: Collection[str], come: Collection[ColdFile]) -> AppliedChanges:
        """Count what changes came to in a table that named `gone`."""
        exchanged = len(come) - len(changes.added)
        # Several may have gone for one that has come.
        replaced = {url for one in changes.replaced if one.file is not None for url in one.gone}
        return cls(len(changes.added), sum(url not in replaced for url in gone), exchanged)


class LakeTable(Protocol):
    """One table. Errors: TableMovedError, TableUnclearError, TableUnreachableError; CallerError for what cannot be."""

    def ensure(self, columns: pa.Schema) -> None:
        """Make the table, if it is not there. Raises CallerError where another one is."""

    def load(self) -> TableState:
        """Return what the table says of itself now."""

    def evolve(self, state: TableState, columns: pa.Schema) -> bool:
        """Have the table show these columns from the next commit on. True: that was a commit; load it again."""

    def commit(
        self, state: TableState, changes: TableChanges, figures: Mapping[str, FileFigures]
    ) -> AppliedChanges | None:
        """Apply the changes in one commit that depends on the state's head; return what they came to. None: there was
        nothing to apply."""

    def named(self, urls: Collection[str] | None) -> set[str]:
        """Return which of these files the table names, as it was loaded last; None: all that it names."""

    def close(self) -> None:
        """Give up what connections there are."""


def need(package: str, extra: str, load: Callable[[], object]) -> None:
    """Raise MissingExtraError unless a library can be loaded; it names the command that installs it."""
    try:
        load()
    except ImportError as error:
        raise MissingExtraError(
            f"{package} is not installed, which tables of this kind need; nothing was done",
            advice=f"Install it with: pip install 'dlspark[{extra}]'",
        ) from error


@dataclass(frozen=True, slots=True)
class SoughtFiles:
    """Which files of a table are asked for: these addresses, and all in these folders?"""

    urls: frozenset[str]
    folders: tuple[str, ...] = ()

    def __contains__(self, url: object) -> bool:
        """Return whether a file is asked for."""
        return url in self.urls or (isinstance(url, str) and url.startswith(self.folders))

    def __bool__(self) -> bool:
        """Return whether anything is asked for."""
        return bool(self.urls or self.folders)


def sought_files(changes: TableChanges) -> SoughtFiles:
    """Return which files decide what changes come to in a table: those that go, and those that may be there already."""
    urls = {url for one in changes.replaced for url in (*one.gone, *([one.file.url] if one.file else []))}
    return SoughtFiles(frozenset(urls), tuple(folder for one in changes.replaced for folder in one.folders))


def settle_changes(changes: TableChanges, named: Collection[str]) -> tuple[set[str], list[ColdFile]]:
    """Return which files go from a table that names `named`, as far as they are sought, and which come.

    Where the table names none of a unit's files any more, a rewrite from outside has put its rows into files of its
    own: nothing comes, else they would be there twice. `TableSync.check` reports it.
    """
    gone: set[str] = set()
    come = list(changes.added)
    for one in changes.replaced:
        here = {url for url in one.gone if url in named}
        here |= {url for url in named if one.folders and url.startswith(one.folders)}
        gone |= here
        if here and one.file is not None and one.file.url not in named:
            come.append(one.file)
    return gone, come
