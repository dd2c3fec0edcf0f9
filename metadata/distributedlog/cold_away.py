"""Which places for cold files cannot be reached, as movers see it: `NS/.dlspark-cold/away/<session>-<mover>`.

A note is ephemeral: where no mover runs nobody knows, and nothing is said. It is for people, and decides nothing: a
mover goes by what it has found itself, for its way to a place is not another one's.

Fault model: a note may be older than what its mover has found since, and is gone with the mover's session; a session
that is replaced leaves none behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from metadata.distributedlog.cold_units import NAMESPACE
from metadata.foundation.errors import NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import ANY_VERSION, MetadataStore, join

_log = logging.getLogger(__name__)

AWAY: Final = "away"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AwayNote:
    """Which place could a mover not reach when it asked last?

    Args:
        worker: the mover, for people.
        root: the address that those of all files there begin with.
        options: what the place is opened with, as the logs have it that name it.
        since_ms: when the mover found that first, milliseconds since the epoch.
    """

    worker: str
    root: str
    options: Mapping[str, str]
    since_ms: int


class AwayNotes:
    """What is noted in a namespace of places that cannot be reached? One for each mover.

    Args:
        store: the session.
        namespace_path: the namespace's znode.
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self._folder = join(namespace_path, NAMESPACE, AWAY)
        self._mover = uuid.uuid4().hex[:16]
        self._told: tuple[str, bytes | None] | None = None
        """The znode that may be there, and what it holds; None where that is not known."""

    async def tell(self, notes: Sequence[AwayNote]) -> None:
        """Have these be all that this mover notes; nothing is asked where they are already. The namespace has its cold
        storage's znode by then (`ColdStore.namespace_id`)."""
        data = _encoded(notes) if notes else b""
        # By the session: an ephemeral znode of an earlier one goes when the servers say so, which may be later than
        # this, and would take the present note with it if it had its name.
        path = join(self._folder, f"{self._store.session_id:x}-{self._mover}")
        if (path, data) == self._told or (not data and self._told is None):
            return
        # Each change is in doubt until its answer is there: it may have been made though it failed here, and a note
        # that nobody takes back would say for as long as the session lives what is no longer so.
        former = self._told[0] if self._told is not None else path
        if former != path or not data:
            self._told = (former, None)
            await repeat(self._store, lambda: self._delete(former))
            self._told = None
        if data:
            self._told = (path, None)
            await repeat(self._store, lambda: self._put(path, data))
            self._told = (path, data)

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNodeError:
            pass  # with its session, or by our own first try

    async def _put(self, path: str, data: bytes) -> None:
        try:
            await self._store.put(path, data, ANY_VERSION)
            return
        except NoNodeError:
            pass
        try:
            await self._store.create(self._folder)
        except NodeExistsError:
            pass
        try:
            await self._store.create(path, data, ephemeral=True)
        except NodeExistsError:
            await self._store.put(path, data, ANY_VERSION)  # by our own first try, whose answer was lost

    async def all(self) -> list[AwayNote]:
        """Return what all movers note. What is no note that this dlspark knows is passed over: it is for people, and
        keeps nobody from the rest."""
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(self._folder))
        except NoNodeError:
            return []
        found = await asyncio.gather(*(self._read(join(self._folder, name)) for name in names))
        return [note for notes in found for note in notes]

    async def _read(self, path: str) -> list[AwayNote]:
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return []  # its mover has gone, or reaches everything again
        return _decoded_notes(data, path)


def _encoded(notes: Sequence[AwayNote]) -> bytes:
    places = [
        {
            "worker": one.worker,
            "root": one.root,
            "options": dict(one.options),
            "since": one.since_ms,
        }
        for one in notes
    ]
    return json.dumps({"v": VERSION, "places": places}, separators=(",", ":")).encode()


def _decoded_notes(data: bytes, path: str) -> list[AwayNote]:
    try:
        fields = json.loads(data)
        if fields["v"] != VERSION:
            raise ValueError("another version")
        return [
            AwayNote(
                str(one["worker"]),
                str(one["root"]),
                {str(name): str(value) for name, value in one["options"].items()},
                int(one["since"]),
            )
            for one in fields["places"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _log.info("%s notes no places that this dlspark knows, and is passed over (%r): %r", path, error, data[:120])
        return []
