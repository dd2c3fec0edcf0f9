"""`ProxyEntries`: the entries of a task's spans through read proxies, which read each log once for all readers.

The driver plans from metadata as ever; the task needs to reach neither ZooKeeper nor storage nodes. It asks a read
proxy for the entries as they are stored, over frames, and decodes them as those of storage nodes. One poll is always
ahead of what is decoded, but not behind the last span.

Theory of operation. The plan says which entries of which ledger a span has. A proxy knows logs by name and positions
alone, so each entry that comes is compared with the plan: its ledger, and its id, which is one more than that before.
So nothing is passed over, repeated, or taken from a log that was created again under the name (I4, I12). A proxy that
is set to pass over damaged entries is found out by the hole. No entry is taken on trust but for its bytes, whose digest
the proxy has checked.

Fault model: proxies die, stop, refuse, or never were there. Any proxy can answer for the position at which the task is:
the next one is asked, or the same again, for `outageTimeout`; then the task fails, with the addresses that were asked.
What says that the records are gone, or damaged, is not asked again. Nothing that came before an error is yielded twice.

Nothing here may import gRPC, or what talks to ZooKeeper.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.runtime import Runtime
from dlspark.errors import (
    AlreadyTruncatedError,
    EndOfStreamError,
    OperationNotServedError,
    PositionGapError,
    ProxyUnreachableError,
    ReadError,
    SegmentNotFoundError,
    ServiceUnavailableError,
)
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.client.channels import Channels, Connect, ProxyChannel
from dlspark.serving.client.dispatch import Dispatcher
from dlspark.serving.client.reading import AsyncProxyReader, ReadRoutes
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.protocol.deliveries import StoredEntry
from dlspark.serving.protocol.operations import ReadForm
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.security.credentials import ClientCredentials
from dlspark.spark.errors import DeletedDataLossError, RecreatedDataLossError, TruncatedDataLossError
from dlspark.spark.options.proxies import PROXY
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.span_entries import PLAN_AGAIN
from dlspark.spark.source.task_tokens import TaskGrant, TaskToken, task_credentials
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import UnsupportedMetadataVersionError
from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    InvariantViolation,
    OutcomeUnknownError,
)
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.secrets import Secret
from metadata.security.settings import SecuritySettings
from storage_node.protocol.reading import MISSING
from storage_node.transport.tcp import TcpNetwork

READ_BYTES: Final = 1 << 20
"""About what one poll brings."""
LEAST_READ_BYTES: Final = 64 << 10
"""The same for spans that are expected to be shorter."""
POLL_MS: Final = 2_000
"""How long a proxy may keep a poll: what is asked for is there, but the proxy may not have read as far yet."""
STALL_S: Final = 60.0
"""How long proxies that answer may deliver nothing, where `outageTimeout` is shorter: a busy one lets readers of the
past wait."""
PASSED_ENTRIES: Final = 16
"""Entries behind one span and before the next that are passed over: a segment often ends in control records. Where
there are more, the next span is asked for anew."""
RETRY_S: Final = 0.2
"""Pause before a position is asked for again."""
ADVICE: Final = (
    "Start read proxies (`dlspark proxy read`; `dlspark proxy list` shows them), or leave out option proxy: tasks then "
    "read storage nodes"
)

_GONE: Final = (AlreadyTruncatedError, SegmentNotFoundError, *MISSING)
_FINAL: Final = (
    CallerError,
    CorruptDataError,
    PositionGapError,
    UnsupportedMetadataVersionError,
    InvariantViolation,
)
"""Another proxy would say the same. All else may pass."""
ProxyKey: TypeAlias = "tuple[tuple[str, ...], int, SecuritySettings, TaskGrant | None]"
"""Addresses, `outageTimeout` in milliseconds, by what a task proves itself, and what its token allows."""
KEPT_IDLE: Final = 8
"""Connections of queries that no task of this process reads by now: one with other logs needs other tokens."""


class TaskProxies:
    """The read proxies of a list, with this process's connections to them. For one event loop, on which it is made.

    Args:
        addresses: where they take frames.
        outage_ms: for how long proxies that cannot be reached are waited for; 0: each is asked once.
        connect: makes the connections; None: over frames.
        security: whom to believe, and by what certificate this process proves itself; None: no TLS, unless the
            environment says so.
        token: what tasks show; None: what the executor has.

    Raises SettingsError or NotAuthenticatedError where nothing can be proved.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        outage_ms: int,
        connect: Connect | None = None,
        *,
        security: SecuritySettings | None = None,
        token: TaskToken | None = None,
    ) -> None:
        self.addresses = tuple(addresses)
        self.outage_s = outage_ms / 1000
        self.open_readers = 0
        self.refused = False
        """A proxy does not believe what these show: who comes next, perhaps with another proof, gets others."""
        self._token = token
        # Over its own connections a test proves nothing.
        credentials = task_credentials(security or SecuritySettings(), token) if connect is None else None
        self._credentials = credentials
        settings = ThinClientSettings(
            name="dlspark-spark",
            request_timeout_ms=outage_ms or -1,
            max_redirects=-1 if outage_ms else len(self.addresses) - 1,
        )
        route = settings.read_route()
        self._dispatcher = Dispatcher(
            lambda connected, closed: Channels(
                connect or _over_frames(credentials), on_connected=connected, on_closed=closed
            ),
            route,
            settings.ownerships(),
            settings.limits(),
            settings.handshakes(),
        )
        self._routes = ReadRoutes(self._dispatcher, route, settings)
        self._routes.update([ProxyHost(address) for address in self.addresses], self._dispatcher.now())

    def reader(self, log: str, start: DLSN, until: DLSN, expected_bytes: int) -> AsyncProxyReader:
        """Return a reader of the entries of `log` from `start` on, which does not read ahead behind `until`."""
        size = min(max(expected_bytes, LEAST_READ_BYTES), READ_BYTES)
        reader = self._routes.reader(log, start, form=ReadForm.ENTRIES, max_bytes=size, poll_ms=POLL_MS)
        reader.ahead_until = until
        return reader

    def renew(self, token: TaskToken | None) -> None:
        """Show a task's token from now on, if it was made later than the one before."""
        if token is None or self._credentials is None or (self._token and token.made_at_s <= self._token.made_at_s):
            return
        self._token = token
        self._credentials.show(Secret(token.text))

    async def close(self) -> None:
        """End all readers and connections. Idempotent."""
        await self._routes.close()
        await self._dispatcher.close()


