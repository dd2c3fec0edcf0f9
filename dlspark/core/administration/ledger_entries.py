"""Single ledgers: which znodes name them, their entries decoded, each copy of an entry, their recovery.

Reading does not fence, so a writer goes on. Recovery fences: a segment's ledger is recovered only under its log's lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from dlspark.core.administration.references import Reference, Unreadable, Use, find_references
from dlspark.core.codec.entries import decode_entry
from dlspark.core.codec.records import LogRecord
from dlspark.core.lifecycle.owned_segments import taken
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id
from dlspark.errors import InvalidEntryError
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.distributedlog.segments import VERSION
from metadata.foundation.errors import CallerError, DistributedLogError
from storage_node.autorecovery.checker import fragments_of
from storage_node.client.ledger_copies import LedgerCopies
from storage_node.errors import DigestError
from storage_node.protocol.digests import Entry
from storage_node.protocol.striping import write_set

FIRST_ENVELOPED_VERSION = 4


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A znode of the namespace that names a ledger; `log` is the log that it belongs to, if it does to one."""

    reference: Reference
    log: str | None


async def find_ledger(services: Services, ledger_id: int) -> list[FoundLedger]:
    """Return what names the ledger in this namespace: segments of logs, an allocator, a sink, a note. Empty if nothing
    does.

    Raises CallerError where a znode that may name it cannot be read.
    """
    found = await find_references(services.store, services.logs.namespace_path)
    if found.unreadable and ledger_id not in found:
        one = found.unreadable[0]
        raise CallerError(
            f"what names the ledger is not known: {one.why}",
            ledger_id=ledger_id,
            path=one.path,
            advice="Look at what dlspark log inspect says",
        )
    folders = await _folders(services)
    return [FoundLedger(one, _log_of(one.path, folders)) for one in found.by_ledger.get(ledger_id, ())]


async def ledgers_named(services: Services) -> tuple[dict[int, list[FoundLedger]], tuple[Unreadable, ...]]:
    """Return what names which ledger in this namespace, by one walk; and the znodes that could not be read."""
    found = await find_references(services.store, services.logs.namespace_path)
    folders = await _folders(services)
    named = {
        ledger_id: [FoundLedger(one, _log_of(one.path, folders)) for one in references]
        for ledger_id, references in found.by_ledger.items()
    }
    return named, tuple(found.unreadable)


async def _folders(services: Services) -> list[str]:
    """Return where the namespace has logs, the innermost first."""
    return sorted(await services.logs.log_folders.folders(), key=len, reverse=True)


def _log_of(path: str, folders: list[str]) -> str | None:
    """Return the log whose znode this is: `<folder>/<log>/<partition>/...`; None for a path that is not within a
    log."""
    folder = next((one for one in folders if path.startswith(f"{one}/")), None)
    if folder is None:
        return None
    rest = path[len(folder) + 1 :]
    parts = rest.split("/")
    depth = 1 if parts[-1] == "allocation" else 2
    return None if rest.startswith(".") else "/".join(parts[: -depth - 1])


