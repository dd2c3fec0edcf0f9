"""Fault points: named lines of product code at which a test can make a process hang, die or fail.

A point does nothing unless the environment variable `DLSPARK_FAULTS` names it, as a JSON object that maps points to
actions. The variable is inherited by the processes that Spark starts, which is why it is one.

    {"sink.applied": {"do": "hang", "flag": "/tmp/reached"}}

The value `@/path` names a file with that object instead, read at each point: a test changes it while processes run.

| do | effect |
|---|---|
| `hang` | create the file `flag`, then wait to be killed |
| `wait` | create the file `flag`, then go on as soon as the file `until` exists |
| `die` | create the file `flag`, then SIGKILL this process |
| `raise` | raise RuntimeError |
| `lose` | raise ConnectionLossError: an answer that got lost |

An action happens once for each `flag` file: it strikes the process that creates the file, and no later one, unless the
action says `"everyone": true`. A test proves by the file that its point was reached. With `"after": n` a process passes
the point n times, counted for each flag, before it is struck.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

from metadata.foundation.errors import CallerError, ConnectionLossError

VARIABLE = "DLSPARK_FAULTS"
Script: TypeAlias = "dict[str, dict[str, Any]]"

_POLL_S = 0.02

_passed: Counter[tuple[str, str]] = Counter()


def reach(point: str) -> None:
    """Say that execution is at `point`."""
    script = os.environ.get(VARIABLE)
    if script:
        _act(point, script)


def _act(point: str, script: str) -> None:
    action = _read(script).get(point)
    if action is None:
        return
    passage = (point, action["flag"])
    _passed[passage] += 1
    if _passed[passage] <= action.get("after", 0):
        return
    try:
        os.close(os.open(action["flag"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        if not action.get("everyone"):
            return
    kind = action["do"]
    if kind == "hang":
        threading.Event().wait()
    elif kind == "wait":
        while not os.path.exists(action["until"]):
            time.sleep(_POLL_S)
    elif kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "raise":
        raise RuntimeError(f"fault injected at {point}")
    elif kind == "lose":
        raise ConnectionLossError(f"answer lost by the fault injected at {point}")
    else:
        raise CallerError(f"{VARIABLE} names an unknown action {kind!r}", advice="Use hang, wait, die, raise or lose")


def _read(script: str) -> Script:
    """Return the script itself, or that in the file that it names; without such a file there are no faults."""
    if script.startswith("@"):
        try:
            script = Path(script[1:]).read_text() or "{}"
        except FileNotFoundError:
            return {}
    parsed: Script = json.loads(script)
    return parsed
