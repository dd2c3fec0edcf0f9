"""Readers through proxies: order, once, the poll ahead, another proxy at the same place, ends and truncation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.serving.memory_proxies import MemoryProxies
from helpers.virtual_time import virtual_time

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import AlreadyTruncatedError, EndOfStreamError, ReadCancelledError, ReadError
from dlspark.serving.bindings.service import Caller
from dlspark.serving.client.reading import AsyncProxyReader
from dlspark.serving.protocol.operations import Applied, Delivery, ReadBatch, ReadForm, ReadFrom, Refusal, StatusCode
from metadata.foundation.errors import CallerError
from storage_node.errors import ProtocolError

A = "a:1"


class Taken:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def asker(fleet: MemoryProxies, address: str = A, change=lambda answer: answer):
    """Asks one proxy, without anything between."""
    caller = Caller("test")

    def ask(request, settle, lane):
        asking = Taken()

        def reply(answer) -> None:
            if not asking.cancelled:
                settle(change(answer))

        asyncio.get_running_loop().call_soon(fleet[address].submit, request, caller, reply)
        return asking

    return ask


def filled(count: int = 10) -> MemoryProxies:
    fleet = MemoryProxies(A)
    for number in range(count):
        fleet.log("x").append((b"%03d" % number,))
    return fleet


async def take(reader: AsyncProxyReader, count: int) -> list[bytes]:
    return [(await reader.read_next()).payload for _ in range(count)]


@virtual_time
async def test_records_come_in_order_and_a_reader_waits_at_the_end():
    fleet = filled()
    async with AsyncProxyReader(asker(fleet), "x", "earliest", max_bytes=9) as reader:
        assert await take(reader, 10) == fleet.log("x").payloads
        waiting = asyncio.create_task(reader.read_next())
        await asyncio.sleep(25)
        assert not waiting.done()
        fleet.log("x").append((b"more",))
        assert (await waiting).payload == b"more"
        assert reader.position == DLSN(1, 10, 1)


@virtual_time
async def test_the_next_poll_is_sent_before_its_delivery_is_wanted_and_only_that_one():
    fleet = filled()
    reader = AsyncProxyReader(asker(fleet), "x", DLSN.INITIAL, max_bytes=9)
    await reader.read_next()
    await asyncio.sleep(5)
    assert len(fleet[A].of(ReadBatch)) == 2
    await reader.close()


@virtual_time
async def test_what_a_caller_that_gave_up_waited_for_is_delivered_to_the_next():
    fleet = MemoryProxies(A)
    reader = AsyncProxyReader(asker(fleet), "x", "earliest")
    for _ in range(3):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read_next(), 0.5)
    fleet.log("x").append((b"one", b"two"))
    assert await take(reader, 2) == [b"one", b"two"]
    assert len([one for one in fleet[A].of(ReadBatch) if one.start == "earliest"]) <= 1
    await reader.close()


@virtual_time
async def test_an_error_leaves_the_reader_where_it_is():
    fleet = filled()
    reader = AsyncProxyReader(asker(fleet), "x", "earliest", max_bytes=9)
    before = await take(reader, 3)
    fleet[A].refusals += [Refusal(StatusCode.LOG_READ_ERROR, "storage is away", error="ReadError")] * 2
    got, errors = before, 0
    while len(got) < 10:
        try:
            got.append((await reader.read_next()).payload)
        except ReadError:
            errors += 1
    assert errors == 2
    assert got == fleet.log("x").payloads
    await reader.close()


@virtual_time
async def test_a_sealed_log_ends_a_loop_and_then_every_read():
    fleet = filled(3)
    fleet.log("x").sealed = True
    reader = AsyncProxyReader(asker(fleet), "x", "earliest")
    assert [record.payload async for record in reader] == [b"000", b"001", b"002"]
    with pytest.raises(EndOfStreamError):
        await reader.read_next()
    await reader.skip_to("earliest")
    assert await take(reader, 1) == [b"000"]
    await reader.close()


@virtual_time
async def test_a_truncated_position_says_where_there_are_records_and_the_reader_can_go_there():
    fleet = filled()
    fleet.log("x").truncated = DLSN(1, 4, 0)
    reader = AsyncProxyReader(asker(fleet), "x", DLSN(1, 2, 0))
    with pytest.raises(AlreadyTruncatedError) as caught:
        await reader.read_next()
    assert "1:4:0" in (caught.value.advice or "")
    await reader.skip_to("earliest")
    assert await take(reader, 1) == [b"004"]
    await reader.close()


@virtual_time
async def test_a_reader_may_begin_at_a_time_at_the_end_or_at_a_position():
    fleet = filled()
    txid = fleet.log("x").records[5].txid
    for start, first in ((txid, b"005"), (DLSN(1, 7, 0), b"007"), ("1:8:0", b"008")):
        async with AsyncProxyReader(asker(fleet), "x", start) as reader:
            assert await take(reader, 1) == [first]
    async with AsyncProxyReader(asker(fleet), "x", "latest") as reader:
        waiting = asyncio.create_task(reader.read_next())
        await asyncio.sleep(1)
        fleet.log("x").append((b"new",))
        assert (await waiting).payload == b"new"
    # It hears at once where the end is: were the proxy lost before, another one would begin behind the new record.
    polls = fleet[A].of(ReadBatch)
    first, then = polls[[one.start for one in polls].index(ReadFrom.LATEST) :][:2]
    assert first.wait_ms == 0
    assert (then.start, then.wait_ms > 0) == (DLSN(1, 10, 0), True)
    for wrong in (True, 1.5, "soon"):
        with pytest.raises(CallerError):
            AsyncProxyReader(asker(fleet), "x", wrong)


LIES = {
    "another form": lambda one: replace(one, form=ReadForm.ENTRIES),
    "back": lambda one: replace(one, next=DLSN(1, 0, 0), parts=()),
    "less than its records": lambda one: replace(one, next=DLSN(1, 5, 0)),
    "half a batch": lambda one: replace(one, parts=(one.parts[0][:40],)),
    "twice": lambda one: replace(one, parts=one.parts * 2),
}


@pytest.mark.parametrize("name", LIES)
@virtual_time
async def test_what_a_proxy_says_wrongly_is_an_error_and_never_data(name: str):
    fleet = filled()
    lying = True

    def change(answer):
        return LIES[name](answer) if lying and isinstance(answer, Delivery) and answer.parts else answer

    reader = AsyncProxyReader(asker(fleet, change=change), "x", DLSN(1, 5, 0))
    for _ in range(3):
        with pytest.raises((ReadError, ProtocolError)):
            await reader.read_next()
    lying = False
    assert await take(reader, 5) == fleet.log("x").payloads[5:]
    await reader.close()


@virtual_time
async def test_closing_ends_a_read_that_waits():
    fleet = MemoryProxies(A)
    closed = []
    reader = AsyncProxyReader(asker(fleet), "x", "earliest", ended=closed.append)
    waiting = asyncio.create_task(reader.read_next())
    await asyncio.sleep(1)
    await reader.close()
    await reader.close()
    with pytest.raises(ReadCancelledError):
        await waiting
    with pytest.raises(ReadCancelledError):
        await reader.read_next()
    assert closed == [reader]


@virtual_time
async def test_a_wrong_request_is_the_caller_s():
    fleet = filled()
    fleet[A].refusals.append(Refusal(StatusCode.REQUEST_DENIED, "no", applied=Applied.WRONG))
    reader = AsyncProxyReader(asker(fleet), "x", "earliest")
    with pytest.raises(CallerError):
        await reader.read_next()
    with pytest.raises(CallerError):
        await reader.next_batches()
    with pytest.raises(CallerError):
        AsyncProxyReader(asker(fleet), "x", "earliest", form="rows")
    await reader.close()
