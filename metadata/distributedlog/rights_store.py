"""`RightsStore`: the rules of access of a namespace, in `NS/.dlspark-rights`; `RightsWatch`: those that hold now.

All rules are the data of one znode (`metadata.security.rights.encode_rules`, JSON). So a change is one conditional
update: who read version 7 writes version 8 or starts anew from what is there now, and of two operators who change rules
at once both are heard. What was asked for is said as rules to add and to remove, never as a whole list, so that a
change may be made again after a lost answer.

A proxy keeps a `RightsWatch`. It looks when ZooKeeper says that the znode has changed, and every POLL_S besides: a
watch may be lost with a connection, or with what stands in between. Before it looks it has its server catch up with the
others (`sync`), else a server that is behind could keep a withdrawn right alive. So a change holds at every proxy that
reaches ZooKeeper within POLL_S and the time of two requests.

Fault model. The znode is damaged, of a newer version, or not to be read by this session: nothing is allowed any more
but to super users, who are in the proxy's own settings and can mend it; this is logged, and is the reason of each
refusal. There is no znode: there are no rules, which allows nothing either. ZooKeeper does not answer: what was known
last holds for `max_age_s`, then nothing is allowed until it answers again. A znode that was deleted and made anew is
told from the old one by the transaction that made it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    DistributedLogError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from metadata.foundation.tasks import end_tasks
from metadata.retry import MAX_REPEATS, repeat
from metadata.security.rights import Rule, RuleBook, RuleSet, Subject, decode_rules, encode_rules
from metadata.store import MetadataStore, SessionState, WatchEvent, join
from metadata.zookeeper.session import call_safely

_LOG: Final = logging.getLogger(__name__)

RIGHTS: Final = ".dlspark-rights"
"""The child of a namespace that has its rules."""
POLL_S: Final = 3.0
AGAIN_S: Final = 1.0
"""It is looked again so long after a look that failed."""
ANSWER_S: Final = 3.0
"""A look that takes longer has failed. With POLL_S and a second one it is below the 10 s that are promised."""
MAX_AGE_S: Final = 60.0
"""What is known holds so long without an answer of ZooKeeper, unless a setting says otherwise."""
LARGE_BYTES: Final = 64 * 1024
"""More is read in a thread: ten thousand rules take half a second."""

_AWAY: Final = (MetadataUnavailableError, OutcomeUnknownError, asyncio.TimeoutError)


class RightsStore:
    """Which rules has a namespace, and how are they changed?

    Args:
        store: the session.
        namespace_path: the namespace's znode.
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self.store = store
        self.path = join(namespace_path, RIGHTS)

    async def read(self) -> RuleSet:
        """Return the rules; none where there is no znode. Raises CorruptDataError, NoAuthError."""
        return (await repeat(self.store, self._read))[0]

    async def _read(self) -> tuple[RuleSet, int | None]:
        await self.store.sync(self.path)
        try:
            data, stat = await self.store.get(self.path)
        except NoNodeError:
            return RuleSet(), None
        return decode_rules(data, self.path), stat.version

    async def change(self, *, add: Iterable[Rule] = (), remove: Iterable[Rule] = ()) -> RuleSet:
        """Take rules away, add others, and return what there is then; all of it or nothing is done. Safe to repeat.

        Raises InvalidRuleError where there would be too many, CorruptDataError where those that are there cannot be
        read, NoAuthError; nothing was changed then.
        """
        added, removed = tuple(add), tuple(remove)
        return await self._update(lambda rules: rules.removed(removed).added(added))

    async def mend(self, rules: RuleSet) -> RuleSet:
        """Have these be all rules, where those that are there cannot be read: else a change would say more, and could
        not take back what another operator has said meanwhile. Safe to repeat.

        Raises CallerError where they can be read.
        """
        data = encode_rules(rules)

        async def store() -> None:
            try:
                before, _ = await self._read()
            except CorruptDataError:
                pass
            else:
                if before == rules:
                    return  # by our own first try, whose answer was lost
                raise CallerError(
                    "the rules of access are not damaged; nothing was changed",
                    path=self.path,
                    advice="Add and remove rules: dlspark acl add, dlspark acl remove",
                )
            stat = await self.store.exists(self.path)
            await self._store(data, stat.version if stat is not None else None)

        await repeat(self.store, store)
        return rules

    async def _update(self, changed: Callable[[RuleSet], RuleSet]) -> RuleSet:
        async def update() -> RuleSet:
            for _ in range(MAX_REPEATS):
                before, version = await self._read()
                after = changed(before)
                if after == before:
                    return after  # by our own first try, whose answer was lost, or by another operator
                try:
                    await self._store(encode_rules(after), version)
                except BadVersionError:
                    continue  # another operator was first: begin anew from what is there now
                return after
            raise BadVersionError(
                "the rules are changed by others all the time; nothing was changed", path=self.path, advice="Try again"
            )

        return await repeat(self.store, update)

    async def _store(self, data: bytes, version: int | None) -> None:
        """Store what follows from `version`, None where there was nothing. Raises BadVersionError."""
        try:
            if version is None:
                await self.store.create(self.path, data)
            else:
                await self.store.put(self.path, data, version)
        except (NodeExistsError, NoNodeError) as error:
            if isinstance(error, NoNodeError) and version is None:
                raise  # the namespace itself is not there
            raise BadVersionError("the rules were changed at the same time", path=self.path) from error


