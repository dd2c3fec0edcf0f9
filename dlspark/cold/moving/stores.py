"""`MoverStores`: the object stores that one mover has open, each once, and closed with it.

A store is opened by the root of what is written, with what writers need; and by a file's own address, with what its
mark says, for what is asked of it later: settings may name another place by then.

What can be put off goes by `MoverStores.put_off` (`PatientStores`): copies in mirrors, and the files of deleted logs. A
place that is out of reach costs one request its time-outs there; for `AWAY_S` from then on the others are told so at
once, whatever log they are for, so that it keeps neither movers nor other mirrors waiting. Nothing counts as done by
that: the error is the one of a store that is away, the same for all of them, with the moment and the first cause.

Only what does not reach a store (`StoreUnreachedError`) is that: any other error is one of an object, a request or
what its log has set, and keeps no other log from the place. A place is its root with its options: what one log has set
wrongly is no other log's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final, Protocol, TypeAlias, TypeVar

from dlspark.objects.addresses import OBJECT_SUFFIX, root_of
from dlspark.objects.errors import ObjectOutcomeUnknownError, ObjectStoreError, StoreUnreachedError
from dlspark.objects.opening import open_store
from dlspark.objects.store import ObjectInfo, ObjectStore, ObjectWriter, OpenUpload
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.tasks import each
from storage_node.edge import Clock, SystemClock

_log = logging.getLogger(__name__)
T = TypeVar("T")

AWAY_S: Final = 60.0
"""How long a place that was out of reach is not asked again, by what can be put off."""

StoreOpener: TypeAlias = Callable[[str, Mapping[str, str]], ObjectStore]
Place: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A root with the options that it is opened with: one address may be on several servers."""


def place_of(root: str, options: Mapping[str, str]) -> Place:
    """Return what tells places for files apart."""
    return root, tuple(sorted(options.items()))


class PlaceStores(Protocol):
    """How are places asked? As it is done for what cannot wait (`MoverStores`), or for what can (`PatientStores`)."""

    @property
    def owned_until_s(self) -> dict[Place, float]:
        """By place: until when the mark of the owner need not be looked at again (`owning`)."""

    def at(self, address: str, options: Mapping[str, str]) -> ObjectStore:
        """Return the store of a root, or of an object, with these options."""


class MoverStores:
    """Which stores does this mover use?

    Args:
        opener: opens the store of an address with options; `open_store` unless given.
        clock: by which places are left alone that are out of reach; this machine's unless given.
    """

    def __init__(self, opener: StoreOpener | None = None, clock: Clock | None = None) -> None:
        self._opener = opener or open_store
        self.owned_until_s: dict[Place, float] = {}
        """By place: until when the mark of the owner need not be looked at again (`owning`)."""
        self._opened: dict[tuple[str, bool, tuple[tuple[str, str], ...]], ObjectStore] = {}
        self.put_off = PatientStores(self, clock or SystemClock())
        """The same stores, for what can be put off."""

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


# ---------------------------------------------------------------------- what can be put off


@dataclass(slots=True)
class AwayPlace:
    """Which place is out of reach?

    Args:
        root: its address.
        options: what it is opened with.
        since_ms: when that was found first, milliseconds since the epoch.
        said: what the request was told that found it.
        again_s: when it is asked again, by the clock's elapsed seconds.
    """

    root: str
    options: Mapping[str, str]
    since_ms: int
    said: str
    again_s: float

    @property
    def since(self) -> str:
        """The moment in words."""
        return datetime.fromtimestamp(self.since_ms / 1000, timezone.utc).isoformat(timespec="seconds")


def _away_error(away: AwayPlace) -> StoreUnreachedError:
    # In the same words whether it was asked just now or not: who repeats what fails sees that it is one absence.
    return StoreUnreachedError(
        f"The place has been out of reach since {away.since}: {away.said}",
        path=away.root,
        advice=f"It is asked every {AWAY_S:g} s, and what was put off is done once it answers",
    )


