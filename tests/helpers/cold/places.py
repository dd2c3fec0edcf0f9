"""Places for objects, each behind the same words: in memory, a folder, S3 servers of two kinds, HDFS.

A test that takes the fixture `place` (`helpers.cold.fixtures`) runs on all of them. What a test writes lies below
`place.root`, which is its own.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dlspark.objects.memory import MemoryBucket, MemoryObjectStore
from dlspark.objects.memory_faults import ObjectFaults
from dlspark.objects.opened_store import READ_POLICY, ReadPolicy
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectStore

NOW_MS = 1_764_300_000_000


@dataclass
class ObjectPlace(ABC):
    """Where do a test's objects lie?

    Args:
        root: the address of the store's root, which is empty at first.
        options: for `open_store`, if another process can open it.
        environment: that a process needs beside them.
        part_bytes: what is written at once; objects above it are in parts.
    """

    root: str
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    part_bytes: int = 8 << 20

    @abstractmethod
    def open(self, policy: ReadPolicy = READ_POLICY) -> ObjectStore:
        """Open the store, for the running loop."""

    @property
    def is_shared(self) -> bool:
        """Whether another process can open it."""
        return True

    @property
    def is_slow(self) -> bool:
        """Whether a thousand objects take long."""
        return self.is_shared and not self.root.startswith("file:")


@dataclass
class MemoryPlace(ObjectPlace):
    """A bucket in memory, with its faults in the hands of the test."""

    bucket: MemoryBucket = field(default_factory=lambda: MemoryBucket(lambda: NOW_MS, ObjectFaults(random.Random(7))))

    def open(self, policy: ReadPolicy = READ_POLICY) -> ObjectStore:
        return MemoryObjectStore(self.bucket, self.root, part_bytes=self.part_bytes, policy=policy)

    @property
    def is_shared(self) -> bool:
        return False


@dataclass
class ServedPlace(ObjectPlace):
    """A place that `open_store` opens by its address."""

    def open(self, policy: ReadPolicy = READ_POLICY) -> ObjectStore:
        return open_store(self.root, self.options, policy=policy)


def memory_place() -> MemoryPlace:
    """Return an empty bucket in memory."""
    return MemoryPlace("s3://memory/cold", part_bytes=1 << 20)


def folder_place(folder: Path) -> ServedPlace:
    """Return a folder, which is made."""
    folder.mkdir()
    return ServedPlace(f"file://{folder}", part_bytes=1 << 20)


async def put(store: ObjectStore, url: str, data: bytes, piece: int = 1 << 20) -> None:
    """Write an object, some bytes at a time."""
    writer = await store.create(url)
    for offset in range(0, len(data), piece):
        await writer.write(data[offset : offset + piece])
    await writer.commit()


async def get(store: ObjectStore, url: str) -> bytes:
    """Return all bytes of an object."""
    info = await store.head(url)
    (data,) = await store.read(url, [(0, info.bytes)])
    return bytes(data)


async def names(store: ObjectStore, prefix: str | None = None) -> set[str]:
    """Return the addresses of all objects below a folder, or of the store."""
    return {one.url async for one in store.list(prefix or f"{store.root}/")}


async def open_uploads(store: ObjectStore) -> list[str]:
    """Return the addresses of what is begun and not ended."""
    return [one.url async for one in store.uploads(f"{store.root}/")]
