"""The mark of the owner: which ZooKeeper's namespace may delete below `{root}/{namespace id}/`?

    {root}/{namespace id}/owner/{number}-{owner}

A namespace whose znodes are copied into another ZooKeeper keeps its id, so both have the same folder, and each takes
for dead what only the other one names. So the folder says whose it is. An owner is the transaction that made
`NS/.dlspark-cold`, and its moment: a copy of znodes is made by other transactions, later. (The number of a transaction
alone is a counter: two copies that are made by one script may have the same.) The mark with the highest number counts;
where two have it, which were made at the same time, nobody is the owner until the next one. Whoever moves, sweeps or
deletes looks at it before, makes the first one where there is none, and refuses to go on where it names another.
`take_over_place` makes the next one; the former owner finds it before it deletes anything, and within `OWNED_FOR_S`
before it moves, and is refused then.

No store has to honour a condition, and an answer that was lost is found out by listing again. Marks are never changed
or deleted; they are some hundred bytes, one for each take-over.

A log may have files below a former root, which has a mark of its own. Where that is another's (`may_delete`), a file
there is as a borrowed one: its mark in this ZooKeeper goes when it is due, the object stays.

What it does not tell apart: a ZooKeeper that was put back from its own snapshots, or moved to other hosts with them, is
the same owner and goes on, as it must; so two that run at the same time from one copy of the disks are one owner, too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlspark.cold.moving.stores import PlaceStores, place_of
from dlspark.core.services import Services
from dlspark.core.write_lock import default_client_id
from dlspark.objects.errors import ObjectExistsError, ObjectOutcomeUnknownError
from dlspark.objects.store import ObjectStore
from metadata.distributedlog.cold_store import ColdStore
from metadata.foundation.errors import CallerError, NotAppliedError

_logger = logging.getLogger(__name__)

OWNED_FOR_S: Final = 30.0
"""A process that has seen its own mark looks again after so long, and before it deletes."""
_FOLDER: Final = "owner"
_MARK: Final = re.compile(r"(?P<number>[0-9]{6})-(?P<owner>[0-9a-f-]+)")
"""The owner in whatever form: one that is not ours is another."""
_ADVICE: Final = (
    "If this namespace is a copy, give it another coldStoragePath before it moves anything. If the other one is gone "
    "for good, for example after its znodes were brought back by a copy, run dlspark cold owner --take-over here"
)
_ADVICE_OF_TWO: Final = (
    "Stop the movers of the copy, and give it another coldStoragePath; then run dlspark cold owner --take-over in the "
    "namespace that the files are to belong to"
)


class PlaceOwnedElsewhereError(NotAppliedError):
    """Another ZooKeeper's namespace owns the folder for files: nothing was moved or deleted there."""


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """Whose is a folder? `number` counts take-overs, from 1; `owner` is None where two made this one at once."""

    number: int
    owner: str | None


async def check_owner(
    services: Services,
    cold: ColdStore,
    stores: PlaceStores,
    root: str,
    options: Mapping[str, str],
    *,
    before_deleting: bool = False,
) -> None:
    """Return where this namespace owns its folder below `root`; the first who asks makes the mark. Raises
    PlaceOwnedElsewhereError, and the store's errors.

    `before_deleting`: what was seen some seconds ago does not count. A file that is written beside another owner's is
    in nobody's way; one that is deleted may be the other's.
    """
    now_s = services.clock.elapsed_s()
    place = place_of(root, options)
    if not before_deleting and stores.owned_until_s.get(place, 0.0) > now_s:
        return
    namespace, mine = await cold.owner()
    store = stores.at(root, options)
    folder = f"{root}/{namespace}/"
    mark = await owner_of(store, folder)
    if mark is None:
        mark = await _marked(store, folder, 1, mine)
    if mark.owner != mine:
        stores.owned_until_s.pop(place, None)
        if mark.owner is None:
            raise PlaceOwnedElsewhereError(
                f"two copies of this namespace, in two ZooKeepers, made the mark number {mark.number} of this place at "
                "the same time, so it is nobody's; nothing was moved or deleted",
                path=folder,
                advice=_ADVICE_OF_TWO,
            )
        raise PlaceOwnedElsewhereError(
            f"the files of this namespace belong to another ZooKeeper's copy of it (owner {mark.owner}; this one is "
            f"{mine}), so nothing was moved or deleted",
            path=folder,
            advice=_ADVICE,
        )
    stores.owned_until_s[place] = now_s + OWNED_FOR_S


