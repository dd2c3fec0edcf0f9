"""`ObjectStore`: the few things that cold storage asks of a place for files: one file system, S3 or HDFS.

Objects are written once, under names that are never used twice, and never changed; so nothing here overwrites. An
object is there whole or not at all: a write that ended in any error may have left nothing, or the object, or (on S3) an
open multi-part upload, which is no object and is found by `uploads`.

Fault model: any call may fail with ObjectStoreError (tried again by the caller where that is safe), and a write may
have been applied though its answer was lost. What was put is read back and compared by the caller; nothing relies on
conditional requests, which servers may ignore.
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
    """Which multi-part upload was begun and not ended?"""

    url: str
    upload_id: str
    started_ms: int


class ObjectWriter(Protocol):
    """An object that is being written; it is there once `commit` has returned, durable."""

    async def write(self, data: bytes | memoryview) -> None:
        """Add bytes; waits while enough is under way."""

    async def commit(self) -> None:
        """Make the object. Raises ObjectStoreError: it may be there or not."""

    async def abort(self) -> None:
        """Leave nothing, as far as the store can be reached. Idempotent; raises nothing."""


class ObjectStore(Protocol):
    """A place for files, below one root: a folder, a bucket with a prefix. One event loop, one process: never kept
    over a fork.

    Every url is a whole address below the root. Errors: ObjectNotFoundError where there is no such object,
    ObjectStoreError (code, url, what the store said) for the rest.
    """

    @property
    def root(self) -> str:
        """The address that all others begin with, without a slash at the end."""

    async def create(self, url: str) -> ObjectWriter:
        """Begin to write an object. The name must be new; a store that notices an object of the name raises
        ObjectExistsError from `commit` (the caller reads back and compares: it may be its own first try)."""

    async def head(self, url: str) -> ObjectInfo:
        """Return the size and time of an object."""

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of (offset, length) ranges, in their order, fetched at the same time. Raises
        ObjectStoreError where a range comes back short."""

    async def delete(self, url: str) -> None:
        """Delete an object; a missing one is a success."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield all objects whose address begins with `prefix` (a whole address up to a slash)."""

    def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """Yield multi-part uploads under `prefix` that were begun and not ended; none where a store has no such
        thing. Local: files under their temporary names."""

    async def abort_upload(self, upload: OpenUpload) -> None:
        """End an upload without an object; a missing one is a success."""

    async def close(self) -> None:
        """Give back what is held. Idempotent."""
