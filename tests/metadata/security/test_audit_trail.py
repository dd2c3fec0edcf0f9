"""The audit trail: every note is there or counted, no client writes lines of its own, and a full disk loses nothing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
import stat
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from metadata.foundation.errors import CallerError, OpenedElsewhereError
from metadata.foundation.settings import settings_of
from metadata.security import audit
from metadata.security.audit import (
    ALLOWED_A_SECOND,
    LEFT_OUT,
    MAX_HOSTS,
    MAX_VALUE_CHARS,
    NOWHERE,
    REFUSALS_A_SECOND,
    REPEATED,
    AuditKeys,
    AuditTrail,
    Noted,
)

Opened = Callable[..., AuditTrail]


@pytest.fixture(name="opened")
def _opened(tmp_path: Path) -> Iterator[Opened]:
    trails = []

    def opened(**options: Any) -> AuditTrail:
        given = {"max_bytes": 1 << 20, "files": 3} | options
        trails.append(AuditTrail(tmp_path / "audit.log", **given))
        return trails[-1]

    yield opened
    for trail in trails:
        trail.close()


def refuse(trail: Noted, peer: str = "10.0.0.1:40000", **values: Any) -> None:
    given: dict[str, Any] = {"allowed": False, "reason": "no rule", "principal": "alice"} | values
    trail.note(given.pop("event", "request"), peer=peer, **given)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def counted(path: Path) -> int:
    return sum(line["count"] for one in path.parent.glob("audit.log*") for line in lines(one))


def test_a_note_is_a_line_with_every_field(opened: Opened, tmp_path: Path) -> None:
    trail = opened(now_s=lambda: 1_700_000_000.5)
    trail.note(
        "request",
        allowed=False,
        reason="no rule allows it",
        principal="alice",
        peer="10.0.0.1:40000",
        session="7",
        log="orders",
        verb="write",
        scheme="tls",
        request="WriteRecords",
    )
    refuse(trail, principal=None)
    trail.flush()
    whole, bare = lines(tmp_path / "audit.log")
    assert whole == {
        "time": "2023-11-14T22:13:20.500+00:00",
        "event": "request",
        "result": "refused",
        "reason": "no rule allows it",
        "principal": "alice",
        "scheme": "tls",
        "peer": "10.0.0.1:40000",
        "session": "7",
        "log": "orders",
        "verb": "write",
        "request": "WriteRecords",
        "count": 1,
    }
    assert list(bare) == list(whole)
    assert bare["principal"] is bare["log"] is None


def test_a_clients_text_neither_ends_a_line_nor_makes_one(opened: Opened, tmp_path: Path) -> None:
    trail = opened()
    forged = '"}\n{"event": "request", "result": "allowed"}\r\n\x1b[2J\u202e\u2028\x00\udc80'
    refuse(trail, principal=forged, log="x" * 10_000, reason=forged)
    trail.flush()
    content = (tmp_path / "audit.log").read_bytes()
    assert content.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F or byte == 0x0A for byte in content)
    (line,) = lines(tmp_path / "audit.log")
    assert line["principal"] == forged.replace("\udc80", "\\udc80")
    assert len(line["log"]) == MAX_VALUE_CHARS
    assert line["log"].endswith("x...")


@pytest.mark.parametrize(
    ("allowed", "noted"),
    [("off", []), ("changes", ["delete", None]), ("all", ["write", "read", "delete", None])],
)
def test_what_is_noted_of_what_was_allowed(opened: Opened, tmp_path: Path, allowed: str, noted: list[str]) -> None:
    trail = opened(allowed=allowed)
    for verb in ("write", "read", "delete", None):
        refuse(trail, verb=verb, allowed=True)
    trail.flush()
    assert [line["verb"] for line in lines(tmp_path / "audit.log")] == noted


def test_a_host_that_is_refused_very_often_has_few_lines_and_every_refusal_is_counted(
    opened: Opened, tmp_path: Path
) -> None:
    trail = opened(monotonic_s=lambda: 0.0)
    for port in range(1000):
        refuse(trail, peer=f"10.0.0.1:{port + 1}", verb="write" if port % 2 else "read")
    refuse(trail, peer="10.0.0.2:1")
    trail.flush()
    found = lines(tmp_path / "audit.log")
    assert len(found) == REFUSALS_A_SECOND + 2
    assert counted(tmp_path / "audit.log") == 1001
    (summary,) = [line for line in found if line["event"] == REPEATED]
    assert summary["count"] == 1000 - REFUSALS_A_SECOND
    assert summary["peer"] == "10.0.0.1"
    assert summary["reason"] == "request/read 495, request/write 495; the last one: no rule"


def test_what_was_allowed_is_counted_apart_from_refusals(opened: Opened, tmp_path: Path) -> None:
    trail = opened(allowed="all", monotonic_s=lambda: 0.0)
    for _ in range(ALLOWED_A_SECOND + 5):
        refuse(trail, allowed=True, reason="rule", verb="write")
    refuse(trail)
    trail.flush()
    found = lines(tmp_path / "audit.log")
    assert [line["result"] for line in found[-2:]] == ["refused", "allowed"]
    assert found[-1]["event"] == REPEATED
    assert found[-1]["count"] == 5


def test_much_that_is_read_and_written_hides_no_change(opened: Opened, tmp_path: Path) -> None:
    trail = opened(allowed="all", monotonic_s=lambda: 0.0)
    for _ in range(ALLOWED_A_SECOND + 5):
        refuse(trail, allowed=True, verb="write", log="busy")
        refuse(trail, verb="read", log="busy")
    for number in range(2 * ALLOWED_A_SECOND):
        refuse(trail, allowed=True, verb="delete", log=f"log-{number}")
    refuse(trail, verb="delete", log="other")
    trail.flush()
    found = [line for line in lines(tmp_path / "audit.log") if line["verb"] == "delete"]
    assert [line["log"] for line in found] == [*(f"log-{number}" for number in range(2 * ALLOWED_A_SECOND)), "other"]


def test_a_window_that_is_over_begins_anew(opened: Opened, tmp_path: Path) -> None:
    trail = opened(monotonic_s=lambda: 0.0)
    for _ in range(2):
        for _ in range(REFUSALS_A_SECOND + 1):
            refuse(trail)
        trail.flush()
    assert [line["count"] for line in lines(tmp_path / "audit.log")] == 2 * [1] * (REFUSALS_A_SECOND + 1)
    assert sum(line["event"] == REPEATED for line in lines(tmp_path / "audit.log")) == 2


def test_whoever_notes_does_not_wait_for_the_lines_of_other_hosts(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = opened(monotonic_s=lambda: 0.0)
    held: list[bool] = []
    real = AuditTrail._line

    def line(self: AuditTrail, event: str, *values: Any, **more: Any) -> bytes:
        if event == REPEATED:
            held.append(trail._lock.locked())
        return real(self, event, *values, **more)

    monkeypatch.setattr(AuditTrail, "_line", line)
    for host in range(20):
        for _ in range(REFUSALS_A_SECOND + 1):
            refuse(trail, peer=f"10.0.0.{host}:1")
    trail.flush()
    assert held == [False] * 20
    assert counted(tmp_path / "audit.log") == 20 * (REFUSALS_A_SECOND + 1)


def test_any_number_of_hosts_takes_bounded_memory_and_is_counted(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_HOSTS", 5)
    assert MAX_HOSTS > 5
    trail = opened(monotonic_s=lambda: 0.0)
    for host in range(100):
        refuse(trail, peer=f"10.0.1.{host}:1", event=f"event{host}")
    assert len(trail._windows) == 6
    trail.flush()
    assert counted(tmp_path / "audit.log") == 100
    (summary,) = [line for line in lines(tmp_path / "audit.log") if line["event"] == REPEATED]
    assert summary["peer"] is None
    assert summary["reason"].count(", ") == audit.MAX_COUNTED_EVENTS  # and "other"


def test_files_are_rotated_by_size_and_the_oldest_one_goes(opened: Opened, tmp_path: Path) -> None:
    trail = opened(max_bytes=1000, files=3)
    for number in range(30):
        refuse(trail, peer=f"10.0.0.{number}:1", log=f"log{number}")
        trail.flush()
    names = ["audit.log.2", "audit.log.1", "audit.log"]
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*names, "audit.log.lock"])
    logs = [line["log"] for name in names for line in lines(tmp_path / name)]
    assert logs == [f"log{number}" for number in range(30 - len(logs), 30)]
    for name in names:
        assert (tmp_path / name).stat().st_size <= 1000
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_many_lines_at_a_time_are_spread_over_files(opened: Opened, tmp_path: Path) -> None:
    trail = opened(max_bytes=1000, files=1000)
    for number in range(40):
        refuse(trail, peer=f"10.0.0.{number}:1")
    trail.flush()
    assert counted(tmp_path / "audit.log") == 40
    assert all(one.stat().st_size <= 1000 for one in tmp_path.iterdir())


def test_a_restart_goes_on_behind_a_line_that_a_crash_cut_off(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"count": 1}\n{"time": "2026-')
    (tmp_path / "audit.log").chmod(0o644)
    trail = opened()
    refuse(trail)
    trail.flush()
    first, cut, last = (tmp_path / "audit.log").read_text().splitlines()
    assert first == '{"count": 1}'
    assert cut == '{"time": "2026-'
    assert json.loads(last)["principal"] == "alice"
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


class FullDisk:
    """`os.write` as a disk without room has it: takes a few bytes, then no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: int) -> None:
        self.full = True
        self._left = takes
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if not self.full:
            return self._write(fd, data)
        if not self._left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = bytes(data)[: self._left]
        self._left -= len(part)
        return self._write(fd, part)


