"""Names of logs, and the znodes of one: `L = NS/<log>`, `P = L/<partition>` (`logs` says what is in them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError, NotAppliedError
from metadata.store import Create, check_path

LAYOUT_VERSION: Final = b"\xff\xff\xff\xff"
DEFAULT_PARTITION: Final = "<default>"
RESERVED: Final = (".", "<")
"""How names begin that are not logs'."""


class InvalidLogNameError(CallerError):
    """The name cannot be a log's."""

    code: ClassVar[int] = 602


class LogNotFoundError(CallerError):
    """There is no such log in the namespace."""

    code: ClassVar[int] = 510


class LogExistsError(NotAppliedError):
    """Another client is creating the log, or has just created it."""

    code: ClassVar[int] = 522


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Where are the znodes of a log? `root` is L, `partition` is P."""

    root: str
    partition: str

    @property
    def max_txid(self) -> str:
        """The highest transaction id, as the log's last owner left it."""
        return f"{self.partition}/maxtxid"

    @property
    def version(self) -> str:
        """The version of the log's layout."""
        return f"{self.partition}/version"

    @property
    def lock(self) -> str:
        """The parent of the members of the writers' lock."""
        return f"{self.partition}/lock"

    @property
    def read_lock(self) -> str:
        """The parent of the members of the lock of readers without a subscriber."""
        return f"{self.partition}/readLock"

    @property
    def ledgers(self) -> str:
        """The parent of the segments; its data is the highest LSSN."""
        return f"{self.partition}/ledgers"

    @property
    def allocation(self) -> str:
        """The ledger that was created ahead for the next segment."""
        return f"{self.partition}/allocation"

    @property
    def subscribers(self) -> str:
        """The parent of the subscribers' positions."""
        return f"{self.partition}/subscribers"

    @property
    def producers(self) -> str:
        """Which segments say something of idempotent producers (`metadata.distributedlog.producer_segments`)."""
        return f"{self.partition}/producers"

    @property
    def schema(self) -> str:
        """What the log declares of its records (`metadata.distributedlog.record_schemas`)."""
        return f"{self.partition}/schema"

    @property
    def cold(self) -> str:
        """What is said of the log's cold storage (`metadata.distributedlog.cold_units`)."""
        return f"{self.partition}/cold"

    @property
    def cold_units(self) -> str:
        """The parent of the units that have their files."""
        return f"{self.cold}/units"

    @property
    def cold_attempts(self) -> str:
        """The parent of the copies under way."""
        return f"{self.cold}/attempts"

    def sink_mark(self, sink_id: str) -> str:
        """Return how far a Spark sink has published into this log (`sink_marks`): it goes where the log goes."""
        return f"{self.partition}/sink-{sink_id}"

    def segment(self, segment: SegmentMetadata) -> str:
        """Return the znode of one segment."""
        return f"{self.ledgers}/{segment.znode_name}"

    def initial(self, metadata: bytes = b"") -> list[Create]:
        """Return the znodes of a new log, in the order in which they are made; `metadata` are the application's."""
        return [
            Create(self.root, metadata),
            Create(self.partition),
            Create(self.max_txid, b"0"),
            Create(self.version, LAYOUT_VERSION),
            Create(self.lock),
            Create(self.read_lock),
            Create(self.ledgers, b"0"),
            Create(self.allocation),
        ]

    def declared(self, id_: str, data: bytes) -> list[Create]:
        """Return the znodes of a log's first declaration."""
        return [Create(self.schema, id_.encode()), Create(f"{self.schema}/{id_}", data)]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where does a log end? The two values that its newest segments move, with their versions: only ever set
    conditionally.
    """

    max_lssn: Versioned[int]
    max_txid: Versioned[int]


@dataclass(frozen=True, slots=True)
class LogState(LogEnd):
    """Has a log changed since it was read? All three values that are only set conditionally, with their
    versions (I7).
    """

    allocation: Versioned[bytes]


def validate_name(name: str) -> str:
    """Return the name, if it can be a log's. Raises InvalidLogNameError.

    A leading slash is refused here, and so everywhere: with two spellings of one name, code that keeps something by
    name (offsets, locks, the parts of a batch) would take one log for two.
    """
    if name.startswith("/"):
        plain = name.lstrip("/")
        raise _bad_name_error(
            name, "it begins with a slash", f"A name is not a path: write {plain!r}" if plain else "Give a name"
        )
    if name.startswith(RESERVED):
        raise _bad_name_error(name, "names beginning with '.' or '<' are reserved")
    if not name:
        raise _bad_name_error(name, "it is empty")
    if any(character in name for character in "<> "):
        raise _bad_name_error(name, "'<', '>' and spaces are not allowed")
    try:
        check_path(f"/{name}")
    except CallerError as error:
        raise _bad_name_error(name, error.message.partition(": ")[2] or error.message) from error
    return name


def validate_folder(prefix: str) -> str:
    """Return the folder that names of logs begin with, without the slash behind it; "" is the namespace itself.

    Raises as `validate_name`.
    """
    folder = prefix if prefix == "/" else prefix.removesuffix("/")
    return validate_name(folder) if folder else folder


def validate_new_name(name: str, partition: str) -> str:
    """Validate the name of a log that is to be made, more strictly than `validate_name`: every component must show in
    listings.
    """
    plain = validate_name(name)
    for part in plain.split("/"):
        if part.startswith(RESERVED):
            raise _bad_name_error(name, "a component that begins with '.' or '<' is reserved")
        if part == partition:
            raise _bad_name_error(name, f"{part!r} is what a log's own znode is called (unpartitionedStreamName)")
    return plain


def _bad_name_error(name: str, why: str, advice: str = "Choose another name") -> InvalidLogNameError:
    return InvalidLogNameError(f"invalid log name {name!r}: {why}", advice=advice)


def log_not_found_error(name: str, path: str | None) -> LogNotFoundError:
    """Return the error for a log that is not there; `path` is the znode that was missed."""
    return LogNotFoundError(
        "no such log in this namespace", log=name, path=path, advice="Check the name, or create the log first"
    )
