"""Connections: made when needed, lost, silent, bounded; every request is answered exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from helpers.serving.memory_proxies import MemoryProxies
from helpers.virtual_time import virtual_time

from dlspark.errors import (
    AlreadyClosedError,
    NotAuthenticatedError,
    OverCapacityError,
    ProxyLostError,
    ProxyUnreachableError,
)
from dlspark.serving.client import channels as rooms
from dlspark.serving.client.channels import ChannelFailure, Channels, ProxyChannel
from dlspark.serving.protocol.operations import CreateStream, Done, FindOwner, OwnerFound, Refusal, StatusCode

A = "a:1"
CREATE = CreateStream("x")


class Heard:
    """What a request was answered with, every time that it was."""

    def __init__(self) -> None:
        self.answers = []
        self.first = asyncio.get_running_loop().create_future()

    def __call__(self, answer) -> None:
        self.answers.append(answer)
        if not self.first.done():
            self.first.set_result(answer)


async def settled(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


@virtual_time
async def test_requests_that_come_while_a_connection_is_made_are_sent_on_it_in_order():
    fleet = MemoryProxies(A)
    fleet.connect_s = 1.0
    channels = Channels(fleet.connect)
    heard = [Heard() for _ in range(5)]
    for number, one in enumerate(heard):
        channels.submit(A, CreateStream(f"s{number}"), one)
    assert [await one.first for one in heard] == [Done()] * 5
    assert fleet.connections == 1
    assert [request.stream for request in fleet[A].requests] == ["s0", "s1", "s2", "s3", "s4"]
    await channels.close()


@virtual_time
async def test_a_connection_that_cannot_be_made_fails_what_waits_and_is_not_tried_again_at_once():
    fleet = MemoryProxies()
    channels = Channels(fleet.connect)
    first, second = Heard(), Heard()
    channels.submit(A, CREATE, first)
    channels.submit(A, CREATE, second)
    for one in (first, second):
        failure = await one.first
        assert isinstance(failure, ChannelFailure)
        assert isinstance(failure.error, ProxyUnreachableError)
    tries = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() < began + 30:
        before = fleet.connections
        again = Heard()
        channels.submit(A, CREATE, again)
        assert isinstance(await again.first, ChannelFailure)
        if fleet.connections > before:
            tries.append(loop.time())
        await asyncio.sleep(0.01)
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert waits == sorted(waits)
    assert len(tries) < 15, "each pause is twice the one before"
    assert max(waits) == pytest.approx(rooms.BACKOFF_MAX_S, abs=0.05)
    await channels.close()


@virtual_time
async def test_what_was_sent_on_a_lost_connection_may_have_been_done_and_what_asks_only_was_not():
    fleet = MemoryProxies(A)
    fleet[A].hold = True
    channels = Channels(fleet.connect)
    write, ask = Heard(), Heard()
    channels.submit(A, CREATE, write)
    channels.submit(A, FindOwner("x"), ask)
    await settled()
    fleet[A].drop_connections()
    assert isinstance((await write.first).error, ProxyLostError)
    assert isinstance((await ask.first).error, ProxyUnreachableError)
    assert len(write.answers) == len(ask.answers) == 1
    fleet[A].hold = False
    await asyncio.sleep(0.1)
    again = Heard()
    channels.submit(A, FindOwner("x"), again)
    assert await again.first == OwnerFound(A)
    await channels.close()


@virtual_time
async def test_a_refusal_is_an_answer_of_the_proxy_and_no_failure_of_the_connection():
    fleet = MemoryProxies(A)
    fleet[A].refusals.append(Refusal(StatusCode.SERVICE_UNAVAILABLE, "going down", error="ProxyLostError"))
    channels = Channels(fleet.connect)
    heard = Heard()
    channels.submit(A, CREATE, heard)
    assert isinstance(await heard.first, Refusal)
    await channels.close()


@virtual_time
async def test_a_connection_that_owes_an_answer_and_says_nothing_is_closed():
    fleet = MemoryProxies(A)
    fleet[A].silent = True
    ended = []
    channels = Channels(fleet.connect, on_closed=ended.append, silence_ms=1000)
    heard = Heard()
    began = asyncio.get_running_loop().time()
    channels.submit(A, CREATE, heard)
    assert isinstance((await heard.first).error, ProxyLostError)
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)
    assert ended == [A]
    await channels.close()


@virtual_time
async def test_a_proxy_that_is_slow_with_one_stream_answers_the_question_whether_it_lives():
    fleet = MemoryProxies(A)
    fleet[A].hold = True
    channels = Channels(fleet.connect, silence_ms=1000)
    heard = Heard()
    channels.submit(A, CREATE, heard)
    await asyncio.sleep(30)
    assert not heard.answers
    fleet[A].release()
    assert await heard.first == Done()
    await asyncio.sleep(30)
    assert len(fleet[A].requests) < 40, "who owes nothing is not asked"
    await channels.close()


@virtual_time
async def test_what_was_given_up_is_not_reported_whatever_becomes_of_it():
    fleet = MemoryProxies(A)
    fleet[A].hold = True
    channels = Channels(fleet.connect)
    waiting, sent = Heard(), Heard()
    given_up = channels.submit(A, CREATE, waiting)
    given_up.cancel()
    given_up.cancel()
    await settled()
    assert not fleet[A].requests, "it had not left"
    sending = channels.submit(A, CREATE, sent)
    await settled()
    sending.cancel()
    fleet[A].release()
    await settled()
    assert not waiting.answers
    assert not sent.answers
    await channels.close()


@virtual_time
async def test_more_connections_than_may_be_close_idle_ones_and_are_refused_where_none_is():
    fleet = MemoryProxies("a:1", "b:1", "c:1")
    channels = Channels(fleet.connect, max_channels=2)
    for address in ("a:1", "b:1", "c:1"):
        heard = Heard()
        channels.submit(address, FindOwner("x"), heard)
        await heard.first
        await asyncio.sleep(1)
    assert [len(fleet[one].links) for one in ("a:1", "b:1", "c:1")] == [0, 1, 1]
    fleet["b:1"].hold = fleet["c:1"].hold = True
    for address in ("b:1", "c:1"):
        channels.submit(address, FindOwner("x"), Heard())
    await settled()
    refused = Heard()
    channels.submit("a:1", FindOwner("x"), refused)
    assert isinstance((await refused.first).error, OverCapacityError)
    await channels.close()


@virtual_time
async def test_a_lane_is_a_connection_of_its_own():
    fleet = MemoryProxies(A)
    channels = Channels(fleet.connect)
    heard = [Heard(), Heard()]
    for lane, one in enumerate(heard):
        channels.submit(A, FindOwner("x"), one, lane)
    for one in heard:
        await one.first
    assert len(fleet[A].links) == 2
    channels.end_connection(A, 1)
    await settled()
    assert len(fleet[A].links) == 1
    await channels.close()


@virtual_time
async def test_closing_ends_what_waits_and_nothing_is_sent_afterwards():
    fleet = MemoryProxies(A)
    fleet.connect_s = 60
    channels = Channels(fleet.connect)
    heard, late = Heard(), Heard()
    channels.submit(A, CREATE, heard)
    await settled()
    await channels.close()
    assert isinstance((await heard.first).error, AlreadyClosedError)
    channels.submit(A, CREATE, late)
    assert isinstance((await late.first).error, AlreadyClosedError)
    assert not fleet[A].requests
    await channels.close()


@virtual_time
async def test_who_was_refused_is_heard_again_soon_after_it_has_something_better_to_show() -> None:
    """Else a replaced token would wait out the time that is kept from a proxy which is down."""
    fleet = MemoryProxies(A)
    good_from_s = 60.0
    loop = asyncio.get_running_loop()

    async def connect(address: str, on_closed: Callable[[], None]) -> ProxyChannel:
        if loop.time() - began < good_from_s:
            raise NotAuthenticatedError("the token has expired")
        return await fleet.connect(address, on_closed)

    began = loop.time()
    channels = Channels(connect)
    answers: list[object] = []
    while loop.time() - began < good_from_s + rooms.REFUSED_BACKOFF_MAX_S:
        heard = Heard()
        channels.submit(A, CREATE, heard)
        answers.append(await heard.first)
        await asyncio.sleep(0.05)
    refusals = [one for one in answers if isinstance(one, ChannelFailure)]
    assert all(isinstance(one.error, NotAuthenticatedError) for one in refusals)
    assert isinstance(answers[-1], Done)
    await channels.close()
