"""The operators' side of the write proxies of a namespace: see which owns what, move streams, empty a proxy, balance.

All of it goes through requests that any client may make (docs/serving/write-proxy.md). What proxies say is as old as
their answer: a stream may have moved since, and then its move is refused with the owner, and counts as failed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Done,
    Handshake,
    MoveStream,
    ProxyInfo,
    ProxyStatus,
    Refusal,
    ReleaseStream,
    StatusCode,
)
from dlspark.serving.routing.hosts import address_of
from dlspark.serving.write_proxy.tier.balancing import Balance, StreamMove
from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError, OutcomeUnknownError
from metadata.foundation.pacing import TokenBucket

ASK_TIMEOUT_MS: Final = 5_000
MOVE_TIMEOUT_MS: Final = 60_000
MAX_REDIRECTS: Final = 3
"""The number of times that the owner of a stream that is to be moved may turn out to be another one."""


@dataclass(frozen=True, slots=True)
class ProxyReport:
    """One member's answer, or why there is none."""

    member: ProxyMember
    status: ProxyStatus | None = None
    """None where it did not answer."""
    streams: frozenset[str] = field(default_factory=frozenset)
    region_id: str | None = None
    """What segments call its region (`server_region_id`), as it says itself."""
    error: str | None = None
    """The reason why it did not answer."""

    @property
    def location(self) -> str:
        """Its location."""
        return self.member.location

    @property
    def region(self) -> str | None:
        """The name of its region, as its member has it."""
        return self.member.region


async def survey(
    peers: ProxyPeers, members: Iterable[ProxyMember], stream_regex: str | None = None
) -> list[ProxyReport]:
    """Ask every member that speaks frames what it is and owns; return the answers by shard and address.

    Args:
        stream_regex: which streams are asked for; all, unless given.

    A proxy that does not answer is in the list all the same.
    """

    async def ask(member: ProxyMember) -> ProxyReport:
        answer = await peers.call(member.location, Handshake(stream_regex), ASK_TIMEOUT_MS)
        if not isinstance(answer, ProxyInfo):
            return ProxyReport(member, error=_answer_text(answer))
        own = frozenset(stream for stream, owner in answer.ownerships.items() if owner == answer.location)
        return ProxyReport(member, answer.status, own, answer.region)

    reports = await asyncio.gather(*(ask(one) for one in members if one.frames is not None))
    return sorted(reports, key=lambda one: (one.member.shard, one.member.endpoint))


def distribution_of(reports: Iterable[ProxyReport]) -> Mapping[str, frozenset[str]]:
    """Return the streams by location, of those proxies that answered."""
    return {one.location: one.streams for one in reports if one.status is not None}


def member_named(members: Iterable[ProxyMember], name: str) -> ProxyMember:
    """Return the member with this location, address or shard number. Raises CallerError where there is none."""
    found = [one for one in members if name in (one.location, str(one.endpoint), str(one.shard))]
    if len(found) != 1:
        said = "no proxy of this namespace is" if not found else f"{len(found)} proxies of this namespace are"
        raise CallerError(f"{said} named {name}", advice="dlspark proxy list shows them: give host:port, or the shard")
    return found[0]


async def owner_of(peers: ProxyPeers, members: Iterable[ProxyMember], stream: str) -> str:
    """Return the location of the proxy that owns the stream, as it says itself: FindOwner would also name one that only
    would.

    Raises NotAppliedError where none says so.
    """
    owner, silent = await _said_owner(peers, members, stream)
    if owner is not None:
        return owner
    advice = f"These do not answer: {', '.join(silent)}" if silent else "A stream without an owner needs no move"
    raise NotAppliedError("no write proxy says that it owns the stream", log=stream, advice=advice)


async def _said_owner(
    peers: ProxyPeers, members: Iterable[ProxyMember], stream: str
) -> tuple[str | None, Sequence[str]]:
    """Return the location of the proxy that says that it owns the stream, and those of proxies that say nothing."""
    reports = await survey(peers, members, re.escape(stream))
    owner = next((report.location for report in reports if stream in report.streams), None)
    return owner, [one.location for one in reports if one.status is None]


