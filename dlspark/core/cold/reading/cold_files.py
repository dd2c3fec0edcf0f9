"""`ColdFiles`: the cold files that one event loop of one process reads: their stores, and what is kept of them.

Stores are costly to open and cheap to keep, so that all readers on a loop share them: one for each root and way of
reaching it. They are closed when the last holder has let go: a namespace holds them from its first cold segment until
it is closed, and Spark's tasks for as long as their worker has its event loop. Footers and a few row groups are kept
besides, within bounds.

A store never lives over a fork: a client without its threads waits for ever, and its destructor may, too. So a child
process begins with no `ColdFiles` at all; what it has inherited is set aside, unused and undestroyed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from dlspark.core.cold.reading.cold_ledger import ColdLedger
from dlspark.core.cold.reading.file_reader import ColdFileReader, KnownParts
from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.core.cold.reading.places import ANYWHERE, FilePlace, FilePlaces, KnownPlaces, ReadsFrom, order_of
from dlspark.objects.addresses import root_of
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectStore
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.errors import check
from metadata.foundation.opened_here import OnOneLoop
from metadata.foundation.tasks import each

StoreKey = tuple[str, tuple[tuple[str, str], ...]]
"""The root of a store, and how it is reached."""
OpenStore = Callable[[str, Mapping[str, str]], ObjectStore]


class ColdFiles(OnOneLoop):
    """Which cold files can be read here? One for an event loop: `shared_cold_files`.

    Args:
        opener: opens the store of a file's address, with the file's options.
    """

    def __init__(self, opener: OpenStore | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._opener = opener or open_store
        self._holders = 0
        self._stores: dict[StoreKey, ObjectStore] = {}
        self._known = KnownParts()
        self._places = KnownPlaces()

    def hold(self) -> ColdFilesHold:
        """Return a hold on the stores, to be closed."""
        self._check_loop()
        self._holders += 1
        return ColdFilesHold(self)

    async def let_go(self) -> None:
        """Count one holder less; the last one's leaving closes the stores."""
        self._holders -= 1
        check(self._holders >= 0, "cold files were let go more often than held")
        if not self._holders:
            if _SHARED.get(self._loop) is self:
                del _SHARED[self._loop]  # A value that names its key keeps it: the loop, and all footers, would stay.
            stores, self._stores = list(self._stores.values()), {}
            # Loads use the stores, and whoever waits for one has closed its ledger: none is left but by mistake.
            await self._known.close()
            await each([store.close for store in stores])

    def reader(self, file: ColdFile, patience_s: float = 0, reads_from: ReadsFrom = ANYWHERE) -> ColdFileReader:
        """Return a reader of a file; `patience_s` as in `ColdFileReader`, `reads_from`: who reads it, and in which
        region. Raises ObjectAddressError, and MissingExtraError where the library of its store is not installed."""
        self._check_loop()
        check(self._holders > 0, "a cold file was opened without a hold on its store", path=file.url)
        # Its own store at once, so that a mistake shows here; those of mirrors once they are asked for anything.
        self._store(file.url, file.options)
        places = []
        for one in order_of(file, reads_from.region):
            url, options = (file.url, file.options) if one is None else (one.url_of(file.url), one.options)
            store = partial(self._store, url, options)
            places.append(FilePlace(one, url, options.get("endpoint", ""), store))
        return ColdFileReader(FilePlaces(places, self._places, reads_from), file, self._known, patience_s)

    async def open(self, location: ColdLocation, patience_s: float = 0, reads_from: ReadsFrom = ANYWHERE) -> ColdLedger:
        """Return a segment's entries. Raises ObjectStoreError, DamagedColdFileError where the file is not the
        segment's, and as `reader`."""
        if location.file is None:
            return ColdLedger(location)
        reader = self.reader(location.file, patience_s, reads_from)
        return ColdLedger(location, reader, await reader.footer())

    def _store(self, url: str, options: Mapping[str, str]) -> ObjectStore:
        check(self._holders > 0, "a cold file was read without a hold on its store", path=url)
        key = (root_of(url).url, tuple(sorted(options.items())))
        found = self._stores.get(key)
        if found is None:
            found = self._stores[key] = self._opener(url, options)
        return found


class ColdFilesHold:
    """Who holds the stores of cold files open? The owner of this, until it closes it."""

    def __init__(self, files: ColdFiles) -> None:
        self.files = files
        self._closed = False

    async def close(self) -> None:
        """Let go. Idempotent."""
        if not self._closed:
            self._closed = True
            await self.files.let_go()


# ---------------------------------------------------------------------- one for each loop of this process

_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, ColdFiles] = WeakKeyDictionary()
_INHERITED: Final[list[ColdFiles]] = []


def shared_cold_files() -> ColdFiles:
    """Return the cold files of the running loop."""
    loop = asyncio.get_running_loop()
    found = _SHARED.get(loop)
    if found is None:
        found = _SHARED[loop] = ColdFiles()
    return found


def _set_aside() -> None:
    """Give up, in a child process, what its parent has open; and keep it, so that no destructor runs."""
    _INHERITED.extend(_SHARED.values())
    _SHARED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_set_aside)
