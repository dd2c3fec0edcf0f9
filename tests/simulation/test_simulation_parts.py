"""The simulator's own parts: a fault model that is wrong proves nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
from random import Random

import pytest

from metadata.foundation.errors import InvariantViolation
from simulation.cluster import World
from simulation.environment.disk import BLOCK, REMOVAL, SimulatedDisk
from simulation.environment.loop import SimulatedLoop, SimulationStuckError
from simulation.environment.network import Fabric, SimulatedNetwork
from simulation.runs.many import RunReport, play
from storage_node.edge import Link
from storage_node.errors import BookieUnreachableError


def loop_of(seed: int = 1) -> SimulatedLoop:
    return SimulatedLoop(Random(seed))


def disk_of(loop: SimulatedLoop) -> SimulatedDisk:
    disk = SimulatedDisk(loop, "h", Random(1))
    disk.make_directory("/d")
    return disk


# ---------------------------------------------------------------------------------------- loop


def test_time_jumps_to_the_next_timer() -> None:
    loop = loop_of()

    async def main() -> float:
        began = loop.time()
        await asyncio.sleep(86_400)
        return loop.time() - began

    assert loop.run_until_complete(main()) == pytest.approx(86_400)
    loop.finish()


def test_waiting_for_nothing_is_an_error() -> None:
    loop = loop_of()
    with pytest.raises(SimulationStuckError, match="for ever"):
        loop.run_until_complete(loop.create_future())
    loop.finish()


def test_a_paused_process_does_nothing_and_then_goes_on_in_order() -> None:
    loop = loop_of()
    process = loop.process("h", "p")
    seen: list[float] = []

    async def tick() -> None:
        while len(seen) < 6:
            seen.append(loop.time())
            await asyncio.sleep(1)

    async def main() -> None:
        loop.start(process, tick())
        await asyncio.sleep(2.5)
        loop.pause(process)
        await asyncio.sleep(10)
        assert len(seen) == 3
        loop.resume(process)
        await asyncio.sleep(20)

    loop.run_until_complete(main())
    assert len(seen) == 6
    assert seen == sorted(seen)
    assert seen[3] - seen[2] > 10
    loop.finish()


def test_a_killed_process_runs_no_line_more_not_even_its_finally_clauses() -> None:
    loop = loop_of()
    process = loop.process("h", "p")
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ended.append("finally")

    async def main() -> None:
        task = loop.start(process, work())
        await asyncio.sleep(1)
        loop.kill(process)
        await asyncio.sleep(100)
        assert not task.done()
        assert ended == []

    loop.run_until_complete(main())
    loop.finish()


def test_a_trap_springs_at_the_chosen_step() -> None:
    loop = loop_of()
    process = loop.process("h", "p")
    count = 0

    async def work() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    async def main() -> None:
        process.at_step(7, lambda: loop.kill(process))
        loop.start(process, work())
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert count == 6
    loop.finish()


# ---------------------------------------------------------------------------------------- disk


def test_a_power_cut_keeps_what_was_synced_and_may_lose_the_rest() -> None:
    loop = loop_of()
    lost = kept = torn = 0
    for seed in range(60):
        disk = SimulatedDisk(loop, "h", Random(seed))
        disk.make_directory("/d")
        file = disk.open("/d/f", create=True)
        file.write_at(0, [b"a" * 8192])
        file.sync_data()
        disk.sync_directory("/d")
        file.write_at(0, [b"b" * 8192])
        disk.cut(power=True)
        data = disk.read_file("/d/f") or b""
        assert len(data) == 8192
        lost += data == b"a" * 8192
        kept += data == b"b" * 8192
        torn += len(set(data)) == 2
        assert all(len(set(data[at : at + 512])) == 1 for at in range(0, 8192, 512))
    assert lost > 5
    assert kept > 5
    assert torn > 5
    loop.finish()


def test_a_killed_process_loses_no_write_that_was_done() -> None:
    loop = loop_of()
    disk = disk_of(loop)
    disk.open("/d/f", create=True).write_at(0, [b"data"])
    disk.cut(power=False)
    assert disk.read_file("/d/f") == b"data"
    loop.finish()


def test_a_name_that_was_not_synced_may_be_gone_and_a_rename_is_never_half_done() -> None:
    loop = loop_of()
    outcomes = set()
    for seed in range(40):
        disk = SimulatedDisk(loop, "h", Random(seed))
        disk.make_directory("/d")
        disk.write_file("/d/old", b"1")
        disk.rename("/d/old", "/d/new")
        disk.cut(power=True)
        outcomes.add(tuple(disk.list_directory("/d")))
    assert outcomes == {("old",), ("new",)}
    loop.finish()


def test_names_that_were_not_synced_are_kept_in_order_by_some_disks_and_in_any_by_others() -> None:
    loop = loop_of()
    ordered: set[tuple[str, ...]] = set()
    others: set[tuple[str, ...]] = set()
    for seed in range(80):
        disk = SimulatedDisk(loop, "h", Random(seed))
        disk.make_directory("/d")
        disk.open("/d/1", create=True)
        disk.open("/d/2", create=True)
        disk.cut(power=True)
        (ordered if disk.keeps_order else others).add(tuple(disk.list_directory("/d")))
    assert ordered == {(), ("1",), ("1", "2")}
    assert others == {(), ("1",), ("2",), ("1", "2")}
    loop.finish()


def test_a_disk_holds_what_a_power_cut_would_leave() -> None:
    loop = loop_of()
    disk = disk_of(loop)
    file = disk.open("/d/f", create=True)
    file.write_at(0, [bytes(BLOCK)])
    assert not disk.holds("/d/f", 0)
    disk.sync_directory("/d")
    assert not disk.holds("/d/f", BLOCK)
    file.sync_data()
    file.write_at(BLOCK, [bytes(BLOCK)])
    assert disk.holds("/d/f", BLOCK)
    assert not disk.holds("/d/f", BLOCK + 1)
    file.truncate(0)
    assert not disk.holds("/d/f", BLOCK)
    loop.finish()


def test_a_trap_at_a_moment_of_a_disk_springs_once() -> None:
    loop = loop_of()
    disk = disk_of(loop)
    sprung: list[str] = []
    disk.at_moment(REMOVAL, lambda: sprung.append("removed"))
    disk.remove("/d/nothing")
    assert sprung == []
    for name in ("1", "2"):
        disk.open(f"/d/{name}", create=True)
        disk.remove(f"/d/{name}")
    assert sprung == ["removed"]
    loop.finish()


def test_a_disk_that_tears_keeps_some_sectors_of_what_was_not_synced_and_does_so_once() -> None:
    loop = loop_of()
    kept: list[int] = []
    for seed in range(20):
        disk = SimulatedDisk(loop, "h", Random(seed))
        disk.make_directory("/d")
        file = disk.open("/d/f", create=True)
        disk.sync_directory("/d")
        file.write_at(0, [b"x" * BLOCK])
        disk.tears = True
        disk.cut(power=True)
        assert not disk.tears
        kept.append((disk.read_file("/d/f") or b"").count(b"x"))
    assert all(size % 512 == 0 for size in kept)
    assert sum(0 < size < BLOCK for size in kept) > 15
    loop.finish()


def test_a_sync_that_fails_loses_the_data_and_the_next_one_lies() -> None:
    loop = loop_of()
    disk = SimulatedDisk(loop, "h", Random(3))
    disk.make_directory("/d")
    survived = 0
    for number in range(40):
        file = disk.open(f"/d/{number}", create=True)
        disk.sync_directory("/d")
        file.write_at(0, [b"x" * 100])
        disk.faults.eio_sync = 1.0
        with pytest.raises(OSError, match="simulated"):
            file.sync_data()
        disk.faults.eio_sync = 0.0
        file.sync_data()
    disk.cut(power=True)
    survived = sum(disk.read_file(f"/d/{number}") == b"x" * 100 for number in range(40))
    assert 0 < survived < 40
    loop.finish()


def test_a_direct_file_refuses_what_is_not_aligned() -> None:
    loop = loop_of()
    file = disk_of(loop).open("/d/f", create=True, direct=True)
    with pytest.raises(OSError, match="aligned") as refused:
        file.write_at(1, [bytes(BLOCK)])
    assert refused.value.errno == errno.EINVAL
    loop.finish()


# ---------------------------------------------------------------------------------------- network


class Peer:
    """Notes what a link delivers."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: list[Exception | None] = []

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def batch_done(self) -> None: ...

    def link_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


