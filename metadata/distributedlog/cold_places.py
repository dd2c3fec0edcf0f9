"""`ColdPlace`: where a segment's copy in a file is. Below `segments`, whose values carry it; what a whole unit says is
in `cold_units`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum


class UnitState(str, Enum):
    """How far has a unit come that has its file?"""

    FINISHED = "FINISHED"
    """The file is whole and was read back; the hot copies may still be there."""
    HOT_DELETED = "HOT_DELETED"
    """The segments are off the list, their ledgers noted for deletion: the file is the only copy."""
    COLD_DELETE_STARTED = "COLD_DELETE_STARTED"
    """The unit is hidden by truncation or retention; its file is being deleted, then its znode goes."""


@dataclass(frozen=True, slots=True)
class ColdMirror:
    """Where may copies of a log's files lie in another region?

    A copy has the file's own name below another root: names are made of ids and never used twice, so that it needs no
    note of its own, and the store itself may fill a mirror, by its replication.

    Args:
        region: whose readers take it first.
        root: the address that those of all copies begin with, without a slash at the end.
        options: what readers need beside the address, as `ColdFile.options`.
    """

    region: str
    root: str
    options: Mapping[str, str] = field(default_factory=dict)

    def url_of(self, url: str) -> str:
        """Return the address that the copy of a file has here; `url` is the file's own, or that of its folder with a
        slash at the end."""
        return f"{self.root}/{'/'.join(url.rsplit('/', 3)[1:])}"

    def folders(self, own: str, files: Iterable[ColdFile]) -> list[str]:
        """Return the folders here, with a slash at the end, in which copies of a log's files may be: its own folder
        (`own`: namespace and log id), and those of files that it adopted, which go by their first log's ids."""
        found = {f"{self.root}/{own}/": None}
        for file in files:
            if file.copies_in((self,)):
                found[f"{self.url_of(file.url).rpartition('/')[0]}/"] = None
        return list(found)

    def same_place(self, root: str, options: Mapping[str, str]) -> bool:
        """Return whether files of that root are these very objects: the address counts, and which server has it."""
        return self.root == root and self.options.get("endpoint") == options.get("endpoint")


@dataclass(frozen=True, slots=True)
class ColdFile:
    """Where is a unit's file, and what must it be?

    Args:
        url: its whole address: `file:///...`, `s3://bucket/key`, `hdfs://host:port/path`.
        bytes: its size.
        sha256: of its bytes, hexadecimal.
        digest: the digest over its records (docs/reference/cold-files.md#digests), hexadecimal.
        rows: its rows.
        entries: entries of its segments, those with control records only included.
        options: what a reader needs beside the address, never a secret: `endpoint`, `region` and the like.
        schema_version: the version of the declared schema whose columns it has; None without one.
        redacted: True where records were erased from it (`value` is then null though it was not).
        borrowed: True where the file is another log's: a log was rebuilt from it that may live beside the first one.
            Who takes a borrowed file off a log's marks leaves the file itself alone.
        mirrors: where copies of it may be: said by the log, not by the file's mark, so it is no part of what a file is.
    """

    url: str
    bytes: int
    sha256: str
    digest: str
    rows: int
    entries: int
    options: Mapping[str, str] = field(default_factory=dict)
    schema_version: int | None = None
    redacted: bool = False
    borrowed: bool = False
    mirrors: tuple[ColdMirror, ...] = field(default=(), compare=False)

    def copies_in(self, mirrors: Sequence[ColdMirror]) -> tuple[ColdMirror, ...]:
        """Return those of its log's mirrors in which copies of it may be. A borrowed file is another log's, with that
        one's mirrors; and where a mirror has become the place for files, or was it, what lies there is the file."""
        if self.borrowed:
            return ()
        return tuple(one for one in mirrors if not one.same_place(self.url.rsplit("/", 3)[0], self.options))

    def mirrored(self, mirrors: tuple[ColdMirror, ...]) -> ColdFile:
        """Return it as its log's readers know it."""
        return replace(self, mirrors=self.copies_in(mirrors)) if mirrors else self


@dataclass(frozen=True, slots=True)
class ColdPlace:
    """Where is a segment's copy in a file, as of the list that a reader has? (`SegmentMetadata.cold`)

    Args:
        file: None where its unit has no user record: then it has none either.
        state: how far its unit had come when that was read last.
        first_row: its first row in the file.
        rows: how many rows it has there.
        ledger_bytes: bytes of its ledger, that is of one hot copy.
        attempt: the id of the copy that made its unit.
        listed: True if the segment is still in the list of the hot ones: read that copy while it is there.
    """

    file: ColdFile | None
    state: UnitState
    first_row: int
    rows: int
    ledger_bytes: int
    attempt: str
    listed: bool
