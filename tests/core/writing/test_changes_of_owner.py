"""A log passes from one owner to the next in order: what that asks of the metadata store, and answers that are lost."""

from __future__ import annotations

import pytest

from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import ConnectionLossError, DistributedLogError

WRITING = ("create", "put", "delete", "multi")


class Asked:
    """What a client asks of the metadata store: writing requests, and all of them."""

    def __init__(self, namespace) -> None:
        self.writing: list[str] = []
        self.all: list[str] = []
        namespace.store.observe(self._heard)

    def _heard(self, operation: str, path: str, seconds: float, error: DistributedLogError | None) -> None:
        self.all.append(f"{operation} {path}")
        if operation in WRITING:
            self.writing.append(operation)

    def clear(self) -> None:
        self.all.clear()
        self.writing.clear()


async def owner_with_a_segment(namespace, name: str):
    writer = await (await namespace.open_log(name)).open_writer("first", producers=True)
    await writer.write(1, b"one")
    return writer


async def test_the_lock_goes_with_the_end_of_the_last_segment(memory_cluster):
    first = await memory_cluster.namespace(output_buffer_bytes=0)
    writer = await owner_with_a_segment(first, "events")
    asked = Asked(first)
    await writer.close()
    assert asked.writing == ["put", "multi"], "the ledger's end; the segment's, and the lock"
    assert (await memory_cluster.operator.children("/dl/events/<default>/lock"))[0] == []


async def test_who_has_written_nothing_gives_the_lock_up_even_so(memory_cluster):
    first = await memory_cluster.namespace(output_buffer_bytes=0)
    writer = await (await first.open_log("events")).open_writer("first")
    await writer.close()
    assert (await memory_cluster.operator.children("/dl/events/<default>/lock"))[0] == []


async def test_a_new_owner_makes_its_ledger_and_claims_the_log_in_one_step(memory_cluster):
    first, second = (
        await memory_cluster.namespace(output_buffer_bytes=0),
        await memory_cluster.namespace(output_buffer_bytes=0),
    )
    await (await owner_with_a_segment(first, "events")).close()
    async with await (await second.open_log("other")).open_writer() as other:
        await other.write(1, b"x")  # it knows the cluster
    await second.services.ledger_store.reserve_id()
    log, asked = await second.open_log("events"), Asked(second)
    writer = await log.open_writer("second", producers=True)
    assert asked.writing == ["create", "multi"], "its place in the lock's queue; its ledger, with the log's versions"
    asked.clear()
    await writer.write(2, b"two")
    assert asked.writing == ["multi"], "the start of the segment"
    await writer.close()


@pytest.mark.parametrize("goes_on", [False, True], ids=["nobody else", "the next owner has gone on"])
async def test_a_close_whose_last_answer_is_lost_is_whole_all_the_same(memory_cluster, monkeypatch, goes_on):
    first, second = (
        await memory_cluster.namespace(output_buffer_bytes=0),
        await memory_cluster.namespace(output_buffer_bytes=0),
    )
    writer = await owner_with_a_segment(first, "events")
    logs, next_owner = first.logs_store, await second.open_log("events")
    complete, opened = logs.complete_segment, []

    async def lost(*arguments, **named):
        await complete(*arguments, **named)
        if goes_on:
            opened.append(await next_owner.open_writer("second", producers=True))
            await opened[0].write(2, b"two")
        raise ConnectionLossError("the answer was lost")

    monkeypatch.setattr(logs, "complete_segment", lost)
    await writer.close()
    monkeypatch.undo()
    members = (await memory_cluster.operator.children("/dl/events/<default>/lock"))[0]
    assert len(members) == len(opened)
    if not goes_on:
        opened.append(await next_owner.open_writer("second", producers=True))
    assert await opened[0].write(3, b"three") > DLSN(2, -1, -1)
    await opened[0].close()
    assert [segment.in_progress for segment in await next_owner.segments()] == [False, False]


async def test_a_last_transaction_that_is_refused_leaves_the_lock_to_be_released(memory_cluster, monkeypatch):
    first = await memory_cluster.namespace(output_buffer_bytes=0)
    writer = await owner_with_a_segment(first, "events")
    data, _ = await memory_cluster.operator.get("/dl/events/<default>/ledgers")
    await memory_cluster.operator.put("/dl/events/<default>/ledgers", data, -1)
    with pytest.raises(DistributedLogError):
        await writer.close()
    assert (await memory_cluster.operator.children("/dl/events/<default>/lock"))[0] == []