class RightsWatch:
    """Which rules hold now? Kept up to date from `start` to `close`; all calls come from one event loop.

    Args:
        rights: where they are.
        super_users: may do everything, whatever there is.
        max_age_s: how long what is known holds while ZooKeeper does not answer.
        poll_s: how often it looks.
    """

    def __init__(
        self,
        rights: RightsStore,
        super_users: Iterable[Subject],
        *,
        max_age_s: float = MAX_AGE_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._store = rights.store
        self._path = rights.path
        self._super_users = tuple(super_users)
        self._max_age_s = max_age_s
        self._poll_s = poll_s
        self.book = self._broken("they were not read yet")
        """The rules that hold now."""
        self.on_change: Callable[[], None] | None = None
        """Called when other rules hold."""
        self._known: tuple[int, int] | None = None
        """Which znode, and which version of it, `book` was made of; (0, 0) where there was none."""
        self._answered_s = 0.0
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def _broken(self, why: str) -> RuleBook:
        return RuleBook(RuleSet(), self._super_users, broken=why)

    async def start(self) -> None:
        """Look for the first time, and from then on. Raises MetadataUnavailableError or OutcomeUnknownError where
        ZooKeeper does not answer; damaged rules are no error: they allow nothing."""
        self._answered_s = asyncio.get_running_loop().time()
        await repeat(self._store, self._look)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Look no longer. Idempotent."""
        if self._task is not None:
            await end_tasks([self._task], drop_errors=True)

    def _changed(self, _event: WatchEvent) -> None:
        self._heard.set()

    async def _run(self) -> None:
        while self._store.state is not SessionState.CLOSED:
            try:
                await asyncio.wait_for(self._heard.wait(), self._poll_s)
            except asyncio.TimeoutError:
                pass
            self._heard.clear()
            try:
                await asyncio.wait_for(self._look(), ANSWER_S)
            except _AWAY as error:
                self._unanswered(error)
                # A session that is lost fails at once, and sets watches off.
                await asyncio.sleep(min(AGAIN_S, self._poll_s))
                # Not only at the next poll: a change that came meanwhile is to hold within 10 seconds.
                self._heard.set()
            except Exception as error:
                # A mistake of ours must not end the watch in silence, and leave withdrawn rights alive.
                _LOG.exception("the rules of access were not read")
                self._known = None
                self._use(self._broken(type(error).__name__))

    async def _look(self) -> None:
        """Have `book` be what is there. Raises where ZooKeeper does not say."""
        try:
            await self._store.sync(self._path)
            stat = await self._store.exists(self._path, self._changed)
            known = (stat.czxid, stat.version) if stat is not None else (0, 0)
            if known != self._known:
                await self._read(known)
        except NoNodeError:
            self._heard.set()  # it went between the two requests: look again
        except (CallerError, CorruptDataError) as error:
            # Not to be read (NoAuthError), or not understood. Looked at again all the same, until it is mended.
            self._known = None
            self._use(self._broken(error.message))
        self._answered_s = asyncio.get_running_loop().time()

    async def _read(self, known: tuple[int, int]) -> None:
        if known == (0, 0):
            self._use(RuleBook(RuleSet(), self._super_users))
            self._known = known
            return
        data, stat = await self._store.get(self._path)
        book = await asyncio.to_thread(self._book, data) if len(data) > LARGE_BYTES else self._book(data)
        # By what was read: another version than was looked for, where it changed in between.
        self._known = (stat.czxid, stat.version)
        self._use(book)

    def _book(self, data: bytes) -> RuleBook:
        return RuleBook(decode_rules(data, self._path), self._super_users)

    def _unanswered(self, error: BaseException) -> None:
        for_s = asyncio.get_running_loop().time() - self._answered_s
        if for_s > self._max_age_s:
            said = error.message if isinstance(error, DistributedLogError) else f"no answer within {ANSWER_S:g} s"
            self._known = None
            self._use(self._broken(f"ZooKeeper has not answered for more than {self._max_age_s:g} s ({said})"))

    def _use(self, book: RuleBook) -> None:
        before, self.book = self.book, book
        if (before.rules, before.broken) == (book.rules, book.broken):
            self.book = before  # with all that it remembers
            return
        if book.broken is not None:
            _LOG.error(
                "the rules of access at %s cannot be used: %s. Nothing is allowed but to super users until they can",
                self._path,
                book.broken,
            )
        else:
            _LOG.info("%d rules of access hold from now on, of %s", len(book.rules), self._path)
        if self.on_change is not None:
            call_safely(self.on_change)
