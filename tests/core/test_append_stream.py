"""A log as a stream of bytes: what is appended is read back from any byte on, whoever appended it and however."""

from __future__ import annotations

import asyncio
import random

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_PAYLOAD_BYTES
from dlspark.errors import AlreadyTruncatedError, EndOfStreamError, LogEmptyError
from metadata.foundation.errors import CallerError, CorruptDataError


async def _stream(namespace, name, *parts):
    log = await namespace.open_log(name)
    async with await log.open_append_stream() as stream:
        for part in parts:
            await stream.append(part)
    return log


async def _whole(log, position=0):
    async with await log.open_append_reader(position) as reader:
        return await reader.read()


async def test_bytes_are_read_back_as_they_were_appended(namespace):
    log = await namespace.open_log("bytes")
    async with await log.open_append_stream() as stream:
        assert await stream.append(b"hello ") == 6
        assert await stream.append(b"") == 6
        assert await stream.append(memoryview(b"world")) == 11
        assert stream.durable_position == 0
        assert await stream.force() == stream.durable_position == 11
    assert await _whole(log) == b"hello world"
    records = [r async for r in _records(log)]
    assert [(r.txid, r.payload) for r in records] == [(6, b"hello "), (11, b"world")]


async def _records(log):
    async with await log.open_reader() as reader:
        for record in await reader.read_bulk(100):
            yield record


