"""`DistributedLock`: the lock of a log's writer (or of a reader), shared with upstream's clients.

Members are ephemeral sequential znodes below the lock's path; the first one owns it, each other one watches the one
before it:

    member_<form-encoded client id>_s<session id, width 10>_<10-digit sequence>      data: the client id

    INIT -> ACQUIRING -> HELD -> (session expired) LOST -> HELD | FAILED;      any -> CLOSED

A lock lost with its session is acquired again in the background, without waiting, until that worked or another client
has it; meanwhile its holder may go on, because fencing and conditional sets keep the log safe. The rules are
those of docs/reference/znodes.md#lock-protocol. One of them is not upstream's: a timeout of 0 **or less** tries once.

A member without a lock object that waits for it would block all other clients until its session ends. So this module
knows the live members of each store: what else carries our session is left over from a lost answer, and is removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import ClassVar, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from metadata.distributedlog.lock_members import LockId, encode_client_id, member_prefix, parse_member, sequence_of
from metadata.distributedlog.owner_names import how_to_free, is_proxy, what_to_do
from metadata.foundation.errors import (
    CallerError,
    DistributedLogError,
    MetadataUnavailableError,
    NoNodeError,
    NotAppliedError,
    OutcomeUnknownError,
)
from metadata.foundation.tasks import end_tasks, undisturbed
from metadata.foundation.times import short_time
from metadata.retry import MAX_REPEATS, REPEAT_TIMEOUT_MS, reconnected, repeat
from metadata.store import Delete, MetadataStore, Op, SessionState, Stat, WatchEvent, check_path, join

_LOG: Final = logging.getLogger(__name__)
RELEASE_TIMEOUT_MS: Final = 10_000
_REACQUIRE_PAUSE_S: Final = 0.5
SAID_AFTER_S: Final = 5.0
SAID_EVERY_S: Final = 30.0
"""How long a lock is waited for before that is logged, with its owner, and how often it is logged again."""


class LockingError(NotAppliedError):
    """The lock is not held."""

    code: ClassVar[int] = 504


class LockClosedError(LockingError):
    """The lock was released; make a new one."""


class LockReplacedError(LockingError):
    """The lock's znode is not the one that was locked: what it protected is gone, another thing has its name."""


class LockSessionExpiredError(LockingError):
    """The session expired while the lock was being acquired; its place in the queue is gone."""


class OwnershipAcquireFailedError(NotAppliedError):
    """Another client, `owner`, has the lock."""

    code: ClassVar[int] = 302

    def __init__(self, owner: str, *, path: str, log: str | None = None, kept: str | None = None) -> None:
        """Make the error; `kept` names what was not done to the log, of what would have taken it away from its
        owner.
        """
        super().__init__(
            f"the lock is held by {owner}" if kept is None else f"the lock is held by {owner}; {kept}",
            path=path,
            log=log,
            advice=what_to_do(owner) if kept is None else how_to_free(owner),
        )
        self.owner = owner


def _span(seconds: float) -> str:
    """Return a time in the unit that fits: a standby's wait of a day is no number of seconds to people."""
    for unit, length_s in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


class _State(Enum):
    INIT = "init"
    ACQUIRING = "acquiring"
    HELD = "held"
    LOST = "lost"
    FAILED = "failed"
    CLOSED = "closed"


class _Member(NamedTuple):
    path: str
    session_id: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


_Queue: TypeAlias = tuple[list[str], Stat]
"""Members as they were listed, and the stat of the lock's own znode."""


