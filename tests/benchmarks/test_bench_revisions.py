"""`--compare` measures two revisions, each with its own code in every process, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.revisions import PACKAGES, ROOT, Revision, RevisionError, _remove, other_revision, this_tree

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="revisions are those of a git repository"),
]
LIMIT_S = 120.0


def benchmarks_at(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", f"--dir={directory}", *arguments]


def left_in(directory: Path) -> list[str]:
    """What is left of a comparison: its files, and what git still knows of its worktree. Others may come and go."""
    known = subprocess.run(["git", "-C", str(ROOT), "worktree", "list"], capture_output=True, text=True, check=True)
    return [*map(str, directory.iterdir()), *(line for line in known.stdout.splitlines() if str(directory) in line)]


def test_two_revisions_are_measured_in_turns_and_nothing_is_left(tmp_path: Path) -> None:
    files, result = tmp_path / "files", tmp_path / "compared.json"
    wanted = ("--compare=HEAD", "--section=codec", "--rounds=1", "--seconds=0.2", f"--json={result}")
    done = subprocess.run(
        benchmarks_at(files, *wanted), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr.count("round 1 of 1, ")) == (0, 2), done.stderr
    assert "old: HEAD (" in done.stdout
    compared = json.loads(result.read_text())
    assert {row["row"] for row in compared["rows"]} == {"C1", "C2"}
    assert all(figure["old"] and figure["new"] for row in compared["rows"] for figure in row["figures"])
    assert left_in(files) == []


def test_a_revision_that_there_is_not_is_said_and_nothing_is_measured(tmp_path: Path) -> None:
    wanted = benchmarks_at(tmp_path, "--compare=no-such-revision", "--section=codec")
    done = subprocess.run(wanted, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "git gives no revision no-such-revision" in done.stderr
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_comparison_that_is_stopped_leaves_no_process_and_no_worktree(tmp_path: Path, number: signal.Signals) -> None:
    files = tmp_path / "files"
    wanted = benchmarks_at(files, "--compare=HEAD", "--section=codec", "--rounds=9", "--seconds=600")
    with subprocess.Popen(wanted, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        child = measuring(process.pid)
        process.send_signal(number)
        process.wait(LIMIT_S)
    assert process.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert left_in(files) == []


def measuring(parent: int) -> int:
    """Wait until the benchmarks of a revision run, and return their process."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if "--rounds=1" in Path(f"/proc/{child}/cmdline").read_text() and Path(f"/proc/{child}/cwd").exists():
                return int(child)
        time.sleep(0.05)
    raise TimeoutError("no benchmarks were started")


def test_a_worktree_that_git_was_making_when_it_was_stopped_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "revision"
    add = ["git", "-C", str(ROOT), "worktree", "add", "--detach", "--no-checkout", "--lock", str(folder), "HEAD"]
    subprocess.run(add, capture_output=True, check=True)
    (folder / ".git").unlink()  # git makes it, and goes on to check files out, while the worktree is locked
    _remove(folder)
    assert left_in(tmp_path) == []


def test_code_that_would_come_from_elsewhere_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(RevisionError, match=r"dlspark would come from .*, not from old"):
        Revision("old", tmp_path / "elsewhere").check_origins()


SITE = """\
import atexit, json, os, pathlib, sys

@atexit.register
def say():
    place = pathlib.Path(os.environ["ORIGINS"]) / str(os.getpid())
    found = {name: sys.modules[name].__file__ for name in %r if name in sys.modules}
    place.write_text(json.dumps({"arguments": sys.orig_argv, "origins": found}))
"""
PROGRAM = """\
import sys
from pathlib import Path
from benchmarks.cluster import Cluster
from benchmarks.limits import round_trips_us
from benchmarks.proxies import read_proxy, write_proxy

def main():
    directory = Path(sys.argv[1])
    round_trips_us(100, 0.05)
    with Cluster(directory / "cluster") as cluster:
        with write_proxy(cluster.uri, directory), read_proxy(cluster.uri, directory):
            pass
        from benchmarks.session import spark_session

        with spark_session(directory) as spark:
            def origins(rows):
                import dlspark, metadata, pyspark_distributedlog, storage_node
                for _ in rows:
                    for module in (dlspark, metadata, pyspark_distributedlog, storage_node):
                        yield (module.__file__,)

            found = {row[0] for row in spark.range(1).rdd.mapPartitions(origins).collect()}
            rows = spark.range(3).selectExpr("cast(cast(id as string) as binary) value")
            rows.write.format("distributedlog").mode("append").option("uri", cluster.uri).save("measured")
            (directory / "workers").write_text("\\n".join(sorted(found)))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have every Python process write, as it ends, where its modules came from, into the folder that is given."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE % (PACKAGES,))
    origins = tmp_path / "origins"
    origins.mkdir()
    monkeypatch.setenv("ORIGINS", str(origins))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return origins


@pytest.mark.long
def test_every_process_runs_the_code_of_its_revision(asking: Path, tmp_path: Path) -> None:
    """Storage nodes, proxies, spawned children, Spark's driver and its workers, all from the worktree's folder."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with other_revision("HEAD", tmp_path) as revision:
        revision.check_origins()
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path)],
            cwd=revision.folder,
            env=revision.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers = [json.loads(path.read_text()) for path in asking.iterdir()]
        asked = {kind: [one for one in answers if kind in " ".join(one["arguments"])] for kind in KINDS}
        assert {kind: len(found) for kind, found in asked.items()} == KINDS, [one["arguments"] for one in answers]
        for one in answers:
            for origin in one["origins"].values():
                assert Path(origin).is_relative_to(revision.folder), one
        for kind, found in asked.items():
            assert all("metadata" in one["origins"] for one in found), kind
        workers = (tmp_path / "workers").read_text().splitlines()
        assert len(workers) == 4
        assert all(Path(origin).is_relative_to(revision.folder) for origin in workers)
    assert not revision.folder.exists()


KINDS = {"storage_node.bookie": 3, "write_proxy": 1, "read_proxy": 1, "spawn_main": 3, "program.py": 1}
"""Processes of the program, by a word of their command line."""


def test_this_tree_is_named_by_its_commit() -> None:
    revision = this_tree()
    assert revision.folder == ROOT
    revision.check_origins()
    assert revision.name.startswith("this working tree (")
