"""What a request that was refused, or has failed, leaves behind for those behind it: no transaction id, no seal."""

from __future__ import annotations

import asyncio

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import encode_record_set
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.proxy_writes import append_run, write_run
from dlspark.errors import (
    ConditionError,
    ProducerFencedError,
    SequenceGapError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteCancelledError,
    WriteError,
)
from storage_node.protocol.schema import Status

FAR: int = 2**62
"""A transaction id that is legal, and far above everybody else's."""


async def _ids(namespace, name):
    log = await namespace.open_log(name)
    async with await log.open_reader() as reader:
        found = []
        while more := await reader.read_available(1000, wait=True):
            found += [record.txid for record in more]
        return found


async def _outcome(future):
    return (await asyncio.gather(asyncio.wait_for(future, 60), return_exceptions=True))[0]


def run_written(writer, txids, payloads, *, bulk=True):
    outcomes = []
    write_run(writer, txids, payloads, lambda first, count, outcome: outcomes.extend([outcome] * count), bulk=bulk)
    return outcomes


@pytest.mark.parametrize("first", [True, False], ids=["which begins the segment", "in a segment"])
@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"expected_position": 99}, ConditionError),
        ({"expected_position": DLSN(7, 7, 7)}, ConditionError),
        ({"fencing_token": b"other"}, ConditionError),
        ({"producer": "p", "epoch": 1, "sequence": 3}, SequenceGapError),
        ({"producer": "old", "epoch": 0, "sequence": 0}, ProducerFencedError),
    ],
)
async def test_a_refused_append_moves_no_transaction_id(memory_cluster, namespace, first, asked, error):
    log = await namespace.open_log("ids")
    writer = await log.open_writer(producers=True)
    await writer.begin_epoch("old", 1)
    await writer.close()
    async with await log.open_writer(producers=True) as writer:
        if not first:
            await asyncio.gather(writer.append([(5, b"before")]), writer.flush())
        refused, behind = writer.append([(FAR, b"x")], **asked), writer.append([(6, b"behind")])
        await writer.flush()
        assert isinstance(await _outcome(refused), error)
        assert isinstance(await behind, Appended)
        assert writer.last_txid == 6
    async with await log.open_writer() as heir:  # what the segment's own records and the log's metadata say
        assert heir.last_txid == 6
        await asyncio.gather(heir.write(7, b"after"), heir.flush())
    assert await _ids(namespace, "ids") == ([5] if not first else []) + [6, 7]


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_a_segment_that_a_refused_append_began_says_nothing_of_its_ids(memory_cluster, namespace, ending):
    log = await namespace.open_log("ids")
    async with await log.open_writer() as writer:
        await asyncio.gather(writer.write(5, b"before"), writer.flush())
    writer = await log.open_writer(producers=True)
    assert isinstance(await _outcome(writer.append([(FAR, b"x")], expected_position=99)), ConditionError)
    await getattr(writer, ending)()
    async with await log.open_writer() as heir:
        assert heir.last_txid == 5
    assert {segment.first_txid for segment in await log.segments()} == {5}


async def test_records_without_ids_have_the_time_at_which_they_get_their_place(memory_cluster, namespace):
    clock = namespace.services.clock
    before = clock.now_ms()
    async with await (await namespace.open_log("ids")).open_writer(producers=True) as writer:
        # All of them wait for the segment, in line with requests that will be refused, and one that will not.
        refused = writer.append([(FAR, b"x")], expected_position=99)
        alone = run_written(writer, None, [b"a", b"b"], bulk=False)
        encoded = writer.write_encoded_set(None, encode_record_set([b"c", b"d"]))
        ahead = clock.now_ms() + 3_600_000
        given = writer.append([(ahead, b"e")])
        behind = run_written(writer, None, [b"f"])
        whole: list[object] = []
        append_run(writer, None, [b"g", b"h"], lambda *outcome: whole.append(outcome[2]))
        await writer.flush()
        assert isinstance(await _outcome(refused), ConditionError)
        await asyncio.gather(encoded, given)
        assert all(isinstance(one, Appended) for one in [*alone, *behind, *whole])
        assert len(alone + behind + whole) == 4
    ids = await _ids(namespace, "ids")
    assert ids == sorted(ids)
    assert all(before <= one <= clock.now_ms() for one in ids[:4])
    assert ids[4:] == [ahead] * 4


