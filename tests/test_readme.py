"""The README's commands are run as they stand, one after the other, in one shell."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.paths import ROOT

from metadata.security.settings import VARIABLE

SETUP = ("make setup\n", "source .venv/bin/activate\n")
SCRATCH = "/tmp/dlspark-tour"
START = "dlspark sandbox start --detach\n"
SECURED = re.compile(r"`(dlspark sandbox start --secure --detach)` and the one line that it prints,\n`(export [^`]+)`")

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(300)]


def tour_blocks() -> Iterator[tuple[str, str]]:
    """(language, text) of each fenced block of the five-minute tour."""
    text = (ROOT / "README.md").read_text()
    tour = text.partition("## The five-minute tour")[2].partition("\n## ")[0]
    for match in re.finditer(r"^```(shell|python)\n(.*?)^```$", tour, re.M | re.S):
        yield match[1], match[2]


def secured_start(said: Path) -> str:
    """What the README says in words of a secured sandbox, as commands, in the place of `START`.

    The line that the sandbox prints, into `said`, is the one that the README has, but for how the home is written.
    """
    found = SECURED.search((ROOT / "README.md").read_text())
    assert found is not None, "the README says no more how to start a secured sandbox"
    start, export = found.groups()
    printed = f"secured; for programs: {export.replace('~', '$HOME')}"
    return f'{start} 2> "{said}"\ncat "{said}" >&2\ngrep -qxF "{printed}" "{said}"\n{export}\n'


def as_script(scratch: Path, *, secured: bool = False) -> str:
    """The tour as one bash script; each Python block is a program of its own, and the streaming one runs twice in it.

    It writes to `scratch`: another clone's tests, or another user's, may run at the same time.
    """
    parts = ["set -euxo pipefail\n"]
    for number, (language, block) in enumerate(tour_blocks()):
        text = block * 2 if "writeStream" in block else block
        parts.append(text if language == "shell" else f"python - <<'BLOCK_{number}'\n{text}BLOCK_{number}\n")
    script = "".join(parts)
    assert SCRATCH in script
    script = script.replace(SCRATCH, str(scratch))
    assert START in script
    if secured:
        script = script.replace(START, secured_start(scratch.with_suffix(".said")))
    for line in SETUP:
        assert line in script, f"the tour no longer says {line.strip()!r}"
        # Under `make test` the set-up has just been done by make itself; anywhere else this interpreter stands in.
        script = script.replace(line, "")
    return script


def end_all_with_home(home: Path) -> None:
    """Kill what the tour started and left: cut off at any line, also while its detached sandbox is starting."""
    while left := [process for process in psutil.process_iter() if _has_home(process, home)]:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left)


def _has_home(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False  # Another user's, or gone.


@pytest.mark.parametrize(
    "secured", [pytest.param(False, id="open"), pytest.param(True, id="secured", marks=pytest.mark.long)]
)
def test_every_command_of_the_tour_works(tmp_path: Path, secured: bool) -> None:
    unset = ("DLSPARK_URI", "PYSPARK_PYTHON", VARIABLE)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in unset},
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", as_script(tmp_path / "tour", secured=secured)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
    finally:
        end_all_with_home(tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    for line in ("first", "second", "third", "b'fourth'", "stopped"):
        assert line in done.stdout
    assert done.stdout.count("[b'FIRST', b'SECOND', b'THIRD']\n") == 2
    # What every start of Spark on one machine prints, and progress bars, are not between a user and the first table.
    for noise in ("Using Spark's default log4j profile", "Your hostname, ", "NativeCodeLoader", "[Stage "):
        assert noise not in done.stderr


def test_a_tour_that_is_cut_off_leaves_no_process_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(
        ["bash", "-c", "setsid sleep 600 & echo begun; exec sleep 600"], env=environment, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        end_all_with_home(tmp_path)
    assert not [process for process in psutil.process_iter() if _has_home(process, tmp_path)]


def test_both_commands_of_the_readme_are_make_targets() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", text, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
    assert re.findall(r"^    make (\w+)", text, re.M) == ["demo", "test"]


def test_every_document_that_the_readme_names_exists() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
