"""Streams from the beginning of a log through a read proxy go through cold files, and know nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from helpers.cold.moved import HandMover
from helpers.cold.places import folder_place
from helpers.logs import written
from helpers.serving.read_world import Puller, ReadWorld

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import AlreadyTruncatedError
from dlspark.serving.bindings.service import Caller
from dlspark.serving.client.reading import AsyncProxyReader
from dlspark.serving.protocol.operations import ReadForm, Refusal, StatusCode

SEGMENTS = [[b"%d-%d" % (part, number) * 10 for number in range(20)] for part in range(5)]
FLAT = [payload for segment in SEGMENTS for payload in segment]


@pytest_asyncio.fixture
async def mover(read_world: ReadWorld, tmp_path: Path) -> AsyncIterator[HandMover]:
    root = folder_place(tmp_path / "cold").root
    made = HandMover(await read_world.namespace(), root, read_world.bookies, row_group_bytes=1_000)
    yield made
    await made.files.close()


class Asking:
    """One read of a thin client, which it may take back."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def asker(service):
    """Ask a proxy as a thin client does, without a network between."""
    caller = Caller("thin")

    def ask(request, settle, lane):
        asking = Asking()

        def reply(answer) -> None:
            if not asking.cancelled:
                settle(answer)

        asyncio.get_running_loop().call_soon(service.submit, request, caller, reply)
        return asking

    return ask


@pytest.mark.parametrize("form", [ReadForm.RECORDS, ReadForm.ARROW])
async def test_readers_of_a_proxy_go_through_files_and_ledgers(read_world: ReadWorld, mover: HandMover, form: ReadForm):
    await written(await read_world.namespace(), "flights", SEGMENTS)
    await mover.move("flights", 1, 2)
    await mover.move("flights", 3, 3)
    service = await read_world.proxy()
    readers = [Puller(service, "flights", caller=Caller(f"c{number}"), form=form) for number in range(3)]
    behind = Puller(service, "flights", DLSN(2, 7, 0), caller=Caller("behind"), form=form)
    await asyncio.gather(*(reader.until(len(FLAT)) for reader in readers), behind.until(73))
    assert [reader.payloads for reader in readers] == [FLAT] * 3
    assert behind.payloads == FLAT[27:]


async def test_a_thin_client_s_reader_goes_on_while_its_segments_leave_for_files(
    read_world: ReadWorld, mover: HandMover
):
    await written(await read_world.namespace(), "flights", SEGMENTS)
    service = await read_world.proxy()
    async with AsyncProxyReader(asker(service), "flights", "earliest", max_bytes=200) as reader:
        found = []
        for lssn in (1, 2, 3, 4):
            found += [(await reader.read_next()).payload for _ in range(5)]
            await mover.move("flights", lssn, lssn)
        while len(found) < len(FLAT):
            found.append((await reader.read_next()).payload)
        assert found == FLAT
        async with await (await (await read_world.namespace()).open_log("flights")).open_writer() as writer:
            writer.write(10_000, b"next")
            await writer.flush()
        assert (await reader.read_next()).payload == b"next"
        await reader.skip_to(DLSN(1, 3, 0))
        assert (await reader.read_next()).payload == FLAT[3]


async def test_what_retention_takes_from_under_a_proxy_is_told_as_truncation(read_world: ReadWorld, mover: HandMover):
    await written(await read_world.namespace(), "flights", SEGMENTS)
    unit = await mover.move("flights", 1, 2)
    await mover.copy("flights", 3, 3)
    service = await read_world.proxy()
    await mover.delete_cold("flights", unit)
    refusal = await Puller(service, "flights", DLSN(1, 5, 0)).until(1)
    assert isinstance(refusal, Refusal)
    assert refusal.code is StatusCode.TRUNCATED_TRANSACTION
    async with AsyncProxyReader(asker(service), "flights", DLSN(1, 5, 0)) as reader:
        with pytest.raises(AlreadyTruncatedError):
            await reader.read_next()
    reader = Puller(service, "flights")
    await reader.until(60)
    assert reader.payloads == FLAT[40:]
