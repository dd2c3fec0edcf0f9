"""Offsets: what Spark keeps in its offset log, and what `startingOffsets` / `endingOffsets` say.

The stored form is `{"v": 1, "logs": {"flights": "3:1200:0"}}`: for each log the DLSN (segment:entry:slot) of the
record to be read **next**, so the end of one batch is the start of the following one, with no record in between. It is
meant to be read by people, and by every later release (I14). Spark compares offsets as strings, so the order of the
keys is fixed: `v` first, logs by name. Two parts are optional; checkpoints without them are read as before:

    "ledgers": {"flights": "3:17@6c5d0c43-..."}     segment 3 of the log is ledger 17 of the cluster with this id
    "begin": {"flights": "1:0:0"}                   in the offset of a query's first batch: where that batch begins

A cluster never uses a ledger's number again, and it stays with its segment, wherever the log's metadata is copied to.
So the first part distinguishes a log from another one that was created later under its name, however far that one has
grown. The numbers begin anew with a new cluster, hence its id (INSTANCEID), which older checkpoints do not have.
The second part is there because Spark keeps the end of the first batch but not its start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OffsetError
from metadata.foundation.settings import did_you_mean, near_word, shown

VERSION = 1
BEHIND = "behind"
"""Beside the positions in a query's progress (`latestOffset`): the lag of each log that is not read to its end."""
_CHECKPOINT_ADVICE = "Does the checkpoint belong to another query? Restore it, or start with a new checkpoint location"
_EXAMPLE = '{"flights": "3:1200:0"}'
_MAX_LONG = (1 << 63) - 1
_DIGITS = re.compile("[0-9]{1,19}")
_CLUSTER = re.compile("[A-Za-z0-9_.~%-]+")
"""What `urllib.parse.quote` makes of any id; a UUID it leaves as it is."""
_MAX_DIGITS = 40
"""Far more than any number here has; `int` refuses some thousands of digits with words of its own."""

StoredOffset: TypeAlias = dict[str, object]


class LogIdentity(NamedTuple):
    """The identity of a log, by which it differs from a later one of its name: the ledger that one of its segments
    was written into (`SegmentMetadata.first_ledger`), wherever its entries lie by now, and in which cluster.

    `cluster`: the cluster's id, quoted as in a URL; "" where it is not known.
    """

    lssn: int
    ledger_id: int
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.lssn}:{self.ledger_id}" + (f"@{self.cluster}" if self.cluster else "")

    @classmethod
    def parse(cls, text: str) -> LogIdentity | None:
        """Read back what `str` gave, and earlier releases; None for anything else."""
        ledger, at, cluster = text.partition("@")
        numbers = _numbers(ledger, 2)
        if numbers is None or (at and not _CLUSTER.fullmatch(cluster)):
            return None
        lssn, ledger_id = numbers
        return cls(lssn, ledger_id, cluster)

    @property
    def words(self) -> str:
        """What it says, for errors."""
        cluster = f" of cluster {self.cluster}" if self.cluster else ""
        return f"segment {self.lssn} was ledger {self.ledger_id}{cluster}"

    def same_cluster(self, cluster: str) -> bool:
        """Return whether it may be of the cluster with this id ("": not known)."""
        return not self.cluster or not cluster or self.cluster == cluster

    def differs(self, other: LogIdentity) -> bool:
        """Return whether they are certainly not the same segment."""
        return self[:2] != other[:2] or not self.same_cluster(other.cluster)


class NamedOffset(Enum):
    """An end of a log, by its name: what stands for a position that is looked up."""

    EARLIEST = "earliest"
    LATEST = "latest"


GivenOffset: TypeAlias = "DLSN | NamedOffset"

# The numbers are those of the Kafka connector.
_WORDS = {
    "earliest": NamedOffset.EARLIEST,
    "-2": NamedOffset.EARLIEST,
    "latest": NamedOffset.LATEST,
    "-1": NamedOffset.LATEST,
}
_NAMES = tuple(offset.value for offset in NamedOffset)