async def test_a_given_id_below_that_of_an_append_in_line_is_refused_when_that_is_written(namespace):
    async with await (await namespace.open_log("ids")).open_writer(producers=True) as writer:
        appended = writer.append([(100, b"append")])
        run = run_written(writer, [50, 60], [b"late", b"not tried"])
        late, fine = writer.write(70, b"late"), writer.write(100, b"fine")
        await writer.flush()
        assert isinstance(await appended, Appended)
        assert [type(one) for one in run] == [TransactionIdOutOfOrderError] * 2
        assert isinstance(await _outcome(late), TransactionIdOutOfOrderError)
        assert isinstance(await fine, DLSN)
    assert await _ids(namespace, "ids") == [100, 100]


async def _fail(memory_cluster, writer, write):
    """Have `write` begin something that no storage node takes."""
    for bookie in memory_cluster.bookies:
        bookie.reject = Status.EFENCED
    failed = write()
    with pytest.raises((TransmitError, WriteError)):
        await writer.flush()
    for bookie in memory_cluster.bookies:
        bookie.reject = None
    return failed


async def test_the_id_of_a_record_that_did_not_get_into_the_log_keeps_no_other_out(memory_cluster):
    namespace = await memory_cluster.namespace(disable_rolling_on_error=False)
    writer = await (await namespace.open_log("ids")).open_writer()
    await asyncio.gather(writer.write(1, b"one"), writer.flush())
    failed = await _fail(memory_cluster, writer, lambda: writer.write(FAR, b"far"))
    assert isinstance(await _outcome(failed), TransmitError)
    await asyncio.gather(writer.write(2, b"two"), writer.flush())
    assert writer.last_txid == 2
    await writer.close()
    assert await _ids(namespace, "ids") == [1, 2]


async def test_what_recovery_finds_of_a_failed_segment_keeps_lower_ids_out(memory_cluster):
    """The answers are lost, not the record."""
    namespace = await memory_cluster.namespace(disable_rolling_on_error=False)
    writer = await (await namespace.open_log("ids")).open_writer()
    await asyncio.gather(writer.write(1, b"one"), writer.flush())
    stored = writer.write(FAR, b"far")
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    await writer.send()
    writer._sequence.current.cancel(WriteCancelledError("the answers are lost"))
    behind = writer.write(2, b"two")
    for bookie in memory_cluster.bookies:
        bookie.release()
    outcome = await _outcome(behind)
    await asyncio.gather(stored, return_exceptions=True)
    assert isinstance(outcome, TransactionIdOutOfOrderError)
    await asyncio.gather(writer.write(FAR, b"after"), writer.flush())
    await writer.close()
    assert await _ids(namespace, "ids") == [1, FAR, FAR]


async def test_an_end_of_stream_that_did_not_get_into_the_log_seals_nothing(memory_cluster):
    namespace = await memory_cluster.namespace(disable_rolling_on_error=False)
    writer = await (await namespace.open_log("ids")).open_writer()
    await asyncio.gather(writer.write(1, b"one"), writer.flush())
    for bookie in memory_cluster.bookies:
        bookie.reject = Status.EFENCED
    with pytest.raises((TransmitError, WriteError)):
        await writer.mark_end_of_stream()
    for bookie in memory_cluster.bookies:
        bookie.reject = None
    assert writer.last_txid < MAX_TXID
    await asyncio.gather(writer.write(2, b"two"), writer.flush())
    await writer.close()
    assert await _ids(namespace, "ids") == [1, 2]
