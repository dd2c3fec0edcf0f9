"""Operators' tools over frames: what proxies say of themselves, moves, balancing; and proxies that do not answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial

import pytest
from helpers.serving.scripted_service import ScriptedService
from helpers.virtual_time import virtual_time
from helpers.worlds.memory_network import Pipes

from dlspark.serving.bindings.frames_server import FramesServer
from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember, proxy_member
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Applied,
    Done,
    Handshake,
    MoveStream,
    ProxyInfo,
    ProxyStatus,
    Refusal,
    ReleaseStream,
    Request,
    StatusCode,
)
from dlspark.serving.write_proxy.tier.administration import (
    accept_streams,
    distribution_of,
    member_named,
    move,
    owner_of,
    release,
    run_balance,
    survey,
)
from dlspark.serving.write_proxy.tier.balancing import ClusterBalance, StreamMove
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import CallerError, NotAppliedError, OutcomeUnknownError


class Tier:
    """Some proxies on one network; the streams that each owns."""

    def __init__(self) -> None:
        self.pipes = Pipes()
        self.peers = ProxyPeers(self.pipes)
        self.members: list[ProxyMember] = []
        self.services: list[ScriptedService] = []
        self.servers: list[FramesServer] = []
        self.owners: dict[str, str] = {}
        self.status = ProxyStatus.WRITE_AND_ACCEPT
        self.stuck: set[str] = set()
        self.released: Callable[[], None] = lambda: None
        """Called when a stream was given up."""

    async def add(self, *streams: str) -> ProxyMember:
        shard = len(self.members)
        service = ScriptedService(partial(self.answer, shard))
        server = FramesServer(self.pipes, service)
        await server.start("host", 0)
        member = proxy_member(ProxyEndpoint("host", server.port), shard)
        self.services.append(service)
        self.servers.append(server)
        self.members.append(member)
        self.owners |= dict.fromkeys(streams, member.location)
        return member

    def answer(self, shard: int, request: Request, _number: int) -> Answer:
        own = self.members[shard].location
        if isinstance(request, Handshake):
            regex = request.stream_regex or ".*"
            matching = {one: owner for one, owner in self.owners.items() if re.fullmatch(regex, one)}
            return ProxyInfo(own, self.status, matching, region="r1")
        if isinstance(request, MoveStream):
            owner = self.owners[request.stream]
            if owner != own:
                return Refusal(StatusCode.FOUND, "elsewhere", owner)
            if request.stream in self.stuck:
                return Refusal(StatusCode.STREAM_NOT_READY, "it is stuck")
            self.owners[request.stream] = request.target
            return Done()
        if isinstance(request, ReleaseStream):
            # As the service has it: what is not served here is not here, whoever serves it.
            if self.owners.get(request.stream) == own:
                del self.owners[request.stream]
                self.released()
            return Done()
        assert isinstance(request, AcceptStreams)
        self.status = ProxyStatus.WRITE_AND_ACCEPT if request.enabled else ProxyStatus.WRITE_ONLY
        return Done()

    async def close(self) -> None:
        await self.peers.close()
        await self.peers.close()
        for server in self.servers:
            await server.close(grace_s=0)


@virtual_time
async def test_a_survey_says_who_owns_what_and_who_does_not_answer() -> None:
    tier = Tier()
    first, second = await tier.add("a", "b"), await tier.add("c")
    gone = proxy_member(ProxyEndpoint("host", 999), 7)
    foreign = ProxyMember(ProxyEndpoint("host", 998))
    reports = await survey(tier.peers, [gone, second, foreign, first])
    assert [one.member for one in reports] == [first, second, gone]
    assert [sorted(one.streams) for one in reports] == [["a", "b"], ["c"], []]
    assert reports[0].region_id == "r1"
    assert reports[2].status is None
    assert "refused" in (reports[2].error or "")
    assert distribution_of(reports) == {first.location: {"a", "b"}, second.location: {"c"}}
    (only,) = await survey(tier.peers, [first], "b")
    assert only.streams == {"b"}
    await tier.close()


@virtual_time
async def test_a_proxy_that_says_nothing_is_not_waited_for_for_ever() -> None:
    tier = Tier()
    member = await tier.add()
    tier.services[0].hold = True
    (report,) = await survey(tier.peers, [member])
    assert report.status is None
    assert "no answer" in (report.error or "")
    answer = await tier.peers.call(member.location, MoveStream("a", "1;0;x:1"), 100)
    assert isinstance(answer, Refusal)
    assert answer.applied is Applied.UNKNOWN
    await tier.close()


@virtual_time
async def test_one_connection_serves_all_requests_and_a_lost_one_is_made_anew() -> None:
    tier = Tier()
    member = await tier.add("a")
    for _ in range(3):
        await survey(tier.peers, [member, member])
    assert len(tier.pipes.ends) == 1
    tier.pipes.ends[0].close()
    await survey(tier.peers, [member])
    (report,) = await survey(tier.peers, [member])
    assert report.streams == {"a"}
    assert len(tier.pipes.ends) == 2
    await tier.close()


@virtual_time
async def test_a_stream_is_moved_from_whoever_owns_it_by_now() -> None:
    tier = Tier()
    first, second = await tier.add("a"), await tier.add()
    for members in (tier.members, tier.members[::-1]):
        assert await owner_of(tier.peers, members, "a") == first.location
    tier.owners["(b"] = second.location
    assert await owner_of(tier.peers, tier.members, "(b") == second.location
    with pytest.raises(NotAppliedError, match="no write proxy says"):
        await owner_of(tier.peers, tier.members, "other")
    assert await move(tier.peers, second.location, "a", second.location) == second.location  # it is where it should be
    assert await move(tier.peers, first.location, "a", second.location) == first.location
    assert tier.owners["a"] == second.location
    assert await move(tier.peers, first.location, "a", first.location) == first.location
    tier.owners["a"] = second.location
    third = await tier.add()
    assert await move(tier.peers, first.location, "a", third.location) == second.location
    assert tier.owners["a"] == third.location
    await tier.close()


@virtual_time
async def test_what_a_move_was_refused_with_is_raised() -> None:
    tier = Tier()
    first, second = await tier.add("a"), await tier.add()
    tier.stuck.add("a")
    with pytest.raises(NotAppliedError, match="stuck"):
        await move(tier.peers, first.location, "a", second.location)
    tier.services[0].answer = lambda _request, _number: Refusal(StatusCode.FOUND, "there", second.location)
    tier.services[1].answer = lambda _request, _number: Refusal(StatusCode.FOUND, "there", first.location)
    third = await tier.add()
    with pytest.raises(NotAppliedError, match="owner changed"):
        await move(tier.peers, first.location, "a", third.location)
    tier.services[0].answer = lambda _request, _number: Refusal(StatusCode.FOUND, "somewhere")
    with pytest.raises((OwnershipAcquireFailedError, OutcomeUnknownError, NotAppliedError)):
        await move(tier.peers, first.location, "a", third.location)
    with pytest.raises(NotAppliedError, match="no write proxy says"):
        await owner_of(tier.peers, [], "a")
    await tier.close()


@virtual_time
async def test_a_stream_counts_as_released_only_where_no_proxy_owns_it_any_more() -> None:
    tier = Tier()
    first, second = await tier.add("a"), await tier.add()
    assert await release(tier.peers, tier.members, "a") == first.location
    assert tier.owners == {}
    with pytest.raises(NotAppliedError, match="no write proxy says"):
        await release(tier.peers, tier.members, "a")

    def move_after_survey(request: Request, _number: int) -> Answer:
        answer = tier.answer(0, request, 0)
        if isinstance(request, Handshake):
            tier.owners = {"a": second.location}
        return answer

    # It moves between the question who owns it and the request: the first one serves it no more, and says "done".
    tier.owners = {"a": first.location}
    tier.services[0].answer = move_after_survey
    tier.released = lambda: setattr(tier.services[0], "answer", partial(tier.answer, 0))
    assert await release(tier.peers, tier.members, "a") == second.location
    assert tier.owners == {}

    tier.owners = {"a": first.location}
    tier.released = lambda: tier.owners.update(a=second.location)  # a client writes on
    with pytest.raises(NotAppliedError, match=f"not free: {re.escape(second.location)} owns it now"):
        await release(tier.peers, tier.members, "a")

    tier.owners = {"a": first.location}
    tier.released = lambda: setattr(tier.services[1], "hold", True)
    with pytest.raises(OutcomeUnknownError, match=f"do not answer: {re.escape(second.location)}"):
        await release(tier.peers, tier.members, "a")
    await tier.close()


@virtual_time
async def test_a_balance_is_done_a_move_that_fails_alone_and_no_faster_than_it_may() -> None:
    tier = Tier()
    first, second = await tier.add("a", "b", "c", "d"), await tier.add()
    tier.stuck.add("a")
    done: list[tuple[StreamMove, str | None]] = []
    reports = await survey(tier.peers, tier.members)
    began = asyncio.get_running_loop().time()
    balance = ClusterBalance(distribution_of(reports), source=first.location)
    result = await run_balance(tier.peers, balance, per_second=0.5, on_move=lambda step, why: done.append((step, why)))
    seconds = asyncio.get_running_loop().time() - began
    assert {one.stream for one in result.moved} == {"b", "c", "d"}
    assert {step.stream for step, _ in result.failed} == {"a"}
    assert "stuck" in result.failed[0][1]
    assert len(done) == 5  # an emptied proxy is asked for what failed once more
    assert seconds >= 2 * (len(done) - 1)
    assert tier.owners == {"a": first.location, "b": second.location, "c": second.location, "d": second.location}
    await tier.close()


@virtual_time
async def test_a_proxy_takes_no_new_streams_once_it_is_asked_to() -> None:
    tier = Tier()
    member = await tier.add()
    await accept_streams(tier.peers, member, enabled=False)
    (report,) = await survey(tier.peers, [member])
    assert report.status is ProxyStatus.WRITE_ONLY
    tier.services[0].answer = lambda _request, _number: Refusal(StatusCode.REQUEST_DENIED, "not you")
    with pytest.raises(NotAppliedError, match="not you"):
        await accept_streams(tier.peers, member, enabled=True)
    await tier.close()


def test_a_member_is_named_by_location_address_or_shard() -> None:
    members = [proxy_member(ProxyEndpoint("h", port), shard) for port, shard in ((1, 0), (2, 1), (3, 1))]
    for name in ("1;0;h:1", "h:1", "0"):
        assert member_named(members, name) is members[0]
    for name in ("1", "h:9", ""):
        with pytest.raises(CallerError):
            member_named(members, name)
