"""The region of a log's owner, its *home*: which proxy of a region a log belongs at, and moving a log there.

    move_home   1   asks all proxies which one owns the log               one round trip
                2   has the owner hand it over to the proxy of the        one, in which the two proxies agree, the owner
                    region that its clients ask first                      ends its segment and gives up the lock
                3   asks that proxy for a heartbeat, which is answered    one, in which it takes the lock
                    when the log is open there

Fault model: what proxies say is as old as their answers. A command that is repeated finds the log where it is, and does
what is left. Wherever it ends, the log has one owner or none, by its lock: a target that dies leaves it to whichever
proxy is asked next, and so does a source, once its session has ended. No record is touched: those that were
acknowledged lie in a segment that has its end or is recovered; those that were not are sent again by their clients, to
the new owner.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import Heartbeat, ProxyStatus, Refusal, RequestContext, StatusCode
from dlspark.serving.routing.hosts import ProxyHost, address_of, is_address
from dlspark.serving.routing.ring import HostRing
from dlspark.serving.write_proxy.tier.administration import MOVE_TIMEOUT_MS, ProxyReport, move, survey
from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError, OutcomeUnknownError

_AGAIN: Final = (
    "Nothing that was acknowledged is lost, and any proxy can open the log. Move it again: what was done is found"
)
TRIES: Final = 3
"""The number of times that the log may turn out to be owned by yet another proxy."""


@dataclass(frozen=True, slots=True)
class HomeMove:
    """What became of it: the log is owned by a proxy of the region now."""

    target: str
    """Location of the proxy that owns the log now."""
    source: str | None
    """Location of the one that handed it over; None where nobody owned it."""
    round_trips: int
    """Requests to proxies, each made when the one before it was answered."""

    @property
    def moved(self) -> bool:
        """False where a proxy of the region owned it already."""
        return self.source != self.target


def home_proxy(stream: str, members: Iterable[ProxyMember], region: str) -> ProxyMember | None:
    """Return the proxy that clients of a region ask first about a stream, of these; None where none is of the region.

    So a log that is moved there is found at the first try.
    """
    there = {str(one.endpoint): one for one in members if one.region == region and one.frames is not None}
    address = HostRing(ProxyHost(address, one.shard) for address, one in there.items()).pick(stream, 0.0)
    return there[address] if address is not None else None


async def move_home(peers: ProxyPeers, members: Sequence[ProxyMember], stream: str, region: str) -> HomeMove:
    """Have a proxy of `region` own the stream; return when it does. Idempotent.

    Raises CallerError where no proxy of the region is announced, NotAppliedError where none of them can take the stream
    or its owner is no proxy, the error of a proxy's refusal, and OutcomeUnknownError where the move was begun and
    nobody says that it has ended.
    """
    _check_region(members, region)
    reports = await survey(peers, members, re.escape(stream))
    trips = 1
    owner = next((one for one in reports if stream in one.streams), None)
    if owner is not None and owner.region == region:
        return HomeMove(owner.location, owner.location, trips)
    target = _target(stream, reports, region)
    source = owner.location if owner is not None else None
    # They say that they do not own it: the target must not send us there from memory, but ask the lock.
    tried = tuple(one.location for one in reports if one.status is not None and one.location != target)
    for _ in range(TRIES):
        if source is not None:
            source = await _handed_over(peers, source, stream, target)
            trips += 1
        answer = await peers.call(target, Heartbeat(stream, context=RequestContext(tried)), MOVE_TIMEOUT_MS)
        trips += 1
        if not isinstance(answer, Refusal):
            return HomeMove(target, source, trips)
        if answer.code is not StatusCode.FOUND:
            raise _not_confirmed(answer, stream, source, target)
        # Nobody said that it owned it, or it has come to another one meanwhile: the lock says which.
        source = _proxy_in(answer, stream)
        if any(source == one.location and one.region == region for one in members):
            return HomeMove(source, source, trips)
    raise NotAppliedError("its owner changed each time that it was to be moved", log=stream, advice="Try again")


async def _handed_over(peers: ProxyPeers, source: str, stream: str, target: str) -> str:
    try:
        return await move(peers, source, stream, target)
    except OutcomeUnknownError as error:
        raise OutcomeUnknownError(
            f"the move was begun, and how it ended is not known: {error.message}", log=stream, advice=_AGAIN
        ) from error


def _check_region(members: Sequence[ProxyMember], region: str) -> None:
    known = Counter(one.region for one in members if one.frames is not None and one.region is not None)
    if region in known:
        return
    there = ", ".join(sorted(known)) or "none: no proxy says in which region it is"
    raise CallerError(
        f"no write proxy of region {region} is announced; nothing was done",
        advice=f"Start one there (DLSPARK_REGION={region} dlspark proxy write). Regions with write proxies: {there}",
    )


def _target(stream: str, reports: Iterable[ProxyReport], region: str) -> str:
    there = [one for one in reports if one.region == region]
    taking = [one.member for one in there if one.status is ProxyStatus.WRITE_AND_ACCEPT]
    target = home_proxy(stream, taking, region)
    if target is not None:
        return target.location
    why = "; ".join(f"{one.location}: {one.status.name if one.status is not None else one.error}" for one in there)
    raise NotAppliedError(
        f"no write proxy of region {region} takes the log; it stays where it is ({why})",
        log=stream,
        advice="dlspark proxy drain PROXY --undo has one take streams again; start one that does not answer",
    )


def _proxy_in(found: Refusal, stream: str) -> str:
    """Return the proxy that is named as the owner. Raises NotAppliedError where the owner is another kind of writer."""
    if found.location is None or not is_address(found.location):
        raise NotAppliedError(
            f"the log's owner is no proxy, it cannot be told to hand it over: {found.message}",
            log=stream,
            advice="End that writer, or have it write through proxies; then move the log",
        )
    return found.location


def _not_confirmed(refusal: Refusal, stream: str, source: str | None, target: str) -> DistributedLogError:
    if source is None:
        return error_of(refusal, stream=stream)
    return OutcomeUnknownError(
        f"{source} has given the log up, and {address_of(target)} does not say that it has it: {refusal.message}",
        log=stream,
        advice=_AGAIN,
    )