async def read_lac(services: Services, ledger_id: int) -> tuple[LedgerMetadata, int]:
    """Return a ledger's metadata, and its last add confirmed: its last entry once it is closed. Raises NoNodeError."""
    metadata = (await services.ledger_store.read(ledger_id)).value
    if metadata.is_closed:
        return metadata, metadata.last_entry
    reader = await services.ledgers.open(ledger_id, password=metadata.password or b"", recover=False)
    try:
        return reader.metadata, reader.last_add_confirmed
    finally:
        await reader.close()


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry, or a copy of one, as it was read: its records, or why there are none."""

    entry_id: int
    bookie: str | None
    """The storage node whose copy it is; None where any verified copy would do."""
    last_add_confirmed: int | None
    length: int
    records: tuple[LogRecord, ...]
    error: DistributedLogError | None

    @property
    def corrupt(self) -> bool:
        """True if bytes came that are not what was written; a copy that is not there is not corrupt."""
        return isinstance(self.error, DigestError | InvalidEntryError)


async def read_entries(
    services: Services,
    ledger_id: int,
    first: int = 0,
    last: int | None = None,
    *,
    every_copy: bool = False,
    metadata_version: int = VERSION,
) -> AsyncIterator[ReadEntry]:
    """Yield the committed entries first..last (None: to the end), decoded as those of a segment of `metadata_version`.

    With `every_copy` the copy of each storage node that should have one. An entry that cannot be read has its `error`.
    Raises NoNodeError for a ledger that is not there, CallerError for a range beyond its end.
    """
    metadata, end = await read_lac(services, ledger_id)
    last = end if last is None else last
    if first < 0 or last > end or (first > last and last != end):
        raise CallerError(
            f"entries {first} to {last} are not all in the ledger, which ends at {end}",
            ledger_id=ledger_id,
            advice="Give a range within it",
        )
    copies = services.ledgers.copies(ledger_id, metadata)
    enveloped = metadata_version >= FIRST_ENVELOPED_VERSION
    for entry_id in range(first, last + 1):
        for bookie in _holders(metadata, entry_id) if every_copy else (None,):
            yield await _read(copies, metadata, entry_id, bookie, enveloped)


def _holders(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    bookies = metadata.ensemble_for(entry_id).bookies
    return [bookies[index] for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)]


async def _read(
    copies: LedgerCopies, metadata: LedgerMetadata, entry_id: int, bookie: str | None, enveloped: bool
) -> ReadEntry:
    entry: Entry | None = None
    records: list[LogRecord] = []
    error: DistributedLogError | None = None
    try:
        entry = await (copies.fetch(metadata, entry_id) if bookie is None else copies.read(bookie, entry_id))
        records = decode_entry(entry.payload, lssn=0, entry_id=entry_id, start_sequence_id=0, enveloped=enveloped)
    except DistributedLogError as caught:
        error = caught
    return ReadEntry(
        entry_id=entry_id,
        bookie=bookie,
        last_add_confirmed=entry.last_add_confirmed if entry is not None else None,
        length=len(entry.payload) if entry is not None else 0,
        records=tuple(records),
        error=error,
    )


def copies_by_bookie(metadata: LedgerMetadata, last_entry: int) -> dict[str, int]:
    """Return how many of the entries up to `last_entry` each storage node has a copy of."""
    counts: dict[str, int] = {}
    for fragment in fragments_of(metadata, last_entry):
        last = min(fragment.last, last_entry)
        for index, bookie in enumerate(fragment.bookies):
            span = replace(fragment, last=last).stored_on(index)
            counts[bookie] = counts.get(bookie, 0) + len(span)
    return dict(sorted(counts.items()))


async def recover_ledger(
    services: Services, ledger_id: int, settings: Settings, *, force: bool = False, client_id: str | None = None
) -> int:
    """Fence a ledger's writer and close it; returns its last entry. A closed one stays as it is.

    A segment's ledger is recovered under its log's lock: raises OwnershipAcquireFailedError while the log is written. A
    ledger that no log of this namespace names, or that is about to become a segment, is recovered only with `force`:
    its writer, if it lives, is fenced. The segment stays in progress until the log's next writer completes it.
    """
    found = await find_ledger(services, ledger_id)
    logs = [one.log for one in found if one.reference.use is Use.SEGMENT and one.log is not None]
    if logs:
        async with taken(services, logs[0], settings, client_id or default_client_id()) as owned:
            await owned.lock.ensure_held()
            return await _recover(services, ledger_id)
    if not force:
        named = f"it is {found[0].reference.use.value}" if found else "no log of this namespace has it"
        raise CallerError(
            f"the ledger was not recovered: {named}, so that nothing shows whether a client writes it",
            ledger_id=ledger_id,
            path=found[0].reference.path if found else None,
            advice="Make sure that no client does, then use force",
        )
    return await _recover(services, ledger_id)


async def _recover(services: Services, ledger_id: int) -> int:
    password = (await services.ledger_store.read(ledger_id)).value.password
    reader = await services.ledgers.open(ledger_id, password=password or b"", recover=True)
    try:
        return reader.last_add_confirmed
    finally:
        await reader.close()
