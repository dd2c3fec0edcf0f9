"""Offsets: what Spark keeps in its offset log, and what `startingOffsets` / `endingOffsets` say.

The stored form is `{"v": 1, "logs": {"flights": "3:1200:0"}}`: for each log the DLSN (segment:entry:slot) of the
record to be read **next**, so the end of one batch is the start of the following one and nothing lies between. It is
meant to be read by people, and by every later release (I14). Spark compares offsets as strings, so the order of the
keys is fixed: `v` first, logs by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OffsetError

VERSION = 1
BEHIND = "behind"
"""Beside the positions in a query's progress (`latestOffset`): the lag of each log that is not read to its end."""
_MAX_LONG = (1 << 63) - 1

StoredOffset: TypeAlias = dict[str, object]


class Bound(Enum):
    """A place in a log without a number of its own."""

    EARLIEST = "earliest"
    LATEST = "latest"


Place: TypeAlias = "DLSN | Bound"


@dataclass(frozen=True)
class Offsets(Mapping[str, DLSN]):
    """One next-to-read DLSN per log; a mapping sorted by log name."""

    positions: Mapping[str, DLSN]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", dict(sorted(self.positions.items())))

    def __getitem__(self, log: str) -> DLSN:
        return self.positions[log]

    def __iter__(self) -> Iterator[str]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def stored(self) -> StoredOffset:
        """The form that Spark writes into its offset log."""
        return {"v": VERSION, "logs": {log: str(dlsn) for log, dlsn in self.positions.items()}}

    @classmethod
    def from_stored(cls, stored: object) -> Offsets:
        """Read back what `stored` wrote; OffsetError if the checkpoint holds something else."""
        where = "The offset in the checkpoint"
        if not isinstance(stored, Mapping) or set(stored) != {"v", "logs"}:
            raise OffsetError(f"{where} is not one of this source's: {stored!r}", advice=_CHECKPOINT_ADVICE)
        if stored["v"] != VERSION:
            raise OffsetError(
                f"{where} has version {stored['v']!r}; this release reads version {VERSION}",
                advice="Run the query with the release that wrote the checkpoint, or a later one",
            )
        logs = stored["logs"]
        if not isinstance(logs, Mapping):
            raise OffsetError(f"{where} has no positions: {stored!r}", advice=_CHECKPOINT_ADVICE)
        return cls({str(log): parse_dlsn(text, f"{where}, log {log}") for log, text in logs.items()})


_CHECKPOINT_ADVICE = "Does the checkpoint belong to another query? Restore it, or start with a new checkpoint location"


def parse_places(option: str, text: str) -> Bound | dict[str, Place]:
    """The value of `startingOffsets` / `endingOffsets`: a bound for all logs, or a place for each log by name.

    JSON is an object of positions by log name; the forms of the checkpoint and of a query's progress are taken too, so
    that a position can be copied out of one. OffsetError says what is malformed.
    """
    word = text.strip().lower()
    if word in (bound.value for bound in Bound):
        return Bound(word)
    try:
        value: object = json.loads(text, object_pairs_hook=_without_duplicates)
    except ValueError as error:
        raise OffsetError(
            f"Option {option} is neither earliest, latest nor JSON: {text!r} ({error})",
            advice='Write for example {"flights": "3:1200:0"}',
        ) from None
    if isinstance(value, dict) and set(value) - {BEHIND} == {"v", "logs"} and value["v"] == VERSION:
        value = value["logs"]
    if not isinstance(value, dict) or not value:
        raise OffsetError(
            f"Option {option} must be a JSON object with a position for each log, not {text!r}",
            advice='Write for example {"flights": "3:1200:0"}',
        )
    return {log: _place(option, log, place) for log, place in value.items()}


def _place(option: str, log: str, place: object) -> Place:
    if isinstance(place, str) and place.strip().lower() in (bound.value for bound in Bound):
        return Bound(place.strip().lower())
    return parse_dlsn(place, f"Option {option}, log {log}")


def parse_dlsn(text: object, where: str) -> DLSN:
    """A position `segment:entry:slot`; OffsetError, naming `where` it stands, if it is none."""
    parts = text.split(":") if isinstance(text, str) else []
    if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts):
        lssn, entry_id, slot_id = (int(part) for part in parts)
        if lssn >= 1 and max(lssn, entry_id, slot_id) <= _MAX_LONG:
            return DLSN(lssn, entry_id, slot_id)
    raise OffsetError(
        f"{where}: {text!r} is not a position",
        advice='A position is "segment:entry:slot", for example "3:1200:0"; segments count from 1, the others from 0',
    )


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a log is named twice")
    return found