async def may_delete(
    services: Services,
    cold: ColdStore,
    stores: PlaceStores,
    url: str,
    options: Mapping[str, str],
    *,
    just_seen: bool = False,
) -> bool:
    """Return whether an object, there or not, is this namespace's to delete; it is told where it is another's. What
    lies in another namespace's folder was adopted by who said that the other one is gone. Raises the store's errors.

    Call it behind all that takes long, right before the deletion. `just_seen`: the caller has asked for this folder
    before and deletes one object after the other, so what was seen some seconds ago will do.
    """
    root, namespace, _log, _name = url.rsplit("/", 3)
    if namespace != await cold.namespace_id():
        return True
    try:
        await check_owner(services, cold, stores, root, options, before_deleting=not just_seen)
    except PlaceOwnedElsewhereError as error:
        _logger.warning("%s stays: %s", url, error)
        return False
    return True


async def take_over_place(
    services: Services, cold: ColdStore, stores: PlaceStores, root: str, options: Mapping[str, str]
) -> OwnerMark:
    """Make this namespace the owner of its folder below `root`; return the mark that counts now. Raises
    PlaceOwnedElsewhereError where another one did the same at this moment."""
    namespace, mine = await cold.owner()
    store = stores.at(root, options)
    folder = f"{root}/{namespace}/"
    mark = await owner_of(store, folder)
    if mark is None or mark.owner != mine:
        await _marked(store, folder, 1 if mark is None else mark.number + 1, mine)
    stores.owned_until_s.pop(place_of(root, options), None)
    await check_owner(services, cold, stores, root, options)
    found = await owner_of(store, folder)
    if found is None:
        raise CallerError("the mark that was just made is not there; look at what deletes in the bucket", path=folder)
    return found


async def owner_of(store: ObjectStore, folder: str) -> OwnerMark | None:
    """Return the mark that counts in a namespace's folder (its address with a slash at the end); None for none."""
    found: dict[int, set[str]] = {}
    async for info in store.list(f"{folder}{_FOLDER}/"):
        match = _MARK.fullmatch(info.url.rpartition("/")[2])
        if match is not None:
            found.setdefault(int(match["number"]), set()).add(match["owner"])
    if not found:
        return None
    number = max(found)
    # Two of one number: each of them may have been seen alone by who made it. Whichever were chosen, the other one may
    # go on for a while; so it is neither.
    return OwnerMark(number, next(iter(found[number])) if len(found[number]) == 1 else None)


def is_owner_mark(url: str) -> bool:
    """Return whether an object's address is that of a mark."""
    folder, _, name = url.rpartition("/")
    return folder.endswith(f"/{_FOLDER}") and _MARK.fullmatch(name) is not None


async def _marked(store: ObjectStore, folder: str, number: int, mine: str) -> OwnerMark:
    """Make a mark, and return the one that counts then."""
    text = {"owner": mine, "by": default_client_id(), "why": "see docs/cold.md"}
    out = await store.create(f"{folder}{_FOLDER}/{number:06d}-{mine}")
    try:
        await out.write(json.dumps(text).encode())
        await out.commit()
    except ObjectExistsError:
        pass  # by our own first try, or another process of this namespace
    except ObjectOutcomeUnknownError:
        if await owner_of(store, folder) is None:
            raise
    except BaseException:
        await out.abort()
        raise
    found = await owner_of(store, folder)
    if found is None:
        raise ObjectOutcomeUnknownError("The mark of the owner was written and is not listed; try again", path=folder)
    return found
