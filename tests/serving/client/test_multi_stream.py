"""The multi-stream writer and the monitor: upstream's values, over proxies that are slow, refuse or do not answer."""

from __future__ import annotations

import asyncio

import pytest
from helpers.serving.memory_proxies import MemoryProxies
from helpers.virtual_time import virtual_time
from test_thin_client import opened

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import decode_record_set
from dlspark.errors import AlreadyClosedError, OverCapacityError, SettingsError
from dlspark.serving.client.monitor import is_mine
from dlspark.serving.client.multi_stream import AsyncMultiStreamWriter, MultiStreamLimits, StreamPosition
from dlspark.serving.protocol.operations import Answer, Applied, Refusal, StatusCode, WriteReceipt, WriteRecords
from metadata.foundation.errors import CallerError, NotAppliedError, OutcomeUnknownError

STREAMS = ["s0", "s1", "s2", "s3"]


class Streams:
    """Streams that answer after a while each."""

    def __init__(self) -> None:
        self.delays = dict.fromkeys(STREAMS, 0.005)
        self.answers: dict[str, Answer] = {}
        self.sent: list[tuple[float, WriteRecords, int]] = []
        self.cancelled = 0
        self.places = dict.fromkeys(STREAMS, 0)

    def send(self, request, settle, timeout_ms):
        loop = asyncio.get_running_loop()
        self.sent.append((loop.time(), request, timeout_ms))
        stream = request.stream

        def answer() -> None:
            self.places[stream] += 1
            settle(self.answers.get(stream, WriteReceipt(DLSN(1, self.places[stream], 0), 1)))

        timer = loop.call_later(min(self.delays[stream], timeout_ms / 1000), answer)
        return Sent(self, timer)

    def writer(self, **limits) -> AsyncMultiStreamWriter:
        return AsyncMultiStreamWriter(self.send, STREAMS, MultiStreamLimits(**limits), shuffle=lambda streams: None)

    @property
    def order(self) -> list[str]:
        return [request.stream for _, request, _ in self.sent]


class Sent:
    def __init__(self, streams: Streams, timer: asyncio.TimerHandle) -> None:
        self._streams, self._timer = streams, timer

    def cancel(self) -> None:
        self._streams.cancelled += 1
        self._timer.cancel()


def members(request: WriteRecords) -> list[bytes]:
    assert request.context.is_record_set
    return [bytes(one) for one in decode_record_set(request.payloads[0])]


@virtual_time
async def test_records_are_gathered_for_two_milliseconds_and_sets_go_to_the_streams_in_turn():
    streams = Streams()
    writer = streams.writer()
    for number in range(8):
        futures = [writer.write(b"%d-%d" % (number, one)) for one in range(3)]
        positions = await asyncio.gather(*futures)
        assert [one.stream for one in positions] == [STREAMS[number % 4]] * 3
        assert [one.dlsn.slot_id for one in positions] == [0, 1, 2]
    assert streams.order == STREAMS * 2
    assert members(streams.sent[1][1]) == [b"1-0", b"1-1", b"1-2"]
    assert all(timeout == 500 for _, _, timeout in streams.sent)
    await writer.close()


@virtual_time
async def test_a_full_buffer_is_sent_at_once():
    streams = Streams()
    writer = streams.writer()
    for _ in range(40):
        writer.write(bytes(1000))
    assert [len(members(request)) for _, request, _ in streams.sent] == [16, 16]
    await writer.flush()
    assert [len(members(request)) for _, request, _ in streams.sent] == [16, 16, 8]
    assert writer.pending_bytes == 0
    await writer.close()


@virtual_time
async def test_a_set_that_is_not_answered_soon_goes_to_the_next_streams_and_the_first_success_counts():
    streams = Streams()
    streams.delays |= {"s0": 9, "s1": 9, "s2": 9, "s3": 0.01}
    writer = streams.writer()
    position = await writer.write(b"one")
    assert position.stream == "s3"
    times = [at for at, _, _ in streams.sent]
    assert [round((at - times[0]) * 1000) for at in times] == [0, 50, 150, 350]
    assert [timeout for _, _, timeout in streams.sent] == [500, 450, 350, 150]
    assert streams.cancelled == 3
    assert writer.speculative == 3
    await writer.close()


@virtual_time
async def test_a_stream_that_refuses_leads_to_the_next_at_once_and_all_of_them_to_an_error():
    streams = Streams()
    streams.answers = dict.fromkeys(STREAMS[:3], Refusal(StatusCode.STREAM_UNAVAILABLE, "not here"))
    writer = streams.writer()
    assert (await writer.write(b"one")).stream == "s3"
    assert writer.speculative == 0
    streams.answers["s3"] = Refusal(StatusCode.STREAM_UNAVAILABLE, "nor here")
    with pytest.raises(NotAppliedError):
        await writer.write(b"two")
    await writer.close()


