"""The files of logs that are needed no more go a step at a time: a disk may write nothing while much becomes free."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from helpers.bookie.faulty_disk import ForwardingFile
from helpers.bookie.gc_harness import Node, body_of
from helpers.waiting import until

from metadata.zookeeper.memory import MemoryTree
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.store import entry_logs, removal
from storage_node.bookie.store.entry_logs import EntryLogs
from storage_node.bookie.store.removal import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, STEP_FILES, LogRemover, _Unneeded
from storage_node.edge import DiskFile
from storage_node.protocol.schema import Status

STEP = 1024 * 1024
INTERVAL_MS = 900_000


class NotingFile(ForwardingFile):
    """A file that notes where it is cut off."""

    def __init__(self, inner: DiskFile, path: str, done: list[tuple[str, int]]) -> None:
        super().__init__(inner)
        self._name = Path(path).name
        self._done = done

    def truncate(self, size: int) -> None:
        self._done.append((self._name, size))
        super().truncate(size)


class NotingDisk(SystemDisk):
    """The real disk; notes what is cut off, and to which length, and what is removed (-1). `refused` fail."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, int]] = []
        self.refused: dict[str, int] = {}
        self.without_descriptors = False

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        if self.without_descriptors:
            raise OSError(errno.EMFILE, "injected", path)
        return NotingFile(super().open(path, create=create, direct=direct), path, self.done)

    def remove(self, path: str) -> None:
        if (error := self.refused.get(Path(path).name)) is not None:
            raise OSError(error, "injected", path)
        self.done.append((Path(path).name, -1))
        super().remove(path)


class LogsOf:
    """Logs in a directory, of which some are read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.read: set[int] = set()

    def make(self, log_id: int, size: int) -> None:
        (self._directory / f"{log_id}.log").write_bytes(bytes(size))
        (self._directory / f"{log_id}.idx").write_bytes(bytes(100))

    def drop(self, log_id: int) -> list[str]:
        return [str(self._directory / f"{log_id}{suffix}") for suffix in (".log", ".idx")]

    def is_read(self, log_id: int) -> bool:
        return log_id in self.read

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir())


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a size that tests write, without long pauses."""
    monkeypatch.setattr(removal, "STEP_BYTES", STEP)
    monkeypatch.setattr(removal, "LONGEST_PAUSE_S", 0.001)


def remover_of(logs: LogsOf, disk: NotingDisk, interval_ms: int) -> LogRemover:
    return LogRemover(cast(EntryLogs, logs), disk, interval_ms)


@pytest.fixture
def disk() -> NotingDisk:
    return NotingDisk()


@pytest.fixture
def logs(tmp_path: Path) -> LogsOf:
    return LogsOf(tmp_path)


@pytest.fixture
async def remover(logs: LogsOf, disk: NotingDisk) -> AsyncIterator[LogRemover]:
    made = remover_of(logs, disk, INTERVAL_MS)
    yield made
    await made.end()
    disk.close()


