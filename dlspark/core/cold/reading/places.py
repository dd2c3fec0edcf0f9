"""Places where a cold file can be read: its own, and copies in mirrors; and the request that goes to the nearest first.

    the mirror of the reader's own region, if the log names one
    the file's own place
    the other mirrors, in the log's order

What the nearest cannot give, the next one is asked for: a copy that is not there yet, or is damaged, or whose store
refuses, cannot be reached, or does not answer in time. Where none gave it, the file's own place is asked once more and
without a limit of time, if it was given up for time or passed over: so a file with mirrors is never harder to read than
one without, and what is raised is what its own place says.

One thing is not believed at once: that a file is damaged or missing, for by that a reader ends, or passes its records
over. Before that is raised all mirrors are asked, those that were passed over and those that had no copy before; and
as long as one of them cannot be asked, what is raised is that a store is out of reach, which readers wait for.

What comes from a mirror is as good as what comes from the file's own place, or it is not taken: the footer has to have
the digest that the file's mark says, and everything else hangs on the footer (`files.footer`). So a mirror that has
another file of the name, or a longer one, gives nothing or gives the same records.

Fault model: a place fails in any way, at any time, and comes back. One that could not be reached is passed over for
`AWAY_S`; one that has not got a file, or has it damaged, is asked for this file again by the same reader only where the
file's own place fails. A mirror
whose library is not installed, or that this process may not use, is one that cannot be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectNotFoundError,
    ObjectStoreError,
    RangeShortError,
    StoreUnavailableError,
)
from dlspark.objects.store import ObjectStore
from dlspark.tables.errors import MissingExtraError
from metadata.distributedlog.cold_places import ColdFile, ColdMirror
from metadata.foundation.errors import CorruptDataError

ANSWER_S: Final = 5.0
"""How long one place is waited for where there is another one, besides what the bytes take."""
SLOWEST_BYTES_S: Final = 1 << 20
"""Bytes a second that a place must give that is waited for."""
AWAY_S: Final = 30.0
"""How long a place is passed over that could not be reached."""

_log = logging.getLogger(__name__)
T = TypeVar("T")

_NOT_GIVEN: Final = (
    ObjectStoreError,
    CorruptDataError,
    asyncio.TimeoutError,
    MissingExtraError,
    ObjectAddressError,
)
"""What one place may say that another one is asked for instead."""


PlaceKey: TypeAlias = tuple[str, str]
"""A root, and the server that has it."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class ReadsFrom:
    """From where does a reader read, and who counts what came of it?

    Args:
        region: the reader's own; empty: it is not known, and files are read in their own place first.
        from_mirror: called with each part of a file that a mirror gave.
        fell_over: called with each part that the place that was asked could not give, so that another one was.
    """

    region: str = ""
    from_mirror: Callable[[], None] = _nothing
    fell_over: Callable[[], None] = _nothing