@virtual_time
async def test_what_may_be_in_one_stream_is_in_doubt_though_the_others_refuse():
    streams = Streams()
    streams.answers = dict.fromkeys(STREAMS, Refusal(StatusCode.STREAM_UNAVAILABLE, "not here"))
    streams.answers["s1"] = Refusal(StatusCode.BK_TRANSMIT_ERROR, "sent", applied=Applied.UNKNOWN)
    writer = streams.writer()
    with pytest.raises(OutcomeUnknownError):
        await writer.write(b"one")
    await writer.close()


@virtual_time
async def test_a_request_that_is_wrong_is_not_tried_elsewhere():
    streams = Streams()
    streams.answers["s0"] = Refusal(StatusCode.REQUEST_DENIED, "no", applied=Applied.WRONG)
    writer = streams.writer()
    with pytest.raises(CallerError):
        await writer.write(b"one")
    assert streams.order == ["s0"]
    await writer.close()


@virtual_time
async def test_what_waits_is_bounded_and_a_closed_writer_takes_nothing():
    streams = Streams()
    writer = streams.writer(max_pending_bytes=10_000)
    for _ in range(10):
        writer.write(bytes(1000))
    with pytest.raises(OverCapacityError):
        writer.write(b"x")
    await writer.flush()
    future = writer.write(b"x")
    await writer.close()
    assert isinstance(future.result(), StreamPosition)
    with pytest.raises(AlreadyClosedError):
        writer.write(b"late")


@virtual_time
async def test_closing_that_is_cut_short_leaves_no_record_without_an_outcome():
    streams = Streams()
    streams.delays = dict.fromkeys(STREAMS, 100)
    writer = streams.writer(request_timeout_ms=60_000)
    future = writer.write(b"one")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(writer.close(), 1)
    assert isinstance(future.exception(), OutcomeUnknownError)


def test_limits_that_cannot_be() -> None:
    for wrong in (
        {"compression": "zip"},
        {"buffer_bytes": 0},
        {"buffer_bytes": 2_000_000},
        {"first_speculative_ms": 300},
        {"speculative_factor": 0.5},
        {"request_timeout_ms": 0},
    ):
        with pytest.raises(SettingsError):
            MultiStreamLimits(**wrong)


# ---------------------------------------------------------------------- monitor


def test_streams_are_split_between_instances() -> None:
    names = [f"stream-{number}" for number in range(1000)]
    for instances in (1, 3, 7):
        mine = [[name for name in names if is_mine(name, one, instances)] for one in range(instances)]
        assert sum(map(len, mine)) == 1000
        assert min(map(len, mine)) > 0.7 * 1000 / instances


@virtual_time
async def test_each_stream_gets_a_heartbeat_an_interval_and_what_becomes_of_it_is_counted():
    fleet = MemoryProxies("a:1", "b:1")
    async with await opened(fleet) as client:
        monitor = client.monitor([f"s{number}" for number in range(20)])
        await asyncio.sleep(10)
        assert all(90 <= one.answered <= 101 and not one.refused for one in monitor.health.values())
        assert not any(log.records for log in fleet.logs.values())
        refusal = Refusal(StatusCode.REQUEST_DENIED, "no", applied=Applied.WRONG)
        for proxy in fleet.proxies.values():
            proxy.refusals += [refusal] * 40
        await asyncio.sleep(10)
        assert sum(one.refused for one in monitor.health.values()) == 80
        assert all(not one.failing for one in monitor.health.values())
        assert any("REQUEST_DENIED" in one.last_refusal for one in monitor.health.values())
        monitor.watch(["s1", "new"])
        assert set(monitor.health) == {"s1", "new"}
        await monitor.close()
        await asyncio.sleep(0.1)  # what was on its way arrives
        before = len(fleet.requests)
        await asyncio.sleep(5)
        assert len(fleet.requests) == before


@virtual_time
async def test_a_stream_that_does_not_answer_is_not_asked_twice_at_a_time_and_holds_up_no_other():
    fleet = MemoryProxies("a:1", "b:1")
    fleet.owners |= {"slow": "a:1", "quick": "b:1"}
    async with await opened(fleet, attemptTimeoutMs=0) as client:
        await client.owner("slow")
        fleet["a:1"].hold = True
        monitor = client.monitor(["slow", "quick"])
        await asyncio.sleep(3)
        assert monitor.health["quick"].answered > 25
        assert len([one for one in fleet["a:1"].requests if getattr(one, "stream", "") == "slow"]) <= 2
        fleet["a:1"].release()
        await asyncio.sleep(1)
        assert monitor.health["slow"].answered > 5
        assert monitor.health["slow"].longest_ms > 2000
        with pytest.raises(CallerError):
            client.monitor([], instance=2, instances=2)
        await monitor.close()