def _over_frames(credentials: ClientCredentials | None) -> Connect:
    network = TcpNetwork()

    async def connect(address: str, on_closed: Callable[[], None]) -> ProxyChannel:
        return await FramesClient.connect(network, address, on_closed=on_closed, credentials=credentials)

    return connect


class SharedProxies:
    """The proxies that this process's tasks read through: Spark uses its workers again, and connecting costs more than
    a small batch. Tasks of one query share connections, and the newest of its tokens. For one loop at a time."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._pid = 0
        self._made: OrderedDict[ProxyKey, tuple[TaskProxies, Callable[[], None]]] = OrderedDict()
        self._refused: list[tuple[TaskProxies, Callable[[], None]]] = []
        """No task gets them any more; those that have them still read."""
        self._ending: set[asyncio.Task[None]] = set()

    def get(
        self,
        runtime: Runtime,
        addresses: tuple[str, ...],
        outage_ms: int,
        security: SecuritySettings,
        token: TaskToken | None,
    ) -> TaskProxies:
        """Return those that a task is to ask; they are closed with `runtime`. Called on its loop."""
        if self._runtime is not runtime or self._pid != os.getpid():
            # After a fork, or once the runtime was closed, those of the old one are void.
            self._runtime, self._pid, self._made, self._ending = runtime, os.getpid(), OrderedDict(), set()
            self._refused = []
        key = (addresses, outage_ms, security, None if token is None else token.grant)
        found = self._made.get(key)
        if found is not None and found[0].refused:
            # Their connections answer with the refusal for a while, whatever this task would show.
            self._refused.append(self._made.pop(key))
            found = None
        if found is None:
            proxies = TaskProxies(addresses, outage_ms, security=security, token=token)
            found = self._made[key] = (proxies, runtime.on_close(proxies.close))
        self._made.move_to_end(key)
        found[0].renew(token)
        self._end_idle()
        return found[0]

    def _end_idle(self) -> None:
        """End connections of queries that were asked for longest ago, as each set of logs has a token of its own, and
        those that were refused."""
        idle = [key for key, (proxies, _) in self._made.items() if not proxies.open_readers]
        ended = [self._made.pop(key) for key in idle[: max(0, len(idle) - KEPT_IDLE)]]
        ended += [one for one in self._refused if not one[0].open_readers]
        self._refused = [one for one in self._refused if one[0].open_readers]
        for proxies, forget in ended:
            forget()
            ending = asyncio.ensure_future(proxies.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


SHARED_PROXIES: Final = SharedProxies()


class ProxyEntries:
    """The entries of one task's spans, through read proxies. As `SpanEntries`.

    Args:
        proxies: those that the task asks.
        spans: all that the task will ask for, in their order.
        token: what it shows them; None: what its executor has.
    """

    def __init__(self, proxies: TaskProxies, spans: Sequence[SegmentSpan], token: TaskToken | None = None) -> None:
        self._proxies = proxies
        self._token = token
        self._in_use = True
        proxies.open_readers += 1
        self._ends = {span.log: span.stop for span in spans}
        """The position at which this task ends reading, by log."""
        self._bytes = {log: sum(span.bytes for span in spans if span.log == log) for log in self._ends}
        self._reader: AsyncProxyReader | None = None
        self._behind = DLSN.INITIAL
        """The position behind the entry that was yielded last."""
        self._arrived: deque[StoredEntry] = deque()
        """Entries that have come and were not wanted yet."""

    async def entries(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, memoryview], None]:
        """Yield entries as `SpanEntries` does. Raises also ProxyUnreachableError or ReadError where proxies did not
        deliver in time."""
        reader = await self._reader_at(span)
        for entry_id in range(span.first_entry, span.last_entry + 1):
            if not self._arrived:
                try:
                    self._arrived.extend(await self._delivered(reader, span, entry_id))
                except EndOfStreamError as error:
                    if entry_id == span.first_entry:
                        raise _entry_gone_error(span, entry_id, error) from error
                    return  # The log was sealed in this segment: nothing behind the mark is a record.
            stored = self._arrived.popleft()
            # A proxy sends what its own reading gave. That it is this entry, of this ledger, is only checked here (I4).
            _check(span, entry_id, stored)
            self._behind = DLSN(span.lssn, entry_id + 1, 0)
            yield entry_id, memoryview(stored.payload)

    async def close(self) -> None:
        """Ask no further."""
        await self._end_reader()
        if self._in_use:
            self._in_use = False
            self._proxies.open_readers -= 1

    async def _end_reader(self) -> None:
        reader, self._reader = self._reader, None
        self._arrived.clear()
        if reader is not None:
            await reader.close()

    async def _reader_at(self, span: SegmentSpan) -> AsyncProxyReader:
        """Return the reader, with the span's first entry as the next to come: by itself, where it follows the span
        before."""
        reader = self._reader
        if reader is None or reader.name != span.log:
            await self._end_reader()
            reader = self._proxies.reader(span.log, span.start, self._ends[span.log], self._bytes[span.log])
            self._reader = reader
            return reader
        first = (span.lssn, span.first_entry)
        if first in (self._behind[:2], (self._behind.lssn + 1, 0)):
            for _ in range(PASSED_ENTRIES):
                if not self._arrived:
                    with suppress(EndOfStreamError):
                        self._arrived.extend(await self._delivered(reader, span, span.first_entry))
                if not self._arrived or (self._arrived[0].lssn, self._arrived[0].entry_id) != self._behind[:2]:
                    break
                if first == self._behind[:2]:
                    return reader
                self._arrived.popleft()
                self._behind = self._behind.next_entry
        if not self._arrived or (self._arrived[0].lssn, self._arrived[0].entry_id) != first:
            # Entries that have come lie elsewhere. To skip drops them in the reader too, and costs a request.
            self._arrived.clear()
            await reader.skip_to(span.start)
        return reader

    async def _delivered(self, reader: AsyncProxyReader, span: SegmentSpan, entry_id: int) -> list[StoredEntry]:
        """Return the next entries, from whichever proxy gives them in time."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        outage_s = self._proxies.outage_s
        while True:
            try:
                entries = await reader.poll_entries()
            except (*_GONE, LogNotFoundError, *_FINAL) as error:
                failure = _final_error(span, entry_id, self._explained(error))
                if failure is error:
                    raise
                raise failure from error
            except DistributedLogError as error:
                waited_s = loop.time() - since
                if waited_s >= outage_s:
                    raise self._late_error(span, entry_id, waited_s, error) from error
                await asyncio.sleep(RETRY_S)
                continue
            if entries:
                return entries
            position = reader.position
            if isinstance(position, DLSN) and position[:2] > (span.lssn, entry_id):
                raise _entry_missing_error(span, entry_id, f"a read proxy went on to {position} without it")
            waited_s = loop.time() - since
            if waited_s >= max(outage_s, STALL_S):
                raise self._late_error(span, entry_id, waited_s, None)

    def _explained(self, error: DistributedLogError) -> DistributedLogError:
        if not isinstance(error, NotAuthenticatedError):
            return error
        self._proxies.refused = True
        return error if self._token is None else self._token.ended_error(error, time.time())

    def _late_error(
        self, span: SegmentSpan, entry_id: int, waited_s: float, error: DistributedLogError | None
    ) -> DistributedLogError:
        unreachable = isinstance(error, ServiceUnavailableError | OutcomeUnknownError)
        asked = ", ".join(self._proxies.addresses)
        said = "they delivered nothing" if error is None else error.message
        kind = ProxyUnreachableError if unreachable else ReadError
        return kind(
            f"No read proxy gave the entry in {waited_s:.1f} s; asked were: {asked} ({said})",
            advice=ADVICE,
            log=span.log,
            dlsn=DLSN(span.lssn, entry_id, 0),
        )