ANYWHERE: Final = ReadsFrom()


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where is a file, or a copy of it?

    Args:
        mirror: which mirror it is; None: the file's own place.
        url: its address there.
        server: which server has it, as far as options say; one address may be on several.
        store: opens the store, or returns the open one.
    """

    mirror: ColdMirror | None
    url: str
    server: str
    store: Callable[[], ObjectStore]

    @property
    def key(self) -> PlaceKey:
        """What it is told apart by: all files below one root come and go together."""
        return self.root, self.server

    @property
    def root(self) -> str:
        """The address that those of all its files begin with."""
        return self.url.rsplit("/", 3)[0]

    def __str__(self) -> str:
        return f"the mirror of region {self.mirror.region}" if self.mirror is not None else "the file's own place"


def order_of(file: ColdFile, region: str) -> tuple[ColdMirror | None, ...]:
    """Return in which order the places of a file are asked by a reader of this region; None stands for its own."""
    near = [one for one in file.mirrors if region and one.region == region][:1]
    return (*near, None, *(one for one in file.mirrors if one not in near))


class KnownPlaces:
    """Which places are out of reach at present? One for all files of an event loop."""

    def __init__(self) -> None:
        self._away_until: dict[PlaceKey, float] = {}
        self._told: set[tuple[PlaceKey, str]] = set()

    def is_away(self, place: FilePlace) -> bool:
        """Return whether a place is passed over."""
        return self._away_until.get(place.key, 0.0) > asyncio.get_running_loop().time()

    def answered(self, place: FilePlace) -> None:
        """Note that a place gives what it has; should it go away again, that is told again."""
        if self._away_until.pop(place.key, None) is not None:
            self._told = {one for one in self._told if one[0] != place.key}
            _log.info("cold files: %s, %s, can be read again", place, place.root)

    def failed(self, place: FilePlace, error: BaseException) -> None:
        """Note what a place did not give, and tell of it once."""
        if is_place_lost(error):
            self._away_until[place.key] = asyncio.get_running_loop().time() + AWAY_S
        kind = type(error).__name__
        if (place.key, kind) not in self._told:
            self._told.add((place.key, kind))
            said = str(error) or f"no answer within {ANSWER_S:g} s"
            _log.warning("cold files: %s, %s, did not give a file; another place is asked: %s", place, place.root, said)


class FilePlaces:
    """How are parts of one file read, wherever they are? One for each reader of the file.

    Args:
        places: in the order in which they are asked; one of them is the file's own.
        known: what is known of all places.
        reads_from: who reads.
    """

    def __init__(self, places: Sequence[FilePlace], known: KnownPlaces, reads_from: ReadsFrom = ANYWHERE) -> None:
        self._places = places
        self._own = next(one for one in places if one.mirror is None)
        self._known = known
        self._reads_from = reads_from
        self._without: set[PlaceKey] = set()

    @classmethod
    def only(cls, url: str, store: ObjectStore) -> FilePlaces:
        """Return the one place of a file whose copies are of no interest."""
        return cls([FilePlace(None, url, "", lambda: store)], KnownPlaces())

    async def load(self, load: Callable[[FilePlace, float | None], Awaitable[T]]) -> T:
        """Return what `load` makes of a place: it fetches what it needs there within so many seconds (None: without a
        limit), and checks it. Raises what the file's own place raises; StoreUnavailableError where that has no such
        file, or none that is right, and a mirror cannot be asked."""
        if len(self._places) == 1:
            return await load(self._own, None)
        own_error: Exception | None = None
        passed_over: list[FilePlace] = []
        lost: list[Exception] = []
        for place in self._places:
            if place.key in self._without or self._known.is_away(place):
                passed_over += [place] if place is not self._own else []
                continue
            try:
                found = await load(place, ANSWER_S)
            except _NOT_GIVEN as error:
                if place is not self._own:
                    self._without |= set() if is_place_lost(error) else {place.key}
                    lost += [error] if is_place_lost(error) else []
                elif not isinstance(error, asyncio.TimeoutError):
                    own_error = error
                self._known.failed(place, error)
                self._reads_from.fell_over()
                continue
            return self._given(place, found)
        if own_error is None:
            try:
                return self._given(self._own, await load(self._own, None))
            except _NOT_GIVEN as error:
                own_error = error
        if isinstance(own_error, StoreUnavailableError):
            raise own_error  # it is waited for in any case
        # What it says now may be the last word on records: so whoever was passed over, or had no such copy then, is
        # asked before it is said.
        for place in passed_over:
            try:
                found = await load(place, ANSWER_S)
            except _NOT_GIVEN as error:
                self._known.failed(place, error)
                lost += [error] if is_place_lost(error) else []
                continue
            self._without.discard(place.key)
            return self._given(place, found)
        if any(_is_waited_for(error, own_error) for error in lost):
            raise StoreUnavailableError(
                f"the file's own place does not give it ({own_error}), and a mirror that may have it cannot be asked",
                path=self._own.url,
            ) from own_error
        raise own_error

    def _given(self, place: FilePlace, found: T) -> T:
        self._known.answered(place)
        if place.mirror is not None:
            self._reads_from.from_mirror()
        return found


def _is_waited_for(lost: Exception, own_error: Exception) -> bool:
    """Return whether a mirror that could not be asked is waited for, by what it said and what the file's own place
    said. Where that has no such file, or a damaged one, its records would be given up or passed over: so any mirror is
    waited for. Where it only refuses nothing is given up, and a mirror that refuses too will not come back by itself.
    """
    return not is_place_lost(own_error) or isinstance(lost, StoreUnavailableError | asyncio.TimeoutError)


def is_place_lost(error: BaseException) -> bool:
    """Return whether an error says something of a whole place, and not of one file there."""
    return not isinstance(error, ObjectNotFoundError | RangeShortError | CorruptDataError)


async def within(limit_s: float | None, wanted: int, request: Callable[[], Awaitable[T]]) -> T:
    """Return what a request for so many bytes gives. Raises asyncio.TimeoutError where that takes too long."""
    if limit_s is None:
        return await request()
    return await asyncio.wait_for(request(), limit_s + wanted / SLOWEST_BYTES_S)
