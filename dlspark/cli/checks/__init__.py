"""What `dlspark doctor` looks at: interpreters, the machine, the cluster. Nothing here changes anything it looks at.

Each check is a function that returns findings. It never raises for what it is there to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """`fail`: something will not work; `warn`: it will, but not as it should; `ok`."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, and what to do (for all but `ok`)."""

    check: str
    verdict: Verdict
    found: str
    todo: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def warn(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Verdict.WARN, found, todo)


def fail(check: str, found: str, todo: str) -> Finding:
    return Finding(check, Verdict.FAIL, found, todo)