def frame(number: int) -> bytes:
    body = b"%04d" % number
    return len(body).to_bytes(4, "big") + body


class Pair:
    """Two hosts, a listener on one, and a connection from the other."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = loop_of(seed)
        self.fabric = Fabric(self.loop, Random(seed))
        self.server, self.client = self.loop.process("s", "s"), self.loop.process("c", "c")
        self.near, self.far = Peer(), Peer()
        self.far_link: Link | None = None

    def accept(self, link: Link) -> Peer:
        self.far_link = link
        return self.far

    async def connect(self) -> Link:
        network = SimulatedNetwork(self.fabric)
        await self.loop.start(self.server, network.listen("", 1, self.accept))
        return await self.loop.start(self.client, network.connect("s", 1, self.near, timeout_ms=1000))


def test_a_partition_holds_frames_back_and_delivers_them_in_order_afterwards() -> None:
    pair = Pair()

    async def main() -> None:
        link = await pair.connect()
        pair.fabric.block("c", "s")
        for number in range(5):
            link.send(frame(number))
            await asyncio.sleep(0.1)
        assert pair.far.frames == []
        pair.fabric.unblock("c", "s")
        link.send(frame(5))
        await asyncio.sleep(1)

    pair.loop.run_until_complete(main())
    assert pair.far.frames == [b"%04d" % number for number in range(6)]
    pair.loop.finish()


def test_a_broken_connection_delivers_a_prefix_and_tells_both_sides_once() -> None:
    counts = set()
    for seed in range(30):
        pair = Pair(seed)

        async def main(pair: Pair = pair) -> None:
            link = await pair.connect()
            for number in range(8):
                link.send(frame(number))
                await asyncio.sleep(0.0003)
            pair.fabric.break_link(link)  # type: ignore[arg-type]
            await asyncio.sleep(1)

        pair.loop.run_until_complete(main())
        assert pair.far.frames == [b"%04d" % number for number in range(len(pair.far.frames))]
        assert (len(pair.near.closed), len(pair.far.closed)) == (1, 1)
        counts.add(len(pair.far.frames))
        pair.loop.finish()
    assert len(counts) > 1


def test_a_connection_that_breaks_at_once_loses_what_was_sent_just_now() -> None:
    for seed in range(20):
        pair = Pair(seed)

        async def main(pair: Pair = pair) -> None:
            link = await pair.connect()
            link.send(frame(0))
            await asyncio.sleep(1)
            pair.fabric.on_frame = lambda sender, frame: pair.fabric.break_link(sender, within=0.1)
            link.send(frame(1))
            await asyncio.sleep(1)

        pair.loop.run_until_complete(main())
        assert pair.far.frames == [b"0000"]
        assert (len(pair.near.closed), len(pair.far.closed)) == (1, 1)
        pair.loop.finish()


def test_the_peer_of_a_host_without_power_hears_nothing_until_it_sends() -> None:
    pair = Pair()

    async def main() -> None:
        link = await pair.connect()
        pair.loop.kill(pair.server)
        pair.fabric.silent.add("s")
        pair.fabric.forget(pair.server, power=True)
        await asyncio.sleep(100)
        assert pair.near.closed == []
        link.send(frame(1))
        await asyncio.sleep(2)
        assert pair.near.closed == []
        pair.fabric.silent.discard("s")
        await asyncio.sleep(2)
        assert len(pair.near.closed) == 1

    pair.loop.run_until_complete(main())
    pair.loop.finish()


def test_nobody_connects_through_a_one_way_partition() -> None:
    pair = Pair()
    pair.fabric.block("s", "c")

    async def main() -> None:
        with pytest.raises(BookieUnreachableError):
            await pair.connect()

    pair.loop.run_until_complete(main())
    pair.loop.finish()


# ---------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (KeyError(7), "unhandled: storage_node.somewhere: a round failed: KeyError(7)"),
        (
            InvariantViolation("no rule"),
            "unhandled: storage_node.somewhere: a round failed: InvariantViolation('no rule')",
        ),
        (BookieUnreachableError("gone"), None),
        (OSError(errno.EIO, "injected"), None),
    ],
    ids=["Python's", "a rule broken", "ours", "the disk's"],
)
def test_a_run_fails_by_an_error_that_was_swallowed_and_that_no_fault_brings(
    error: Exception, failure: str | None
) -> None:
    handlers = logging.root.handlers

    async def scenario(_: World) -> None:
        try:
            raise error
        except Exception:
            logging.getLogger("storage_node.somewhere").exception("a round failed")

    assert play(RunReport(1), lambda: World(1), scenario).failure == failure
    assert logging.root.handlers is handlers