async def test_what_is_no_longer_than_a_step_is_gone_at_once(
    logs: LogsOf, disk: NotingDisk, remover: LogRemover
) -> None:
    logs.make(1, STEP // 2)
    logs.make(2, STEP // 4)
    await remover.remove({1: STEP // 2, 2: STEP // 4})
    assert logs.names == []
    assert {size for _, size in disk.done} == {-1}, "nothing was cut off"


async def test_a_long_log_is_cut_off_from_its_end_by_no_more_than_a_step_and_then_removed(
    logs: LogsOf, disk: NotingDisk, remover: LogRemover
) -> None:
    size = 3 * STEP + 1000
    logs.make(1, size)
    await remover.remove({1: size})
    assert logs.names == ["1.log"], "the rest goes beside what called it"
    await until(lambda: not logs.names)
    lengths = [size, *(length for name, length in disk.done if name == "1.log")]
    assert lengths[-1] == -1
    freed = [before - max(after, 0) for before, after in pairwise(lengths)]
    assert sum(freed) == size
    assert max(freed) <= STEP
    assert len(freed) == 4


async def test_a_log_that_is_read_stays_whole_until_that_ends_and_others_go(
    logs: LogsOf, disk: NotingDisk, remover: LogRemover
) -> None:
    for log_id in (1, 2):
        logs.make(log_id, 2 * STEP)
    logs.read.add(1)
    await remover.remove({1: 2 * STEP, 2: 2 * STEP})
    await until(lambda: logs.names == ["1.log"])
    assert "1.log" not in {name for name, _ in disk.done}
    logs.read.clear()
    await until(lambda: not logs.names)


async def test_what_cannot_be_removed_is_tried_again_with_the_next_logs_and_holds_up_nothing(
    logs: LogsOf, disk: NotingDisk, remover: LogRemover
) -> None:
    logs.make(1, 2 * STEP)
    logs.make(2, 2 * STEP)
    disk.refused = {"1.log": errno.EACCES}
    await remover.remove({1: 2 * STEP, 2: 2 * STEP})
    await until(lambda: logs.names == ["1.log"])
    await asyncio.sleep(0.05)
    tries = len(disk.done)
    await asyncio.sleep(0.05)
    assert len(disk.done) == tries, "it is not tried over and over"
    logs.make(3, 4 * STEP)
    disk.refused = {}
    await remover.remove({3: 4 * STEP})
    await until(lambda: not logs.names)


async def test_without_a_descriptor_a_log_goes_whole(logs: LogsOf, disk: NotingDisk, remover: LogRemover) -> None:
    logs.make(1, 5 * STEP)
    disk.without_descriptors = True
    await remover.remove({1: 5 * STEP})
    assert logs.names == []


async def test_files_that_are_missing_are_done(logs: LogsOf, remover: LogRemover) -> None:
    await remover.remove({7: 5 * STEP})
    assert not remover._left


async def test_at_the_end_no_step_follows_and_the_rest_is_left(logs: LogsOf, remover: LogRemover) -> None:
    logs.make(1, 10 * STEP)
    await remover.end()
    await remover.remove({1: 10 * STEP})
    await asyncio.sleep(0.05)
    assert logs.names == ["1.log"]
    assert remover._going_on is None


def test_all_steps_take_most_of_an_interval_at_most_unless_there_is_too_much_for_it(
    logs: LogsOf, disk: NotingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LONGEST_PAUSE_S", LONGEST_PAUSE_S)
    remover = remover_of(logs, disk, 10_000)
    for steps, pause_s in ((1, LONGEST_PAUSE_S), (30, LONGEST_PAUSE_S), (100, 0.08), (10_000, SHORTEST_PAUSE_S)):
        assert remover._pause_for([_Unneeded(1, steps * STEP)]) == pytest.approx(pause_s)
    assert remover._pause_for([_Unneeded(1, 0)] * (100 * STEP_FILES)) == pytest.approx(0.08)


async def test_what_comes_later_does_not_hold_up_what_came_before(logs: LogsOf, remover: LogRemover) -> None:
    remover._going_on = asyncio.ensure_future(asyncio.sleep(3600))
    remover._left, remover._pause_s = {"a": _Unneeded(1, STEP)}, 0.0001
    await remover._begin({"b": _Unneeded(2, STEP)})
    assert remover._pause_s == 0.0001


# ---------------------------------------------------------------------------------------------- in a node


@pytest.fixture
def smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of these nodes are short."""
    monkeypatch.setattr(removal, "STEP_BYTES", 16 * 1024)


@pytest.fixture
async def node(tmp_path: Path, smaller_steps: None) -> AsyncIterator[Node]:
    """A started node; its collector does nothing by itself."""
    made = Node(tmp_path / "node", MemoryTree())
    await made.metadata.format()
    await made.start()
    yield made
    await made.close()


async def _with_a_deleted_ledger(node: Node) -> None:
    await node.create(1, 2)
    await node.add(1, range(200), 5000)
    await node.add(2, range(10), 5000)
    await node.bookie.storage.checkpoint()
    await node.delete(1)


async def test_a_node_removes_logs_step_by_step_and_goes_on_meanwhile(node: Node) -> None:
    await _with_a_deleted_ledger(node)
    before = node.files()
    assert await node.bookie.collect_garbage() == 1
    await node.check(2, range(10), 5000)
    await until(lambda: node.files() < before / 2)
    assert await node.read(1, 0) is Status.ENOLEDGER


async def test_a_read_under_way_of_a_log_that_is_to_go_comes_to_its_end(node: Node) -> None:
    await node.create(1)
    await node.add_all([(ledger_id, entry_id) for entry_id in range(60) for ledger_id in range(1, 11)], 3000)
    await node.bookie.storage.checkpoint()
    node.forget_memory()
    await node.bookie.collect_garbage()
    entered, gate, ended = threading.Event(), threading.Event(), list[bool]()
    old, *others = (node.path_of(log_id) for log_id in node.log_ids()[:-1])

    def hold(path: str) -> None:
        if old.name in path and threading.current_thread().name.startswith("bookie-reads"):
            node.disk.read_gate = None
            entered.set()
            ended.append(gate.wait(60))

    node.disk.read_gate = hold
    reading = asyncio.ensure_future(node.read(1, 0))
    await until(entered.is_set)
    size = old.stat().st_size
    assert await node.bookie.compact() >= 5
    await until(lambda: not any(path.exists() for path in others))
    assert old.stat().st_size == size, "of what is read nothing was cut off"
    gate.set()
    assert await reading == body_of(1, 0, 3000)
    await until(lambda: not old.exists())
    await node.check(1, range(60), 3000)
    assert ended == [True]


async def test_a_read_that_waited_for_a_descriptor_while_its_log_was_given_up_is_served_and_leaves_none_open(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_logs, "DESCRIPTOR_PAUSES_S", (0.0,))
    logs = node.bookie.storage.contents.logs
    await node.create(1)
    await node.add_all([(ledger_id, entry_id) for entry_id in range(60) for ledger_id in range(1, 11)], 3000)
    await node.bookie.storage.checkpoint()
    node.forget_memory()
    await node.bookie.collect_garbage()
    place = node.bookie.storage.ledgers[1].index.get(0)
    assert place is not None
    path, opened, real = node.path_of(place[0]), list[DiskFile](), node.disk.open

    def once_without(name: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        if name == str(path) and not opened:
            opened.append(real(name))
            logs.drop(place[0])  # as a checkpoint does behind a compaction
            raise OSError(errno.EMFILE, "injected", name)
        opened.append(real(name, create=create, direct=direct))
        return opened[-1]

    monkeypatch.setattr(node.disk, "open", once_without)
    assert bytes(await logs.read(place[0], place[1] * 32, 64)) == path.read_bytes()[place[1] * 32 :][:64]
    assert not logs.is_read(place[0])
    with pytest.raises(OSError, match=str(errno.EBADF)):
        opened[-1].size()
    opened[0].close()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_what_a_node_leaves_of_a_log_is_gone_after_its_next_start(
    node: Node, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LONGEST_PAUSE_S", 3600.0)
    await _with_a_deleted_ledger(node)
    before = node.files()
    await node.bookie.collect_garbage()
    assert node.files() > before / 2, "one step"
    await (node.stop if clean else node.kill)()
    monkeypatch.setattr(removal, "LONGEST_PAUSE_S", 0.001)
    await node.start()
    await until(lambda: node.files() < before / 2)
    await node.check(2, range(10), 5000)