@pytest.mark.parametrize("refuse_unwritten", [False, True])
def test_a_full_disk_loses_nothing_and_says_so_once(
    opened: Opened,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuse_unwritten: bool,
) -> None:
    trail = opened(refuse_unwritten=refuse_unwritten)
    refuse(trail, log="before")
    trail.flush()
    disk = FullDisk(monkeypatch, takes=100)
    for log in ("one", "two"):
        refuse(trail, log=log)
        trail.flush()
    failure = str(trail.failure)
    assert "No space left on device" in failure
    assert trail.refuses == (failure if refuse_unwritten else None)
    assert [line["log"] for line in lines(tmp_path / "audit.log")] == ["before"]  # no half line
    disk.full = False
    trail.flush()
    assert [trail.failure, trail.refuses] == [None, None]
    assert [line["log"] for line in lines(tmp_path / "audit.log")] == ["before", "one", "two"]
    said = [record.levelname for record in caplog.records if "audit trail" in record.message]
    assert said == ["ERROR", "WARNING"]


@pytest.mark.parametrize("how", ["removed", "moved", "another in its place"])
def test_a_trail_that_is_taken_away_goes_on_where_it_is_looked_for(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    trail, place = opened(), tmp_path / "audit.log"
    refuse(trail, log="before")
    trail.flush()
    if how == "moved":
        place.rename(tmp_path / "audit.log.moved")
    else:
        place.unlink()
    if how == "another in its place":
        place.write_text("{}\n")
        place.chmod(0o644)
    refuse(trail, log="after")
    trail.flush()
    assert trail.failure is None
    assert lines(place)[-1]["log"] == "after"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert any("removed or moved" in record.message for record in caplog.records)


@pytest.mark.parametrize("refuse_unwritten", [False, True])
def test_a_trail_whose_folder_is_removed_says_so_and_loses_no_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refuse_unwritten: bool
) -> None:
    place = tmp_path / "trails" / "audit.log"
    place.parent.mkdir()
    with closing(AuditTrail(place, max_bytes=1 << 20, files=3, refuse_unwritten=refuse_unwritten)) as trail:
        refuse(trail, log="before")
        trail.flush()
        shutil.rmtree(place.parent)
        refuse(trail, log="after")
        trail.flush()
        failure = str(trail.failure)
        assert "No such file or directory" in failure
        assert trail.refuses == (failure if refuse_unwritten else None)
        assert [record.levelname for record in caplog.records if "cannot be written" in record.message] == ["ERROR"]
        place.parent.mkdir()
        trail.flush()
        assert trail.failure is None
        assert [line["log"] for line in lines(place)] == ["after"]