def _check(span: SegmentSpan, entry_id: int, stored: StoredEntry) -> None:
    """Raise unless this is the entry that the plan means."""
    if stored.lssn == span.lssn and stored.ledger_id not in (span.ledger.ledger_id, *span.former_ledgers):
        raise RecreatedDataLossError(
            f"Segment {span.lssn} is ledger {stored.ledger_id} at the proxy and {span.ledger.ledger_id} in the plan: "
            "the log was deleted and created again, or the proxy serves another namespace",
            advice=f"{PLAN_AGAIN}; see that option {PROXY} names proxies of this namespace",
            log=span.log,
            dlsn=DLSN(span.lssn, entry_id, 0),
        )
    if (stored.lssn, stored.entry_id) == (span.lssn, entry_id):
        return
    raise _entry_missing_error(span, entry_id, f"a read proxy gave {stored.lssn}:{stored.entry_id} for it")


def _entry_missing_error(span: SegmentSpan, entry_id: int, how: str) -> ReadError | TruncatedDataLossError:
    """Return the error for an entry that is passed over."""
    dlsn = DLSN(span.lssn, entry_id, 0)
    said = f"Entry {span.lssn}:{entry_id} is missing: {how}"
    if dlsn == span.start == DLSN.INITIAL:
        # A proxy takes the very first position for "from the beginning", wherever that is now.
        return TruncatedDataLossError(
            f"{said}; the log was truncated since the batch was planned", advice=PLAN_AGAIN, log=span.log, dlsn=dlsn
        )
    return PositionGapError(
        said,
        advice="The proxy may be set to pass over what is damaged or truncated (readAheadSkipBrokenEntries, "
        "alertPositionOnTruncated): see its settings, or leave out option proxy",
        log=span.log,
        dlsn=dlsn,
    )


def _entry_gone_error(span: SegmentSpan, entry_id: int, error: DistributedLogError) -> TruncatedDataLossError:
    return TruncatedDataLossError(
        f"Segment {span.lssn} was truncated or deleted since the batch was planned: {error.message}",
        advice=PLAN_AGAIN,
        log=span.log,
        dlsn=DLSN(span.lssn, entry_id, 0),
    )


def _final_error(span: SegmentSpan, entry_id: int, error: DistributedLogError) -> DistributedLogError:
    """Return what the task raises for an error after which it asks no further."""
    dlsn = DLSN(span.lssn, entry_id, 0)
    if isinstance(error, LogNotFoundError):
        return DeletedDataLossError(
            f"The read proxies know no log of this name any more: {error.message}",
            advice=f"{PLAN_AGAIN}; see that option {PROXY} names proxies of this namespace",
            log=span.log,
            dlsn=dlsn,
        )
    if isinstance(error, _GONE):
        return _entry_gone_error(span, entry_id, error)
    if isinstance(error, OperationNotServedError):
        error.advice = f"Option {PROXY} of a source names read proxies (`dlspark proxy list`), or says discover"
    error.log, error.dlsn = error.log or span.log, error.dlsn or dlsn
    return error