class PatientStores:
    """How are places asked for what can be put off? One that was out of reach a moment ago is not asked again, and the
    caller is told at once: StoreUnreachedError, as by the store itself.

    Args:
        stores: of the mover.
        clock: says how long ago that was.
    """

    def __init__(self, stores: MoverStores, clock: Clock) -> None:
        self._stores = stores
        self._clock = clock
        self._away: dict[Place, AwayPlace] = {}

    @property
    def owned_until_s(self) -> dict[Place, float]:
        """By place: until when the mark of the owner need not be looked at again: the mover's."""
        return self._stores.owned_until_s

    @property
    def away(self) -> list[AwayPlace]:
        """The places that were out of reach when they were asked last."""
        return list(self._away.values())

    def at(self, address: str, options: Mapping[str, str]) -> ObjectStore:
        """Return the store of a root, or of an object, with these options. Raises ObjectAddressError,
        MissingExtraError."""
        return _StoreUnlessAway(self, place_of(root_of(address).url, options), self._stores.at(address, options))

    def check(self, place: Place) -> None:
        """Raise StoreUnreachedError where a place is not to be asked now."""
        away = self._away.get(place)
        if away is not None and self._clock.elapsed_s() < away.again_s:
            raise _away_error(away)

    def begin(self, place: Place) -> None:
        """Raise StoreUnreachedError where a place is not to be asked now; else the caller asks it at once."""
        self.check(place)
        away = self._away.get(place)
        if away is not None:
            # This request finds out whether it is back; the others do not wait for time-outs beside it.
            away.again_s = self._clock.elapsed_s() + AWAY_S

    def answered(self, place: Place) -> None:
        """Note that a place can be reached."""
        away = self._away.pop(place, None)
        if away is not None:
            _log.info(
                "%s, which had been out of reach since %s, is back: what was put off is done", place[0], away.since
            )

    def failed(self, place: Place, error: StoreUnreachedError) -> StoreUnreachedError:
        """Note that a place could not be reached, and tell of it once; return what is to be raised."""
        again_s = self._clock.elapsed_s() + AWAY_S
        away = self._away.get(place)
        if away is not None:
            away.again_s = again_s
            return _away_error(away)
        root, options = place
        away = AwayPlace(root, dict(options), self._clock.now_ms(), error.message, again_s)
        self._away[place] = away
        _log.warning(
            "%s is out of reach since %s: copies and deletions there are put off, and it is asked every %g s: %s",
            root,
            away.since,
            AWAY_S,
            error.message,
        )
        return _away_error(away)

    async def ask(self, place: Place, request: Callable[[], Awaitable[T]]) -> T:
        """Return what a request gives, unless the place is away; note what it says of the place."""
        self.begin(place)
        return await self.noted(place, request)

    async def noted(self, place: Place, request: Callable[[], Awaitable[T]]) -> T:
        """Return what a request gives, also where the place is away; note what it says of the place."""
        try:
            found = await request()
        except StoreUnreachedError as error:
            raise self.failed(place, error) from error
        except ObjectOutcomeUnknownError:
            raise  # whether it can be reached is as unknown: the next request will tell
        except ObjectStoreError:
            # It says no, or that it cannot just now, or not with this object: others are to ask it as before.
            self.answered(place)
            raise
        self.answered(place)
        return found


class _StoreUnlessAway:
    """A store that says at once that it is away, where it was so a moment ago."""

    def __init__(self, patient: PatientStores, place: Place, store: ObjectStore) -> None:
        self._patient = patient
        self._at = place
        self._store = store

    @property
    def root(self) -> str:
        return self._store.root

    async def create(self, url: str) -> ObjectWriter:
        # Not as the one request that finds out: at some stores nothing is asked by this, and the bytes that follow do.
        self._patient.check(self._at)
        try:
            out = await self._store.create(url)
        except StoreUnreachedError as error:
            raise self._patient.failed(self._at, error) from error
        # Nothing may have been asked of the place yet, so that this is no answer of it.
        return _WriterUnlessAway(self._patient, self._at, out)

    async def head(self, url: str) -> ObjectInfo:
        return await self._patient.ask(self._at, lambda: self._store.head(url))

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return await self._patient.ask(self._at, lambda: self._store.read(url, ranges))

    async def delete(self, url: str) -> None:
        await self._patient.ask(self._at, lambda: self._store.delete(url))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for one in await self._patient.ask(self._at, lambda: _all(self._store.list(prefix))):
            yield one

    async def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        for one in await self._patient.ask(self._at, lambda: _all(self._store.uploads(prefix))):
            yield one

    async def abort_upload(self, upload: OpenUpload) -> None:
        await self._patient.ask(self._at, lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Leave it open: it is the mover's."""


class _WriterUnlessAway:
    """An object that is being written at such a store."""

    def __init__(self, patient: PatientStores, at: Place, out: ObjectWriter) -> None:
        self._patient = patient
        self._at = at
        self._out = out

    async def write(self, data: bytes | memoryview) -> None:
        try:
            await self._out.write(data)
        except StoreUnreachedError as error:
            raise self._patient.failed(self._at, error) from error

    async def commit(self) -> None:
        # Whatever another request has found meanwhile: all bytes are there, and would have to go once more.
        await self._patient.noted(self._at, self._out.commit)

    async def abort(self) -> None:
        await self._out.abort()


async def _all(listed: AsyncIterator[T]) -> list[T]:
    # Whole, as all who list here need it: what a folder has at a mirror is a log's files.
    return [one async for one in listed]