def test_a_trail_that_is_a_link_all_at_once_is_not_followed(opened: Opened, tmp_path: Path) -> None:
    trail, place, others = opened(), tmp_path / "audit.log", tmp_path / "others"
    others.write_text("theirs")
    place.unlink()
    place.symlink_to(others)
    refuse(trail)
    trail.flush()
    assert trail.failure is not None
    assert others.read_text() == "theirs"
    place.unlink()


def test_a_trail_that_is_cut_has_no_hole_where_the_disk_then_fails(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trail, place = opened(), tmp_path / "audit.log"
    refuse(trail, log="before")
    trail.flush()
    os.truncate(place, 0)
    disk = FullDisk(monkeypatch, takes=10)
    refuse(trail, log="after")
    trail.flush()
    assert place.read_bytes() == b""
    disk.full = False
    trail.flush()
    assert [line["log"] for line in lines(place)] == ["after"]
    assert any("has cut the audit trail" in record.message for record in caplog.records)


class FailingDisk:
    """Each call of the disk may fail, by a seed; a write may take a part first."""

    CALLS = ("write", "fdatasync", "ftruncate", "replace", "open")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
        self.failing = True
        self.failures: Counter[str] = Counter()
        self._rng = rng
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._call(name, getattr(os, name)))

    def _call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            # What pytest and the interpreter open is theirs.
            ours = self.failing and not (name in ("open", "replace") and "audit.log" not in str(given[0]))
            if ours and self._rng.random() < 0.2:
                self.failures[name] += 1
                if name == "write":
                    real(given[0], bytes(given[1])[: self._rng.randrange(len(given[1]))])
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*given, **named)

        return call


