"""`ObjectStore`: the few things that cold storage asks of a place for files: one file system, S3 or HDFS.

Objects are written once, under names that are never used twice, and never changed; so nothing here overwrites. An
object is there whole or not at all: a write that ended in any error may have left nothing, or the object, or an open
upload (a multi-part upload of S3, a file under its temporary name elsewhere), which is no object and is found by
`uploads`.

Fault model: any call may fail with an error of `objects.errors`, which says whether it was applied. Reads, listings and
`head` were tried again before that (`ReadPolicy`), and so were parts of an object, which make none. What makes or takes
away an object is sent once and never repeated unseen: whoever writes decides. A write may have been applied though its
answer was lost, and may still be applied after its error was raised. What was put is read back and compared by the
caller; nothing relies on conditional requests, which servers may ignore.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What does a store say of an object?

    Args:
        url: its whole address.
        bytes: its size.
        modified_ms: when it was written, by the store's clock, milliseconds since the epoch.
    """

    url: str
    bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """Which write was begun and not ended, and is no object?

    Args:
        url: the address of the object that it would make.
        upload_id: the store's name of it: S3's upload id, or the temporary name of a file.
        started_ms: when it was begun (S3) or last written to (files), by the store's clock, milliseconds since the
            epoch.
    """

    url: str
    upload_id: str
    started_ms: int


class ObjectWriter(Protocol):
    """An object that is being written; it is there once `commit` has returned, durable.

    Calls follow one another: the next one is made when the last one has returned, or was cancelled (then `abort`).
    """

    async def write(self, data: bytes | memoryview) -> None:
        """Add bytes, which may not change until `commit` or `abort` has returned; waits while enough is under way.
        Raises ObjectStoreError, after which only `abort` is left to do."""

    async def commit(self) -> None:
        """Make the object, durable. Raises ObjectExistsError and the other NotAppliedErrors where it did not, and
        ObjectOutcomeUnknownError where it may be there, or may still come."""

    async def abort(self) -> None:
        """Leave nothing, as far as the store can be reached. Idempotent; raises nothing. After an error of `commit`
        it takes away what is no object, and never the object, which may be another writer's."""


class ObjectStore(Protocol):
    """A place for files, below one root: a folder, a bucket with a prefix. One event loop, one process: never kept
    over a fork, where every call raises OpenedElsewhereError.

    Every url is a whole address below the root (`objects.addresses`), anything else is refused by ObjectAddressError.
    """

    @property
    def root(self) -> str:
        """The address that all others begin with, without a slash at the end."""

    async def create(self, url: str) -> ObjectWriter:
        """Begin to write an object. The name must be new; a store that notices an object of the name raises
        ObjectExistsError from `commit` (the caller reads back and compares: it may be its own first try)."""

    async def head(self, url: str) -> ObjectInfo:
        """Return the size and time of an object. Raises ObjectNotFoundError."""

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of (offset, length) ranges, in their order, fetched at the same time. Raises
        ObjectNotFoundError, and RangeShortError where an object ends before a range does."""

    async def delete(self, url: str) -> None:
        """Delete an object; a missing one is a success. ObjectOutcomeUnknownError: it may be gone, or go later."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield all objects below a folder (its address with a slash at the end, or the root), however deep; in no
        order. What comes or goes meanwhile may be among them or not. What has a name that no object can have is
        passed over."""

    def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """Yield what was begun below a folder and not ended, however deep, in no order."""

    async def abort_upload(self, upload: OpenUpload) -> None:
        """End an upload without an object; a missing one is a success. Whoever still writes it gets an error, and makes
        no object."""

    async def close(self) -> None:
        """Give back what is held. Idempotent; writers that are open then may only be aborted."""