@dataclass(frozen=True)
class Offsets(Mapping[str, DLSN]):
    """One next-to-read DLSN per log; a mapping sorted by log name. `identities`: of the logs that were read from.

    `begin`: only of the offset that ends a query's first batch.
    """

    positions: Mapping[str, DLSN]
    identities: Mapping[str, LogIdentity] = field(default_factory=dict)
    begin: Mapping[str, DLSN] | None = None

    def __post_init__(self) -> None:
        # Sorted: Spark compares offsets as text, and equal ones must be equal there.
        object.__setattr__(self, "positions", dict(sorted(self.positions.items())))
        object.__setattr__(self, "identities", dict(sorted(self.identities.items())))
        if self.begin is not None:
            object.__setattr__(self, "begin", dict(sorted(self.begin.items())))

    def __getitem__(self, log: str) -> DLSN:
        return self.positions[log]

    def __iter__(self) -> Iterator[str]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def moved(self, end: Offsets) -> list[str]:
        """Return the logs of which something lies between here and `end`: another position, or another log of that
        name."""
        # A log that was deleted and made again may have grown to the very position of the old one: then only the
        # identity shows that something lies between (I8).
        return [
            log
            for log, position in end.items()
            if self.get(log) != position
            or (log in self.identities and log in end.identities and self.identities[log].differs(end.identities[log]))
        ]

    def stored(self) -> StoredOffset:
        """Return the form that Spark writes into its offset log."""
        stored: StoredOffset = {"v": VERSION, "logs": _texts(self.positions)}
        if self.identities:
            stored["ledgers"] = _texts(self.identities)
        if self.begin is not None:
            stored["begin"] = _texts(self.begin)
        return stored

    @classmethod
    def from_stored(cls, stored: object, where: str = "The offset in the checkpoint") -> Offsets:
        """Read back what `stored` wrote; OffsetError if `where` (the checkpoint) holds something else."""
        if not isinstance(stored, Mapping) or not {"v", "logs"} <= set(stored) <= {"v", "logs", "ledgers", "begin"}:
            raise OffsetError(f"{where} is not one of this source's: {shown(stored)}", advice=_CHECKPOINT_ADVICE)
        if stored["v"] != VERSION:
            raise OffsetError(
                f"{where} has version {shown(stored['v'])}; this release reads version {VERSION}",
                advice="Run the query with the release that wrote the checkpoint, or a later one",
            )
        parts = {name: stored[name] for name in ("logs", "ledgers", "begin") if name in stored}
        if not all(isinstance(part, Mapping) for part in parts.values()):
            raise OffsetError(f"{where} has no positions: {shown(stored)}", advice=_CHECKPOINT_ADVICE)
        logs, ledgers, begin = (parts.get(name) for name in ("logs", "ledgers", "begin"))
        return cls(
            _positions(logs, where) or {},
            {str(log): _identity(text, f"{where}, log {log}") for log, text in (ledgers or {}).items()},
            _positions(begin, where),
        )


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {log: str(value) for log, value in values.items()}


def _positions(texts: Mapping[str, object] | None, where: str) -> dict[str, DLSN] | None:
    if texts is None:
        return None
    return {str(log): parse_dlsn(text, f"{where}, log {log}") for log, text in texts.items()}


def _identity(text: object, where: str) -> LogIdentity:
    identity = LogIdentity.parse(text) if isinstance(text, str) else None
    if identity is not None:
        return identity
    raise OffsetError(
        f'{where}: {shown(text)} is not a segment with its ledger ("3:17", or "3:17@" and the id of the cluster)',
        advice=_CHECKPOINT_ADVICE,
    )


def parse_offsets(option: str, text: str) -> NamedOffset | tuple[dict[str, GivenOffset], dict[str, LogIdentity]]:
    """Return the value of `startingOffsets` / `endingOffsets`: one offset for all logs, or one for each log by name.

    JSON is an object of offsets by log name; the forms of the checkpoint and of a query's progress are taken too, so
    that a position can be copied out of one, with what it knows of the logs. OffsetError says what is malformed.
    """
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if not word.startswith(("{", "[")):
        raise OffsetError(f"Option {option} is neither earliest, latest nor JSON: {shown(text)}", advice=_meant(word))
    value = parse_by_log(option, text, f"neither earliest, latest nor JSON: {shown(text)}", _EXAMPLE)
    if _is_copied(value):
        stored = {part: item for part, item in value.items() if part != BEHIND}
        if not {"v", "logs"} <= set(stored):
            raise OffsetError(
                f"Option {option} is like an offset of a checkpoint, and is none: {shown(text)}",
                advice=f'One of those is {{"v": {VERSION}, "logs": {_EXAMPLE}}}, spelled like that',
            )
        offsets = Offsets.from_stored(stored, f"Option {option}")
        return dict(offsets), dict(offsets.identities)
    return {log: _given_offset(option, log, offset) for log, offset in value.items()}, {}


