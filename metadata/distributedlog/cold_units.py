"""Cold units as values: which segments of a log lie in which file, and how far that has gone.

A **unit** is a run of consecutive completed segments of one log that were copied into one file. Its znode holds the
whole metadata of its segments, because their own znodes go with the hot copies:

| znode | data |
|---|---|
| `P/cold` | the log's identity in object names, and where it is truncated to: `ColdLog` |
| `P/cold/attempts/<first>-<last>` | a copy under way: `ColdAttempt` (STARTED) |
| `P/cold/units/<first>-<last>` | a unit that has its file: `ColdUnit` (FINISHED, HOT_DELETED, COLD_DELETE_STARTED) |
| `P/cold/worker` | parent of the members of the lock of the worker that moves the log |
| `NS/.dlspark-cold` | the namespace's identity in object names |
| `NS/.dlspark-cold/deleted/<log id>` | where a deleted log's files were: `DeletedLog` |

`<first>` and `<last>` are numbers of segments (LSSNs) of 18 digits, so that names alone say what is cold. Everything
here is JSON with a version; docs/reference/znodes.md#cold-units has the fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from metadata.distributedlog.cold_places import ColdFile, ColdMirror, ColdPlace, UnitState
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus
from metadata.foundation.errors import CorruptDataError

Position: TypeAlias = tuple[int, int, int]
"""Segment, entry and slot: a DLSN, whose own class lies above this package."""

VERSION: Final = 1
WORKER: Final = "worker"
NAMESPACE: Final = ".dlspark-cold"
DELETED: Final = "deleted"
MAX_SEGMENTS: Final = 500
"""Segments of one unit: the transaction that takes their hot copies off the list has two operations for each."""

MAX_CHANGES: Final = 64
"""Changes of units that a log's mark tells of: a reader that was away for more reads all units again."""

_NAME: Final = re.compile(r"(\d{18,19})-(\d{18,19})")


