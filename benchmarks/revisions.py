"""`python -m benchmarks --compare REV`: another revision and this working tree, measured in turns.

The other revision is a git worktree in a temporary directory. Either is measured by its own benchmarks, a round at a
time, in a process of its own: old, new; new, old; and so on, so that a machine that gets slower does so to both. They
run with the packages that are installed here, and with their own folder first on the path: an editable installation
adds its folder behind that. Where a module of ours would come from is looked at before anything is measured.

What was started is ended and the worktree is removed whatever happens, except where this process is killed by SIGKILL:
then the benchmarks end by themselves (`ending_with_parent`), and the folder stays (`git worktree prune` forgets it).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison import NEW, OLD, Turn
from metadata.foundation.processes import ending_with_parent

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("dlspark", "storage_node", "metadata", "benchmarks", "pyspark_distributedlog")
END_TIMEOUT_S: Final = 60.0
"""So long benchmarks may take to end their processes when they are asked to."""
_MEASURED: Final = (0, 1)
"""Exit statuses of benchmarks that have measured: targets reached, or not."""
_WHERE: Final = """\
import importlib.util, json, sys
print(json.dumps({name: str(importlib.util.find_spec(name).origin) for name in sys.argv[1:]}))
"""
_SECTIONS: Final = "import json, benchmarks.__main__ as main; print(json.dumps(main.SECTIONS))"


class RevisionError(Exception):
    """A revision cannot be had, or would not run its own code; nothing was measured of it."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A folder with a revision's code, and how to run that."""

    name: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables of this process, with the revision's folder first on Python's path."""
        behind = os.environ.get("PYTHONPATH", "")
        return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (str(self.folder), behind) if part)}

    def asked(self, program: str, *arguments: str) -> Any:
        """Return what a Python program prints as JSON when it runs here. Raises RevisionError where it fails."""
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RevisionError(f"{self.name} does not run here; nothing was measured of it:\n{done.stderr.strip()}")
        return json.loads(done.stdout)

    def check_origins(self) -> None:
        """Raise RevisionError where a package of ours would not be this revision's."""
        for package, origin in self.asked(_WHERE, *PACKAGES).items():
            if not Path(origin).resolve().is_relative_to(self.folder.resolve()):
                raise RevisionError(
                    f"{package} would come from {origin}, not from {self.name} in {self.folder}; nothing was measured. "
                    "Look at what puts that folder first on Python's path"
                )

    def sections(self) -> list[str]:
        """Return the sections that its benchmarks have. Raises RevisionError."""
        return [str(section) for section in self.asked(_SECTIONS)]

    def measure(self, arguments: Sequence[str], directory: Path) -> Turn | None:
        """Run its benchmarks for one round with files in `directory`; return their rows, or None where they failed."""
        result = directory / "rows.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks", "--rounds=1", f"--dir={directory}", f"--json={result}"]
        process = subprocess.Popen(
            ending_with_parent([*command, *arguments], signal.SIGTERM),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Of a terminal's Ctrl-C this process alone is told, and asks it to end, once.
            start_new_session=True,
        )
        try:
            status = process.wait()
        finally:
            _end(process)
        return json.loads(result.read_text()) if status in _MEASURED and result.exists() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def other_revision(name: str, directory: Path) -> Iterator[Revision]:
    """Have a worktree of this revision while the block runs. Raises RevisionError where git does not give it."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", about=name)
    folder = directory / f"revision-{commit[:12]}"
    try:
        _git("worktree", "add", "--detach", str(folder), commit, about=name)
        yield Revision(f"{name} ({commit[:12]})", folder)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a worktree, also one that is dirty, or was being made when this process was stopped."""
    # Forced twice: while git makes a worktree it is locked.
    remove = [*_GIT, "worktree", "remove", "--force", "--force", str(folder)]
    if subprocess.run(remove, capture_output=True, check=False).returncode:
        shutil.rmtree(folder, ignore_errors=True)
        # git passes over a locked one when it prunes; it refuses to unlock one that is not.
        subprocess.run([*_GIT, "worktree", "unlock", str(folder)], capture_output=True, check=False)
        subprocess.run([*_GIT, "worktree", "prune"], capture_output=True, check=False)


def this_tree() -> Revision:
    """Return the working tree that this process runs. Raises RevisionError where it is not one of git's."""
    commit = _git("rev-parse", "HEAD", about="this working tree")
    changed = _git("status", "--porcelain", about="this working tree")
    return Revision(f"this working tree ({commit[:12]}{', changed' if changed else ''})", ROOT)


_GIT: Final = ("git", "-C", str(ROOT))


def _git(*arguments: str, about: str) -> str:
    try:
        done = subprocess.run([*_GIT, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RevisionError("git is not installed; no revision can be had") from error
    if done.returncode:
        raise RevisionError(f"git gives no revision {about}; nothing was measured: {done.stderr.strip()}")
    return done.stdout.strip()


def common_sections(wanted: Sequence[str], revisions: Sequence[Revision]) -> tuple[list[str], list[str]]:
    """Return the sections that every revision has, of those wanted; and sentences about the rest."""
    known = {revision.name: revision.sections() for revision in revisions}
    common = [section for section in wanted if all(section in has for has in known.values())]
    said = [
        f"{name} has no section {section}: it is not measured"
        for section in wanted
        for name, has in known.items()
        if section not in has
    ]
    return common, said


def take_turns(
    revisions: dict[str, Revision],
    rounds: int,
    measure: Callable[[Revision], Turn | None],
    say: Callable[[str], None],
) -> dict[str, list[Turn]]:
    """Measure both revisions in turns; return what each turn measured. A turn that fails is said, and leaves none.

    Raises RevisionError where the first turn of a revision fails: others would fail like it, and there would be nothing
    to compare with.
    """
    turns: dict[str, list[Turn]] = {OLD: [], NEW: []}
    begin = time.monotonic()
    for number in range(rounds):
        # Old, new; new, old: what gets slower from turn to turn is as much slower for either.
        for side in (OLD, NEW) if number % 2 == 0 else (NEW, OLD):
            found = measure(revisions[side])
            took = f"round {number + 1} of {rounds}, {side}, after {time.monotonic() - begin:.0f} s"
            if found is None and number == 0:
                raise RevisionError(f"{took}: {revisions[side].name} was not measured, its error is above")
            say(took if found is not None else f"{took}: not measured, its error is above; this turn does not count")
            if found is not None:
                turns[side].append(found)
    return turns