def _meant(word: str) -> str:
    """Return what to write instead of something that is neither one of the words, nor JSON."""
    if _numbers(word, 3) is not None:
        return f'A position is one log\'s: write for example {{"flights": "{word}"}}'
    return f"{did_you_mean(word, _NAMES)}Write earliest, latest, or for example {_EXAMPLE}"


def _is_copied(value: Mapping[str, object]) -> bool:
    """Return whether an option's JSON is the offset of a checkpoint, and not one offset a log, of which one may be
    called v.

    It is one where `logs` is an object, as no log's offset is, however it is spelled; the parts are read later.
    """
    copied = any(name.lower() == "logs" and isinstance(item, dict) for name, item in value.items())
    return copied or ({"v", "logs"} <= set(value) and value["v"] == VERSION)


def parse_by_log(option: str, text: str, not_json: str, example: str) -> dict[str, object]:
    """Return an option's JSON object with something for each log; OffsetError if it is none, or names a log twice."""
    advice = f"Write for example {example}"
    try:
        value = parse_json(text, _without_duplicates)
    except ValueError as error:
        raise OffsetError(f"Option {option} is {not_json} ({error})", advice=advice) from None
    if not isinstance(value, dict) or not value:
        raise OffsetError(
            f"Option {option} must be a JSON object with an item for each log, not {shown(text)}", advice=advice
        )
    return value


def check_one(option: str, log: str, item: object, example: str) -> None:
    """Raise OffsetError for an object of partitions, as a Kafka user would give it."""
    if isinstance(item, dict):
        raise OffsetError(
            f"Option {option}, log {log}: {shown(item)} is not one place; a log has no partitions",
            advice=f"Write for example {example}",
        )


def _given_offset(option: str, log: str, offset: object) -> GivenOffset:
    check_one(option, log, offset, _EXAMPLE)
    if isinstance(offset, str) and offset.strip().lower() in _WORDS:
        return _WORDS[offset.strip().lower()]
    if isinstance(offset, int) and not isinstance(offset, bool) and str(offset) in _WORDS:
        return _WORDS[str(offset)]
    if isinstance(offset, str) and (near := near_word(offset, _NAMES)) is not None:
        raise OffsetError(
            f"Option {option}, log {log}: {shown(offset)} is neither earliest, latest nor a position",
            advice=f"Did you mean {near}?",
        )
    return parse_dlsn(offset, f"Option {option}, log {log}")


def parse_dlsn(text: object, where: str) -> DLSN:
    """Return a position `segment:entry:slot`; OffsetError, naming `where` it stands, if it is none."""
    numbers = _numbers(text, 3)
    if numbers is not None:
        return DLSN(*numbers)
    raise OffsetError(
        f"{where}: {shown(text)} is not a position",
        advice='A position is "segment:entry:slot", for example "3:1200:0"; segments count from 1, the others from 0',
    )


def _numbers(text: object, count: int) -> list[int] | None:
    """Return the numbers of `a:b` or `a:b:c`, of which the first is a segment's; None for anything else."""
    parts = text.split(":") if isinstance(text, str) else []
    if len(parts) != count or not all(_DIGITS.fullmatch(part) for part in parts):
        return None
    numbers = [int(part) for part in parts]
    return numbers if numbers[0] >= 1 and max(numbers) <= _MAX_LONG else None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a log is named twice")
    return found


def parse_json(text: str, pairs: Callable[[list[tuple[str, object]]], object] | None = None) -> object:
    """Return what JSON says; ValueError for whatever it cannot be, nesting and numbers without end among it."""
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_json_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _json_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)