@dataclass(frozen=True, slots=True)
class ColdSegment:
    """Which part of a unit's file is one segment?

    Args:
        metadata: what its znode in the list said when it was copied, never in progress; with the ledgers that it was
            before, if it was put back since.
        first_row: its first row in the file.
        rows: how many rows it has there.
        bytes: bytes of its ledger, that is of one hot copy.
    """

    metadata: SegmentMetadata
    first_row: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ColdUnit:
    """Which segments have left for a file, and what is still hot of them?

    Args:
        state: how far it has come.
        attempt: the id of the copy that made the file; part of its name, never used twice.
        segments: in order of LSSN, without a hole.
        file: None where no segment has a user record: there is nothing to store.
        finished_ms: when it got its file, by the worker's clock, milliseconds since the epoch.
        hot_deleted_ms: when its hot copies went; None before.
        replaced: files that redaction has put others in place of, which go after a lag.
        keep_hot_until_ms: hot copies that were put back stay at least so long, by the clock of who put them back,
            milliseconds since the epoch; None: as long as the settings say.
    """

    state: UnitState
    attempt: str
    segments: tuple[ColdSegment, ...]
    file: ColdFile | None
    finished_ms: int
    hot_deleted_ms: int | None = None
    replaced: tuple[ColdFile, ...] = ()
    keep_hot_until_ms: int | None = None

    @property
    def first(self) -> int:
        """The number of its first segment."""
        return self.segments[0].metadata.lssn

    @property
    def last(self) -> int:
        """The number of its last segment."""
        return self.segments[-1].metadata.lssn

    @property
    def name(self) -> str:
        """The name of its znode."""
        return unit_name(self.first, self.last)

    def segment(
        self,
        lssn: int,
        *,
        listed: bool,
        truncated_to: Position = (0, 0, 0),
        mirrors: tuple[ColdMirror, ...] = (),
    ) -> SegmentMetadata:
        """Return one of its segments as readers' lists show it where everything below `truncated_to` is hidden, and
        copies of files may lie in `mirrors`."""
        one = self.segments[lssn - self.first]
        # Its file may go at any time now, whoever hid it.
        gone = self.state is UnitState.COLD_DELETE_STARTED
        shown = hidden_below(one.metadata, end_of(one.metadata) if gone else truncated_to)
        return replace(shown, cold=self.place(lssn, listed=listed, mirrors=mirrors))

    def place(self, lssn: int, *, listed: bool, mirrors: tuple[ColdMirror, ...] = ()) -> ColdPlace:
        """Return where one of its segments is."""
        one = self.segments[lssn - self.first]
        file = self.file.mirrored(mirrors) if self.file is not None else None
        return ColdPlace(file, self.state, one.first_row, one.rows, one.bytes, self.attempt, listed)

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields: dict[str, Any] = {
            "v": VERSION,
            "state": self.state.value,
            "attempt": self.attempt,
            "finished": self.finished_ms,
            "segments": [_segment_fields(one) for one in self.segments],
        }
        if self.file is not None:
            fields["file"] = _file_fields(self.file)
        if self.hot_deleted_ms is not None:
            fields["hotDeleted"] = self.hot_deleted_ms
        if self.replaced:
            fields["replaced"] = [_file_fields(one) for one in self.replaced]
        if self.keep_hot_until_ms is not None:
            fields["keepHotUntil"] = self.keep_hot_until_ms
        return _encoded(fields)

    @classmethod
    def decode(cls, data: bytes, path: str) -> ColdUnit:
        """Read the data of the znode at `path`. Raises CorruptDataError."""
        fields = _decoded(data, path)
        try:
            unit = cls(
                state=UnitState(fields["state"]),
                attempt=_text(fields["attempt"]),
                segments=tuple(_segment(one, path) for one in fields["segments"]),
                file=_file(fields["file"]) if "file" in fields else None,
                finished_ms=int(fields["finished"]),
                hot_deleted_ms=int(fields["hotDeleted"]) if "hotDeleted" in fields else None,
                replaced=tuple(_file(one) for one in fields.get("replaced", ())),
                keep_hot_until_ms=int(fields["keepHotUntil"]) if "keepHotUntil" in fields else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _corrupt_error(data, path) from error
        numbers = [one.metadata.lssn for one in unit.segments]
        if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise _corrupt_error(data, path)
        return unit


@dataclass(frozen=True, slots=True)
class ColdAttempt:
    """Who copies which segments, and under which object name?

    Args:
        attempt: a random id, new for each try, so that no object name is ever used twice.
        worker: who copies, for people.
        first, last: numbers of the segments.
        url: the address of the object that is being written.
        options: as in `ColdFile`.
        started_ms: when it began, by the worker's clock, milliseconds since the epoch.
    """

    attempt: str
    worker: str
    first: int
    last: int
    url: str
    started_ms: int
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its znode."""
        return unit_name(self.first, self.last)

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields: dict[str, Any] = {
            "v": VERSION,
            "attempt": self.attempt,
            "worker": self.worker,
            "first": self.first,
            "last": self.last,
            "url": self.url,
            "started": self.started_ms,
        }
        if self.options:
            fields["options"] = dict(self.options)
        return _encoded(fields)

    @classmethod
    def decode(cls, data: bytes, path: str) -> ColdAttempt:
        """Read the data of the znode at `path`. Raises CorruptDataError."""
        fields = _decoded(data, path)
        try:
            return cls(
                attempt=_text(fields["attempt"]),
                worker=_text(fields["worker"]),
                first=int(fields["first"]),
                last=int(fields["last"]),
                url=_text(fields["url"]),
                started_ms=int(fields["started"]),
                options=_options(fields.get("options", {})),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _corrupt_error(data, path) from error


@dataclass(frozen=True, slots=True)
class ColdLog:
    """What is a log called in object names, and what of its past is hidden?

    Args:
        namespace_id: a random id of the namespace.
        log_id: a random id of the log: it stays where the log is renamed, and is never another log's.
        truncated_to: (segment, entry, slot) below which everything is hidden, hot or cold; (0, 0, 0): nothing.
        generation: how often what a unit says of its segments was changed: its file was put in place of another, or
            they were put back into other ledgers.
        changes: the last of these changes, at most MAX_CHANGES: the generation that each made, and the number of its
            unit's first segment. What was read of other units stays right.
        deleted: True once the log is being deleted: its files may go at any time, so nothing in them is shown.
        mirrors: where copies of its files may lie beside the files; noted before the first copy is made, and taken off
            once none is left: so who deletes a file knows where else to look.
    """

    namespace_id: str
    log_id: str
    truncated_to: Position = (0, 0, 0)
    generation: int = 0
    deleted: bool = False
    changes: tuple[tuple[int, int], ...] = ()
    mirrors: tuple[ColdMirror, ...] = ()

    def unit_changed(self, first: int) -> ColdLog:
        """Return what is said once the unit that begins with segment `first` says something else of its segments."""
        generation = self.generation + 1
        changes = (*self.changes, (generation, first))[-MAX_CHANGES:]
        return replace(self, generation=generation, changes=changes)

    def same_since(self, generation: int, first: int) -> bool:
        """Return whether the unit that begins with segment `first` certainly says of its segments what it said then."""
        if generation == self.generation:
            return True
        later = [change for change in self.changes if change[0] > generation]
        # Each change is among the last ones, or too many came, or one that an older release has made without telling.
        return len(later) == self.generation - generation and all(unit != first for _, unit in later)

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields: dict[str, Any] = {
            "v": VERSION,
            "namespace": self.namespace_id,
            "log": self.log_id,
            "truncatedTo": ":".join(map(str, self.truncated_to)),
        }
        if self.generation:
            fields["generation"] = self.generation
        if self.changes:
            fields["changes"] = [list(change) for change in self.changes]
        if self.deleted:
            fields["deleted"] = True
        if self.mirrors:
            fields["mirrors"] = [_mirror_fields(one) for one in self.mirrors]
        return _encoded(fields)

    @classmethod
    def decode(cls, data: bytes, path: str) -> ColdLog:
        """Read the data of the znode at `path`. Raises CorruptDataError."""
        fields = _decoded(data, path)
        try:
            segment, entry, slot = (int(part) for part in _text(fields["truncatedTo"]).split(":"))
            return cls(
                namespace_id=_text(fields["namespace"]),
                log_id=_text(fields["log"]),
                truncated_to=(segment, entry, slot),
                generation=int(fields.get("generation", 0)),
                deleted=bool(fields.get("deleted", False)),
                changes=tuple((int(made), int(first)) for made, first in fields.get("changes", ())),
                mirrors=tuple(_mirror(one) for one in fields.get("mirrors", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _corrupt_error(data, path) from error


@dataclass(frozen=True, slots=True)
class DeletedLog:
    """Which files has a log left behind that was deleted? The data of `NS/.dlspark-cold/deleted/<log id>`.

    Args:
        log_id: its id in object names.
        log: its name when it was deleted, for people.
        deleted_ms: when, by the deleting client's clock, milliseconds since the epoch.
        folders: addresses of the folders that held its files, each with the options that a store needs (`ColdFile`).
            Everything below them is the log's alone, uploads that had not ended included.
        borrowed: addresses of folders of other logs, of which it had borrowed files: these leave its lake tables, and
            are never deleted.
    """

    log_id: str
    log: str
    deleted_ms: int
    folders: tuple[tuple[str, Mapping[str, str]], ...]
    borrowed: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the znode's data."""
        folders = [{"url": url, **({"options": dict(options)} if options else {})} for url, options in self.folders]
        fields = {"v": VERSION, "log": self.log, "deleted": self.deleted_ms, "folders": folders}
        return _encoded({**fields, **({"borrowed": list(self.borrowed)} if self.borrowed else {})})

    @classmethod
    def decode(cls, data: bytes, path: str) -> DeletedLog:
        """Read the data of the znode at `path`, whose name is the log's id. Raises CorruptDataError."""
        fields = _decoded(data, path)
        try:
            return cls(
                log_id=path.rpartition("/")[2],
                log=_text(fields["log"]),
                deleted_ms=int(fields["deleted"]),
                folders=tuple((_text(one["url"]), _options(one.get("options", {}))) for one in fields["folders"]),
                borrowed=tuple(_text(one) for one in fields.get("borrowed", [])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _corrupt_error(data, path) from error


def namespace_data(namespace_id: str) -> bytes:
    """Return the data of `NS/.dlspark-cold`: the namespace's id in object names."""
    return _encoded({"v": VERSION, "namespace": namespace_id})


def parse_namespace_data(data: bytes, path: str) -> str:
    """Return the namespace's id from the data of the znode at `path`. Raises CorruptDataError."""
    try:
        return _text(_decoded(data, path)["namespace"])
    except (KeyError, TypeError) as error:
        raise _corrupt_error(data, path) from error


def object_name(log: ColdLog, first: int, last: int, attempt: str) -> str:
    """Return where an attempt's object lies below `coldStoragePath`: made of ids, never of the log's name."""
    return f"{log.namespace_id}/{log.log_id}/{unit_name(first, last)}-{attempt}.parquet"


# ------------------------------------------------------------------ what is hidden


def end_of(segment: SegmentMetadata) -> Position:
    """Return the first position behind a completed segment."""
    return (segment.lssn + 1, 0, 0)


def hidden_to(segment: SegmentMetadata) -> Position:
    """Return the position below which the segment's own metadata hides everything; (0, 0, 0) where it hides nothing."""
    if segment.truncation == TruncationStatus.TRUNCATED:
        return end_of(segment)
    if segment.truncation == TruncationStatus.PARTIALLY_TRUNCATED:
        return (segment.lssn, segment.min_entry, segment.min_slot)
    return (0, 0, 0)


def hidden_below(segment: SegmentMetadata, truncated_to: Position) -> SegmentMetadata:
    """Return a completed segment as a list shows it that hides everything below `truncated_to`; what it hides already
    stays hidden (I8)."""
    if truncated_to <= hidden_to(segment) or truncated_to <= (segment.lssn, 0, 0):
        return segment
    if truncated_to > (segment.lssn, segment.last_entry, segment.last_slot):
        return replace(segment, truncation=TruncationStatus.TRUNCATED)
    _, entry, slot = truncated_to
    return replace(segment, truncation=TruncationStatus.PARTIALLY_TRUNCATED, min_entry=entry, min_slot=slot)


def unit_name(first: int, last: int) -> str:
    """Return the name of the znode of a unit, or of an attempt, by the numbers of its first and last segment."""
    return f"{first:018d}-{last:018d}"


def parse_unit_name(name: str) -> tuple[int, int] | None:
    """Return the numbers of the first and the last segment of a unit by its name; None if it is no unit's name."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        return None
    first, last = int(parts[1]), int(parts[2])
    return (first, last) if first <= last else None


def _segment_fields(one: ColdSegment) -> dict[str, Any]:
    fields: dict[str, Any] = {"m": one.metadata.encode().decode("ascii"), "at": one.first_row, "rows": one.rows}
    fields["bytes"] = one.bytes
    if one.metadata.name is not None:
        fields["name"] = one.metadata.name
    if one.metadata.former_ledgers:
        fields["former"] = list(one.metadata.former_ledgers)
    return fields


def _segment(fields: Mapping[str, Any], path: str) -> ColdSegment:
    name = fields.get("name")
    # What is decoded takes the last part of its path for its name; here that is the unit's.
    metadata = replace(
        SegmentMetadata.decode(_text(fields["m"]).encode("ascii"), path, skip_minimum_version=True),
        name=None if name is None else _text(name),
        former_ledgers=tuple(int(one) for one in fields.get("former", ())),
    )
    if metadata.in_progress:
        raise ValueError("a cold segment is completed")
    return ColdSegment(metadata, int(fields["at"]), int(fields["rows"]), int(fields["bytes"]))


def _file_fields(file: ColdFile) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "url": file.url,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "digest": file.digest,
        "rows": file.rows,
        "entries": file.entries,
    }
    if file.options:
        fields["options"] = dict(file.options)
    if file.schema_version is not None:
        fields["schema"] = file.schema_version
    if file.redacted:
        fields["redacted"] = True
    if file.borrowed:
        fields["borrowed"] = True
    return fields


def _file(fields: Mapping[str, Any]) -> ColdFile:
    schema = fields.get("schema")
    return ColdFile(
        url=_text(fields["url"]),
        bytes=int(fields["bytes"]),
        sha256=_text(fields["sha256"]),
        digest=_text(fields["digest"]),
        rows=int(fields["rows"]),
        entries=int(fields["entries"]),
        options=_options(fields.get("options", {})),
        schema_version=None if schema is None else int(schema),
        redacted=bool(fields.get("redacted", False)),
        borrowed=bool(fields.get("borrowed", False)),
    )


def _mirror_fields(mirror: ColdMirror) -> dict[str, Any]:
    fields: dict[str, Any] = {"region": mirror.region, "root": mirror.root}
    return {**fields, **({"options": dict(mirror.options)} if mirror.options else {})}


def _mirror(fields: Mapping[str, Any]) -> ColdMirror:
    return ColdMirror(_text(fields["region"]), _text(fields["root"]), _options(fields.get("options", {})))


def _options(fields: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in fields.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _decoded(data: bytes, path: str) -> dict[str, Any]:
    try:
        fields = json.loads(bytes(data))
    except ValueError as error:
        raise _corrupt_error(data, path) from error
    if not isinstance(fields, dict):
        raise _corrupt_error(data, path)
    if fields.get("v") != VERSION:
        raise CorruptDataError(
            f"what it says of cold storage is of version {fields.get('v')!r}; {VERSION} is supported",
            path=path,
            advice="Was it written by a newer dlspark? Read the log with that one",
        )
    return fields


def _corrupt_error(data: bytes, path: str) -> CorruptDataError:
    return CorruptDataError(f"it says nothing of cold storage that makes sense: {bytes(data[:120])!r}", path=path)
