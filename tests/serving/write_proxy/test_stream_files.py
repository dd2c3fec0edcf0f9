"""Limits of single streams from files: which file is whose, what changes while the proxy runs, and what does not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from helpers.worlds.metadata import Heard

from dlspark.core.settings.settings import Settings
from dlspark.errors import SettingsError
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.streams.files import StreamFiles

BASE = WriteProxySettings.from_mapping({"rpsHardWriteLimit": 1, "bpsHardWriteLimit": 1})


class World:
    def __init__(self, tmp_path: Path, **settings: str) -> None:
        self.directory = tmp_path / "streams"
        self.directory.mkdir()
        self.default = tmp_path / "all.conf"
        self.heard = Heard()
        self.counters: Counter[str] = Counter()
        values = {"streamConfigDirectory": str(self.directory), **settings}
        self.files = StreamFiles(BASE, Settings.from_mapping(values), self.counters, self.heard)

    def write(self, name: str, text: str) -> None:
        path = self.directory / f"{name}.conf"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def limits(self, stream: str) -> tuple[int, int]:
        found = self.files.settings_of(stream)
        return found.rps_hard_write, found.bps_hard_write


async def test_a_streams_file_goes_over_the_default_file_and_that_over_the_proxys(tmp_path: Path) -> None:
    world = World(tmp_path, streamConfigDefaultPath=str(tmp_path / "all.conf"))
    assert world.limits("a") == (1, 1)
    world.default.write_text("rpsHardWriteLimit=2\nperiodicFlushFrequencyMilliSeconds=5\n")
    world.write("a", "bpsHardWriteLimit=3\nreadAheadMaxRecords=7\n")
    world.write("folder/b", "rpsHardWriteLimit=4\n")
    await world.files.load()
    assert world.limits("a") == (2, 3)
    assert world.limits("folder/b") == (4, 1)
    assert world.limits("other") == (2, 1)


async def test_files_that_change_come_and_go_hold_from_the_next_look_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a", "rpsHardWriteLimit=5\n")
    await world.files.load()
    await world.files.reload()
    assert world.heard.items == []
    world.write("a", "rpsHardWriteLimit=6\n")
    world.write("b", "rpsHardWriteLimit=7\n")
    await world.files.reload()
    assert (world.limits("a"), world.limits("b")) == ((6, 1), (7, 1))
    (world.directory / "a.conf").unlink()
    await world.files.reload()
    await world.files.reload()
    assert world.limits("a") == (1, 1)
    assert len(world.heard.items) == 2
    world.write("a", "rpsHardWriteLimit=8\n")
    await world.files.reload()
    assert world.limits("a") == (8, 1)


async def test_what_cannot_be_used_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    world.write("a", "rpsHardWriteLimit=5\n")
    world.write("b", "rpsHardWriteLimit=many\n")
    await world.files.load()
    assert (world.limits("a"), world.limits("b")) == ((5, 1), (1, 1))
    assert "limits of b" in caplog.text
    world.write("a", "rpsHardWriteLimit=few\n")
    await world.files.reload()
    assert world.limits("a") == (5, 1)
    world.directory.rename(tmp_path / "lost")
    (tmp_path / "streams").write_text("a file where the directory was")
    before = sum(world.counters.values())
    await world.files.reload()
    assert world.limits("a") == (5, 1)
    assert sum(world.counters.values()) == before + 1


async def test_a_default_file_that_cannot_be_used_stops_the_proxy(tmp_path: Path) -> None:
    world = World(tmp_path, streamConfigDefaultPath=str(tmp_path / "all.conf"))
    world.default.write_text("rpsHardWriteLimit=many\n")
    with pytest.raises(SettingsError, match="rpsHardWriteLimit"):
        await world.files.load()


async def test_partitions_of_a_stream_share_its_file_where_the_router_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, streamConfigRouterClass="DelimiterStreamPartitionConverter")
    world.write("flights", "rpsHardWriteLimit=9\n")
    await world.files.load()
    assert world.limits("flights_000001") == (9, 1)
    await world.files.close()


async def test_files_are_looked_at_again_by_themselves(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.files.load()
    world.files.start(0.01)
    world.write("a", "rpsHardWriteLimit=5\n")
    await world.heard.wait(1)
    assert world.limits("a") == (5, 1)
    await world.files.close()