class _Registry:
    """The members of one store that belong to a lock object of this process."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self._entering: Counter[str] = Counter()

    @contextmanager
    def entering(self, lock_path: str) -> Iterator[None]:
        """Keep every member for the length of the block, in which one of this lock is created: its path is not known
        yet, so no member may be disowned.
        """
        self._entering[lock_path] += 1
        try:
            yield
        finally:
            self._entering[lock_path] -= 1
            if not self._entering[lock_path]:
                del self._entering[lock_path]

    def disowns(self, lock_path: str, name: str) -> bool:
        """Return True where the member certainly belongs to no lock object of this process."""
        return lock_path not in self._entering and join(lock_path, name) not in self.live


_REGISTRIES: Final[WeakKeyDictionary[MetadataStore, _Registry]] = WeakKeyDictionary()


class DistributedLock:
    """Do we own the log, or which client does? One object is acquired once; not for use by several tasks at a time.

    Args:
        path: the parent of the lock's members, which must exist.
        on_reacquired: called with the seconds that it took to get a lost lock back, and True if it did.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        client_id: str,
        *,
        on_reacquired: Callable[[float, bool], None] | None = None,
    ) -> None:
        check_path(path)
        self._on_reacquired = on_reacquired
        self._store = store
        self._path = path
        self._client_id = client_id
        self._state = _State.INIT
        self._member: _Member | None = None
        self._remembered: set[LockId] = set()
        self._failure: DistributedLogError | None = None
        self._creation = -1
        self._reacquiring: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._registry = _REGISTRIES.setdefault(store, _Registry())
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def held(self) -> bool:
        """True while we own the lock, by what this session has heard; `confirmed` asks the store."""
        return self._state is _State.HELD

    @property
    def member_path(self) -> str:
        """Our member's znode: a transaction that checks it is applied only while we own the lock (I7). Raises
        LockingError."""
        if self._state is not _State.HELD or self._member is None:
            raise self._not_held_error()
        return self._member.path

    async def waiting(self) -> list[str]:
        """Return the clients in line behind us, the next owner first. Raises LockingError unless we own the lock."""
        ours = self.member_path.rpartition("/")[2]
        names = await self._members()
        if ours not in names:  # The session expired, which it has not heard yet: whose line that is now, is not ours.
            raise self._not_held_error()
        found = [await self._identify(name) for name in names[names.index(ours) + 1 :]]
        return [one.client_id for one in found if one is not None]  # None: it has just left

    def release_op(self) -> Delete:
        """Give the lock up within a transaction, which fails unless we own the lock. Raises LockingError.

        Once the transaction has been applied, call `deleted`, and `release` afterwards as in any other case.
        """
        return Delete(self.member_path)

    def deleted(self, op: Op) -> None:
        """Note that a transaction with this `release_op` was applied: unless we own another member since, none
        is left.
        """
        if self._member is not None and self._member.path == op.path:
            self._forget()

    # ---- acquire ----------------------------------------------------------------------------------------------------

    async def acquire(self, timeout_ms: int, asked: Callable[[], None] | None = None) -> bool:
        """Take the lock, waiting at most `timeout_ms`; 0 or less tries once, without queueing behind another owner.

        `asked` may start tasks; what they ask of the store goes out behind the request for the lock. Returns whether
        that was answered under the lock: the first request for it was granted, and no other member was before ours. A
        session's requests are answered in their order.

        Raises OwnershipAcquireFailedError with the owner's name, LockSessionExpiredError, NoNodeError where the lock's
        path does not exist. After any error we own nothing and may try again.
        """
        if self._state is _State.CLOSED:
            raise LockClosedError("the lock was released", path=self._path)
        if self._state is not _State.INIT:
            raise CallerError(f"the lock is {self._state.value} already", path=self._path)
        self._state = _State.ACQUIRING
        self._creation = -1
        self._unsubscribe = self._store.on_session(self._session_changed)
        try:
            return await self._acquire(timeout_ms, asked)
        except BaseException:
            if self._state is not _State.CLOSED:
                self._close(_State.INIT)
            raise

    async def _acquire(self, timeout_ms: int, asked: Callable[[], None] | None = None) -> bool:
        """Reach the state HELD, or raise and leave no member. Returns what `acquire` does."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000 if timeout_ms > 0 else None
        if deadline is None:
            owner = await self._foreign_owner()
            if owner is not None:
                # No node was created: others would see a longer queue (docs/reference/znodes.md#lock-protocol).
                raise OwnershipAcquireFailedError(owner, path=self._path)
        looking: list[asyncio.Task[_Queue]] = []

        def ask_behind() -> None:
            # One round trip for both: usually no client holds the lock, and the first look settles it.
            looking.append(asyncio.get_running_loop().create_task(self._list()))
            if asked is not None:
                asked()

        try:
            member, tries = await self._enter(ask_behind)
            try:
                self._ensure_current(member)
                looks = await self._claim(member, deadline, looking)
                self._ensure_current(member)  # it may have gone with its session while the answer was on its way
            except BaseException:
                await undisturbed(self._drop(member))
                raise
        finally:
            await end_tasks(looking, drop_errors=True)
        self._member = member
        self._remembered = {LockId(self._client_id, member.session_id)}
        self._state = _State.HELD
        # After a second try or look, what `asked` sent may have been answered before we owned the lock.
        return tries == looks == 1

    async def _foreign_owner(self) -> str | None:
        """Return the client that owns the lock now, unless that is us or the remains of us."""
        while True:
            names = await self._members()
            if not names:
                return None
            owner = await self._identify(names[0])
            if owner is None:
                continue  # gone since it was listed
            if owner in self._remembered or self._is_remains(names[0], owner):
                return None
            return owner.client_id

    async def _enter(self, asked: Callable[[], None]) -> tuple[_Member, int]:
        """Create our member, also where we are cancelled meanwhile: then to delete it again. How many tries it took."""
        creating = asyncio.get_running_loop().create_task(self._create_member(asked))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            await undisturbed(self._leave(creating))
            raise

    async def _leave(self, creating: asyncio.Task[tuple[_Member, int]]) -> None:
        done, _ = await asyncio.wait({creating}, timeout=RELEASE_TIMEOUT_MS / 1000)
        if not done:
            creating.cancel()
        elif not creating.cancelled() and creating.exception() is None:
            await self._drop(creating.result()[0])

    async def _create_member(self, asked: Callable[[], None]) -> tuple[_Member, int]:
        """Create our member. A lost answer may leave one that no lock object knows: it is removed first."""
        doubt: OutcomeUnknownError | None = None
        for tries in range(1, MAX_REPEATS + 1):
            if not await reconnected(self._store, REPEAT_TIMEOUT_MS):
                break
            session_id = self._store.session_id
            if doubt is not None:
                await self._remove_remains()  # or we would queue behind ourselves until the session ends
            prefix = join(self._path, member_prefix(self._client_id, session_id))
            if tries == 1:
                asked()  # The tasks it starts run once this one waits, which is when the request is on its way.
            try:
                with self._registry.entering(self._path):
                    data = self._client_id.encode("utf-8")
                    path = await self._store.create(prefix, data, ephemeral=True, sequential=True)
                    self._registry.live.add(path)  # before `entering` ends: it must never look left over
            except OutcomeUnknownError as error:
                doubt = error
                await asyncio.sleep(0)
            except MetadataUnavailableError:
                await asyncio.sleep(0)
            else:
                return _Member(path, session_id), tries
        raise doubt or MetadataUnavailableError("the lock could not be asked for", path=self._path)

    async def _claim(self, member: _Member, deadline: float | None, looking: Sequence[asyncio.Task[_Queue]]) -> int:
        """Wait until `member` is first; without a deadline it must be so at once. How many looks it took."""
        looks = 0
        while True:
            looks += 1
            if looks == 1 and looking:
                names = self._in_order(await looking[0])
                if member.name not in names:
                    continue  # A listing with our member is younger than it; one without may be older.
            else:
                names = await self._members()
            self._ensure_current(member)
            if member.name not in names:
                raise LockingError("our member of the lock's queue was deleted by another client", path=member.path)
            position = names.index(member.name)
            if position == 0:
                return looks
            owner, before = await self._identify(names[0]), await self._identify(names[position - 1])
            if owner is None or before is None:
                continue
            if owner in self._remembered and before == owner:
                return looks + 1  # left over from our expired session: the server deletes it with that session
            if self._is_remains(names[0], owner) or self._is_remains(names[position - 1], before):
                await self._remove_remains()
                continue
            self._ensure_current(member)
            if deadline is None:
                raise OwnershipAcquireFailedError(owner.client_id, path=self._path)
            saying = asyncio.get_running_loop().create_task(self._say_waiting(deadline))
            try:
                if not await self._wait_for(names[position - 1], member, deadline):
                    raise OwnershipAcquireFailedError(owner.client_id, path=self._path)
            finally:
                await end_tasks([saying], drop_errors=True)

    async def _say_waiting(self, deadline: float) -> None:
        """Log now and then for whom this waits, and since when that one has the lock."""
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), SAID_AFTER_S
        while True:
            await asyncio.sleep(pause)
            pause = SAID_EVERY_S
            names = await self._members()
            owner = await self._identify(names[0]) if names else None
            stat = await self._store.exists(join(self._path, names[0])) if names else None
            if owner is None or stat is None:
                continue  # it has just given it up
            _LOG.warning(
                "%s has the lock %s since %s; waiting for it, %s so far and up to %s more%s",
                owner.client_id,
                self._path,
                short_time(stat.ctime_ms),
                _span(loop.time() - began),
                _span(max(deadline - loop.time(), 0)),
                f". {what_to_do(owner.client_id)}" if is_proxy(owner.client_id) else "",
            )

    async def _wait_for(self, name: str, member: _Member, deadline: float) -> bool:
        """Wait until `name` may be gone; False when the time is up."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake(event: WatchEvent) -> None:
            if not woken.done():
                woken.set_result(None)

        path = join(self._path, name)
        if await repeat(self._store, lambda: self._store.exists(path, wake)) is None:
            return True
        self._ensure_current(member)  # nothing would wake us from here on if the session or the lock ended meanwhile
        self._woken = woken
        try:
            await asyncio.wait_for(woken, max(deadline - loop.time(), 0))
        except asyncio.TimeoutError:
            return False
        finally:
            self._woken = None
        return True

    def _ensure_current(self, member: _Member) -> None:
        if self._state is _State.CLOSED:
            raise LockClosedError("the lock was released while it was being acquired", path=self._path)
        if self._store.session_id != member.session_id or self._store.state is SessionState.EXPIRED:
            raise LockSessionExpiredError(
                "the session expired while the lock was being acquired", path=self._path, advice="Acquire it again"
            )

    # ---- members ----------------------------------------------------------------------------------------------------

    async def _members(self) -> list[str]:
        """Return names in order of the queue. Raises LockReplacedError where the lock is not the one that was
        acquired."""
        return self._in_order(await self._list())

    async def _list(self) -> _Queue:
        return await repeat(self._store, lambda: self._store.children(self._path))

    def _in_order(self, queue: _Queue) -> list[str]:
        names, stat = queue
        # The same path with another creation is another log's lock: being first in its queue protects nothing here.
        if self._creation not in (-1, stat.czxid):
            raise self._replaced_error()
        self._creation = stat.czxid
        return sorted(names, key=sequence_of)

    def _replaced_error(self) -> LockReplacedError:
        return LockReplacedError(
            "what the lock protected was deleted or renamed; the lock that is there now protects something else",
            path=self._path,
        )

    async def _identify(self, name: str) -> LockId | None:
        """Return who a member belongs to: by its name, else by its data and its session; None where it is gone."""
        known = parse_member(name)
        if known is not None:
            return known
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(join(self._path, name)))
        except NoNodeError:
            return None
        return LockId(data.decode("utf-8", "replace"), stat.ephemeral_owner)

    def _is_remains(self, name: str, owner: LockId) -> bool:
        """Return True for a member of our own client and session that belongs to no lock object.

        Upstream claims past any member of its own client and session. Here another lock object of this process is an
        owner like any other, so that two writers in one process exclude each other too.
        """
        ours = owner == LockId(self._client_id, self._store.session_id)
        return ours and self._registry.disowns(self._path, name)

    async def _remove_remains(self) -> None:
        """Delete members of our client and session that belong to no lock object of this process."""
        # The server that answers may lag behind the one that applied the creation whose answer was lost.
        await repeat(self._store, lambda: self._store.sync(self._path))
        for name in await self._members():
            path = join(self._path, name)
            if not name.startswith(f"member_{encode_client_id(self._client_id)}_s"):
                continue
            stat = await repeat(self._store, lambda path=path: self._store.exists(path))  # type: ignore[misc]
            ours = stat is not None and stat.ephemeral_owner == self._store.session_id
            if ours and self._registry.disowns(self._path, name):
                await self._delete(path)

    async def _delete(self, path: str) -> None:
        async def delete() -> None:
            try:
                await self._store.delete(path)
            except NoNodeError:
                pass

        await repeat(self._store, delete, RELEASE_TIMEOUT_MS)

    async def _drop(self, member: _Member) -> None:
        """Leave the queue. Where that fails, the member goes with its session."""
        try:
            await self._delete(member.path)
        except DistributedLogError as error:
            _LOG.warning("lock member %s was not deleted, it ends with its session: %s", member.path, error)
        finally:
            self._registry.live.discard(member.path)

    # ---- losing it --------------------------------------------------------------------------------------------------

    async def ensure_held(self) -> None:
        """Return while the lock is held; wait where it was lost and is being acquired again. This is a holder's check.

        Raises OwnershipAcquireFailedError once another client has it, and LockingError where it was never acquired,
        was released, or is gone with what it protected.
        """
        if self._state in (_State.HELD, _State.LOST):
            return
        raise self._failure or self._not_held_error()

    async def confirmed(self) -> bool:
        """Return whether the store itself says, after this call, that we own the lock."""
        member = self._member
        if self._state is not _State.HELD or member is None:
            return False

        async def look() -> bool:
            # A server that lags behind would still show the member of a session that has ended: a deposed owner would
            # take itself for the owner and recover the log once more (I7).
            await self._store.sync(member.path)
            return await self._store.exists(member.path) is not None

        return await repeat(self._store, look) and self._member is member

    def _not_held_error(self) -> LockingError:
        kind = LockClosedError if self._state is _State.CLOSED else LockingError
        return kind(f"the lock is not held ({self._state.value})", path=self._path)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED and self._state is _State.HELD:
            self._forget()
            self._state = _State.LOST
            self._reacquiring = asyncio.get_running_loop().create_task(self._reacquire())
        elif state is SessionState.CLOSED and self._state is not _State.CLOSED:
            self._forget()
            self._close()

    def _forget(self) -> None:
        """Forget our member, which went with its session."""
        if self._member is not None:
            self._registry.live.discard(self._member.path)
            self._member = None

    async def _reacquire(self) -> None:
        """Try to acquire again until it worked, without waiting; another owner, or another lock, ends it for good."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._state is _State.LOST:
            try:
                if await reconnected(self._store, REPEAT_TIMEOUT_MS):
                    await self._acquire(0)  # never queued: once another client owned the log, what we know of it is old
            except (OwnershipAcquireFailedError, LockReplacedError) as error:
                self._failure = error
                self._state = _State.FAILED
            except NoNodeError:
                self._failure = self._replaced_error()
                self._state = _State.FAILED
            except DistributedLogError as error:
                _LOG.info("lock %s is not acquired again yet: %s", self._path, error)
                await asyncio.sleep(_REACQUIRE_PAUSE_S)
        if self._on_reacquired is not None and self._state in (_State.HELD, _State.FAILED):
            self._on_reacquired(loop.time() - began, self._state is _State.HELD)

    def _close(self, state: _State = _State.CLOSED) -> None:
        self._state = state
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._reacquiring is not None:
            self._reacquiring.cancel()
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def release(self) -> None:
        """Give the lock up, for good: a new acquisition needs a new object. Idempotent.

        Raises MetadataUnavailableError or an OutcomeUnknownError where ZooKeeper could not be reached; the member then
        goes with the session.
        """
        if self._state is not _State.CLOSED:
            self._close()  # before the member goes: an expiry from here on must not start another acquisition
        if self._reacquiring is not None:
            await end_tasks([self._reacquiring], drop_errors=True)
            self._reacquiring = None
        member, self._member = self._member, None
        if member is not None:
            try:
                await self._delete(member.path)
            finally:
                self._registry.live.discard(member.path)