async def test_a_stream_goes_on_where_it_ended_also_after_a_crash(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    stream = await (await one.open_log("again")).open_append_stream()
    await stream.append(b"first ")
    await stream.force()
    await memory_cluster.crash(one)
    log = await other.open_log("again")
    async with await log.open_append_stream() as stream:
        assert stream.position == 6
        assert await stream.append(b"second") == 12
    assert await _whole(log) == b"first second"


async def test_reading_begins_at_any_byte_and_takes_any_number(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=50)
    rng = random.Random(3)
    parts = [bytes(rng.randrange(256) for _ in range(rng.randrange(40))) for _ in range(60)]
    log = await _stream(namespace, "any", *parts)
    whole = b"".join(parts)
    assert await _whole(log) == whole
    for position in (0, 1, len(parts[0]), 500, len(whole) - 1, len(whole)):
        assert await _whole(log, position) == whole[position:]
    async with await log.open_append_reader() as reader:
        taken = b""
        while part := await reader.read(rng.randrange(1, 90)):
            taken += part
            assert reader.position == len(taken)
        assert taken == whole
        for position in (700, 3, 3, 699):
            assert await reader.seek(position) == position
            assert await reader.read(10) == whole[position : position + 10]
        assert await reader.read(0) == b""
        for bad in (-1, True, 1.5):
            with pytest.raises(CallerError):
                await reader.seek(bad)


async def test_what_is_appended_later_is_read_later(namespace):
    log = await _stream(namespace, "later", b"one")
    async with await log.open_append_reader() as reader:
        assert await reader.read() == b"one"
        assert await reader.read() == b""
        await _stream(namespace, "later", b"two")
        assert await reader.read(2) == b"tw"
        assert await reader.read() == b"o"


async def test_a_read_that_is_cancelled_passes_over_no_byte(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace(read_ahead_wait_ms=60_000)
    log = await _stream(namespace, "cut", b"hello ", b"world")
    async with await log.open_append_reader() as reader:
        more, at_end = reader._more, asyncio.Event()

        async def watched():
            if reader.position == 11:
                at_end.set()
            return await more()

        monkeypatch.setattr(reader, "_more", watched)
        reading = asyncio.ensure_future(reader.read(100))
        await at_end.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert reader.position == 0
        assert await reader.read(8) == b"hello wo"
        assert await reader.read(3) == b"rld"


@pytest.mark.parametrize("moved", [False, True])
async def test_a_seek_that_is_cancelled_leaves_reading_where_it_was(memory_cluster, monkeypatch, moved):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("sought")
    async with await log.open_append_stream() as stream:
        for part in (b"one ", b"two ", b"three ", b"four"):
            await stream.append(part)
            await stream.force()
    async with await log.open_append_reader() as reader:
        assert await reader.read(5) == b"one t"
        skip_to, reached = reader._reader.skip_to, asyncio.Event()

        async def stuck(position):
            if moved:
                await skip_to(position)
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(reader._reader, "skip_to", stuck)
        seeking = asyncio.ensure_future(reader.seek(8))
        await reached.wait()
        seeking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await seeking
        monkeypatch.undo()
        assert reader.position == 5
        assert await reader.read() == b"wo three four"
        await reader.seek(8)
        assert await reader.read() == b"three four"


async def test_bytes_before_what_is_no_stream_are_not_lost_with_the_error(namespace):
    log = await _stream(namespace, "mixed", b"hello")
    async with await log.open_writer() as writer:
        writer.write(100, b"a record")
    async with await log.open_append_reader() as reader:
        with pytest.raises(CorruptDataError):
            await reader.read()
        assert await reader.read(5) == b"hello"


async def test_what_is_too_long_for_one_record_takes_several(memory_cluster):
    namespace = await memory_cluster.namespace()
    data = bytes(MAX_PAYLOAD_BYTES) + b"end"
    log = await _stream(namespace, "long", data)
    assert await _whole(log) == data
    assert await log.record_count() == 2


async def test_a_sealed_stream_is_read_to_its_end_and_takes_nothing_more(namespace):
    log = await namespace.open_log("sealed")
    stream = await log.open_append_stream()
    await stream.append(b"all")
    await stream.mark_end_of_stream()
    await stream.close()
    await stream.close()
    assert await _whole(log) == b"all"
    with pytest.raises(EndOfStreamError):
        await log.open_append_stream()


async def test_a_log_that_is_no_stream_is_told_from_one(namespace):
    log = await namespace.open_log("records")
    async with await log.open_writer() as writer:
        writer.write(5, b"12345")
        writer.write(900, b"not appended")
    async with await log.open_append_reader() as reader:
        with pytest.raises(CorruptDataError, match="were not appended to the stream"):
            await reader.read()


async def test_bytes_that_were_truncated_are_missed_and_the_others_are_found(namespace, monkeypatch):
    log = await _stream(namespace, "cut", b"0123456789")
    await _stream(namespace, "cut", b"abcdef")
    (first, _) = await log.segments()
    await namespace.ledgers.delete(first.ledger_id)
    await namespace.store.delete(namespace.logs_store.paths("cut").segment(first))
    async with await log.open_append_reader() as reader:
        with pytest.raises(AlreadyTruncatedError, match="byte 10"):
            await reader.read()
        await reader.seek(10)
        assert await reader.read() == b"abcdef"
    assert await log.start() == DLSN(2, 0, 0)
    async with await log.open_append_stream() as stream:
        assert stream.position == 16


async def test_the_length_is_what_is_committed_also_where_nothing_is_left_to_read(namespace):
    log = await namespace.open_log("length")
    await namespace.create_log("length")
    async with await log.open_append_reader() as reader:
        assert await reader.length() == 0
        async with await log.open_append_stream() as stream:
            await stream.append(b"0123456789")
            await stream.force()
            assert await reader.length() == 10
            assert await reader.seek(await reader.length() - 3) == 7
            assert await reader.read() == b"789"
        await log.truncate(await log.end())
        with pytest.raises(LogEmptyError):
            await log.last_txid()
        assert await reader.length() == 10
        async with await log.open_append_stream() as stream:
            assert await stream.append(b"abc") == 13
            await stream.mark_end_of_stream()
        assert await reader.length() == 13
        assert await log.truncate(await log.end()) == await log.end()
        with pytest.raises(LogEmptyError):
            await reader.length()