@pytest.mark.parametrize("seed", range(5))
def test_a_disk_that_fails_now_and_then_loses_no_note(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(audit, "FLUSH_S", 3600.0)  # the thread does not write: what fails is the seed's alone
    trail = opened(max_bytes=2000, files=1000)
    disk = FailingDisk(monkeypatch, rng)
    for number in range(200):
        refuse(trail, peer=f"10.0.0.{rng.randrange(20)}:1", log=f"log{number}")
        if rng.random() < 0.2:
            trail.flush()
    disk.failing = False
    trail.flush()
    assert trail.failure is None
    assert disk.failures
    whole, total = [], 0
    for file in tmp_path.glob("audit.log*"):
        for line in file.read_text("ascii").splitlines():
            try:
                noted = json.loads(line)
            except ValueError:
                assert disk.failures["ftruncate"]  # half a line stays only where it could not be taken back
                continue
            whole.append(line)
            total += noted["count"]
    assert total == 200 or (total > 200 and disk.failures["ftruncate"])


def test_what_finds_no_room_in_memory_is_counted(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, takes=0)
    monkeypatch.setattr(audit, "MAX_QUEUED_BYTES", 2000)
    trail = opened()
    for number in range(50):
        refuse(trail, peer=f"10.0.0.{number}:1")
    trail.flush()
    assert sum(map(len, trail._queue)) <= 2000
    disk.full = False
    trail.flush()
    trail.flush()
    assert counted(tmp_path / "audit.log") == 50
    assert lines(tmp_path / "audit.log")[-1]["event"] == LEFT_OUT


def test_the_thread_writes_by_itself_and_the_end_writes_what_is_left(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = opened()
    for _ in range(REFUSALS_A_SECOND + 3):
        refuse(trail)
    trail.close()
    trail.close()
    assert counted(tmp_path / "audit.log") == REFUSALS_A_SECOND + 3
    monkeypatch.setattr(audit, "FLUSH_S", 0.001)
    again = opened()
    written = threading.Event()
    write = again._file.write

    def write_and_say(batch: deque[bytes]) -> None:
        write(batch)
        written.set()

    monkeypatch.setattr(again._file, "write", write_and_say)
    refuse(again)
    assert written.wait(60)
    assert counted(tmp_path / "audit.log") == REFUSALS_A_SECOND + 4


def test_two_processes_do_not_write_one_trail(opened: Opened, tmp_path: Path) -> None:
    first = opened()
    with pytest.raises(CallerError, match="another process writes"):
        opened()
    first.close()
    opened()


def test_a_trail_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be written: No such file"):
        AuditTrail(tmp_path / "missing" / "audit.log", max_bytes=1000, files=2)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CallerError, match="cannot be written"):
        AuditTrail(tmp_path / "link", max_bytes=1000, files=2)
    assert not (tmp_path / "elsewhere").exists()


def test_a_trail_is_not_pickled(opened: Opened) -> None:
    with pytest.raises(OpenedElsewhereError):
        pickle.dumps(opened())


def test_nowhere_is_noted_nothing() -> None:
    refuse(NOWHERE)
    assert NOWHERE.refuses is None


def test_keys_open_the_trail_that_they_ask_for(tmp_path: Path) -> None:
    assert AuditKeys().open_audit() is None
    assert all(info.own for info in settings_of(AuditKeys).values())
    trail = AuditKeys(str(tmp_path / "audit.log"), 1, 2, "all", "refuse").open_audit()
    assert trail is not None
    refuse(trail, allowed=True, verb="write")
    trail.close()
    assert counted(tmp_path / "audit.log") == 1