async def move(peers: ProxyPeers, source: str, stream: str, target: str) -> str:
    """Have the proxy at `source`, or the one that it names as the owner, hand the stream over to `target`.

    Return the location of the proxy that handed it over. Raises the error of a refusal, or of an unknown outcome.
    """
    for _ in range(MAX_REDIRECTS):
        # Also behind a redirect: it may have come to the target by itself, which is as good as moved.
        if address_of(source) == address_of(target):
            return source
        answer = await peers.call(source, MoveStream(stream, target), MOVE_TIMEOUT_MS)
        if isinstance(answer, Done):
            return source
        if not isinstance(answer, Refusal):
            break
        if answer.code is not StatusCode.FOUND or not answer.location:
            raise error_of(answer, stream=stream)
        source = answer.location
    raise NotAppliedError("its owner changed while it was to be moved", log=stream, advice="Try again")


async def release(peers: ProxyPeers, members: Iterable[ProxyMember], stream: str) -> str:
    """Have the proxy that owns the stream end its segment and give up the log; none of the proxies owns it then.

    Return the location of the proxy that had it. Raises NotAppliedError where none says that it owns the stream, or
    where one owns it again each time, the error of a refusal, and OutcomeUnknownError where not all proxies answer.
    """
    members = tuple(members)
    owner = await owner_of(peers, members, stream)
    for _ in range(MAX_REDIRECTS):
        answer = await peers.call(owner, ReleaseStream(stream), MOVE_TIMEOUT_MS)
        if isinstance(answer, Refusal):
            if answer.code is not StatusCode.FOUND or not answer.location:
                raise error_of(answer, stream=stream)
            owner = answer.location
            continue
        # A proxy says so as well of a stream that it does not serve. It may have moved since its owner was asked for,
        # and to the one that waits for the log it is the same if a client has written to it again.
        released = owner
        found, silent = await _said_owner(peers, members, stream)
        if found is None and not silent:
            return released
        if found is None:
            raise OutcomeUnknownError(
                f"{released} does not own the stream any more; whether another proxy does is not known, for these do "
                f"not answer: {', '.join(silent)}",
                log=stream,
                advice="Open the writer: where a proxy has the log, that says which one",
            )
        owner = found
    raise NotAppliedError(
        f"the stream is not free: {owner} owns it now",
        log=stream,
        advice="Clients may go on writing to it: stop them, and try again",
    )


async def accept_streams(peers: ProxyPeers, member: ProxyMember, *, enabled: bool) -> None:
    """Have a proxy take streams that it does not own yet, or no more. Raises the error of its refusal."""
    answer = await peers.call(member.location, AcceptStreams(enabled), ASK_TIMEOUT_MS)
    if isinstance(answer, Refusal):
        raise error_of(answer, stream=None)


@dataclass(slots=True)
class BalanceResult:
    """The moves of a balance, by their outcome: a stream that was moved in the end did not fail."""

    moved: list[StreamMove] = field(default_factory=list)
    failed: list[tuple[StreamMove, str]] = field(default_factory=list)


async def run_balance(
    peers: ProxyPeers,
    balance: Balance,
    *,
    per_second: float = 0.0,
    on_move: Callable[[StreamMove, str | None], None] | None = None,
) -> BalanceResult:
    """Do the balance's moves, one at a time. A move that fails, fails alone.

    Args:
        per_second: moves a second at most; 0: as fast as they go.
        on_move: called after each with its error, None where it succeeded.
    """
    bucket = TokenBucket(per_second, asyncio.get_running_loop().time) if per_second > 0 else None
    result = BalanceResult()
    while (step := balance.next_move()) is not None:
        if bucket is not None:
            await bucket.take()
        error: str | None = None
        try:
            await move(peers, step.source, step.stream, step.target)
        except DistributedLogError as failure:
            error = str(failure)
            result.failed.append((step, error))
        else:
            result.moved.append(step)
        balance.ended(error is None)
        if on_move is not None:
            on_move(step, error)
    # A proxy that is emptied has a failed stream tried twice: the later outcome counts.
    done = {step.stream for step in result.moved}
    last = {step.stream: (step, why) for step, why in result.failed if step.stream not in done}
    result.failed = list(last.values())
    return result


def _answer_text(answer: Answer) -> str:
    return answer.message if isinstance(answer, Refusal) else f"an answer of another kind: {type(answer).__name__}"
