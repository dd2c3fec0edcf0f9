"""How the test files are shared out between processes: the longest first, so that all end at about the same time.

A file runs in one process (`--dist loadfile`), since what its tests start (Spark, clusters, Java) is started once a
process. A process that is free takes the next file. pytest-xdist would begin with the files of the most tests, which
are the quickest here, and leave the last third of the time to one process.

`durations.txt` has the seconds of each file that takes some, from runs with `--write-durations`, each of which renews
the files that it has run; an old list makes a run longer, never wrong. A file that is not listed is a quick one: list a
new one that is not.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from helpers.paths import ROOT, TESTS

LIST = TESTS / "durations.txt"
SHORTEST_S = 3.0


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by what their file takes; the tests of a file stay in their order."""
    known = known_durations()
    items.sort(key=lambda item: -known.get(_name(item.path), 0.0))


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def known_durations() -> dict[str, float]:
    """Return the seconds of the files that are listed."""
    if not LIST.exists():
        return {}
    rows = (line.split() for line in LIST.read_text().splitlines())
    return {name: float(seconds) for seconds, name in rows}


class Durations:
    """Adds up what each file takes, and lists it at the end of the run."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = Path(report.nodeid.partition("::")[0])
        self._seconds[_name((ROOT / path).resolve())] += report.duration

    def pytest_sessionfinish(self) -> None:
        kept = {name: seconds for name, seconds in known_durations().items() if (TESTS / name).exists()}
        listed = sorted(((seconds, name) for name, seconds in {**kept, **self._seconds}.items()), reverse=True)
        rows = [f"{seconds:7.1f} {name}\n" for seconds, name in listed if seconds >= SHORTEST_S]
        LIST.write_text("".join(rows))
