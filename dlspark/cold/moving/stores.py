"""`MoverStores`: the object stores that one mover has open, each once, and closed with it.

A store is opened by the root of what is written, with what writers need; and by a file's own address, with what its
mark says, for what is asked of it later: settings may name another place by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from dlspark.objects.addresses import OBJECT_SUFFIX, root_of
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectStore
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.tasks import each

StoreOpener: TypeAlias = Callable[[str, Mapping[str, str]], ObjectStore]
Place: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A root with the options that it is opened with: one address may be on several servers."""


def place_of(root: str, options: Mapping[str, str]) -> Place:
    """Return what tells places for files apart."""
    return root, tuple(sorted(options.items()))


class MoverStores:
    """Which stores does this mover use?

    Args:
        opener: opens the store of an address with options; `open_store` unless given.
    """

    def __init__(self, opener: StoreOpener | None = None) -> None:
        self._opener = opener or open_store
        self.owned_until_s: dict[Place, float] = {}
        """By place: until when the mark of the owner need not be looked at again (`owning`)."""
        self._opened: dict[tuple[str, bool, tuple[tuple[str, str], ...]], ObjectStore] = {}

    def at(self, address: str, options: Mapping[str, str]) -> ObjectStore:
        """Return the store of a root, or of an object, with these options. Raises ObjectAddressError,
        MissingExtraError."""
        # Opened by an object's address a folder may be gone, by its own it may not: never the same store for both.
        key = (root_of(address).url, address.endswith(OBJECT_SUFFIX), tuple(sorted(options.items())))
        found = self._opened.get(key)
        if found is None:
            found = self._opened[key] = self._opener(address, options)
        return found

    def of(self, file: ColdFile) -> ObjectStore:
        """Return the store that has a file. Raises as `at`."""
        return self.at(file.url, file.options)

    async def close(self) -> None:
        """Close them all. Idempotent."""
        opened, self._opened = list(self._opened.values()), {}
        await each([store.close for store in opened])
