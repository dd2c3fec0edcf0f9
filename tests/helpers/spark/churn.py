"""A seeded world that does not stand still: logs written, created, rolled, truncated and sealed, nodes killed.

`Churn` takes one step at a time and keeps what it wrote, so that whoever reads the logs can be compared with it.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable

from dlspark import DLSN, LogWriter, Namespace, PendingWrite
from dlspark.sandbox.sandbox import Sandbox

LIVE_LOGS = 4
BURST = 12
STEPS = {"append": 60, "roll": 12, "truncate": 10, "seal": 5, "create": 4, "node": 9}


class Churn:
    """Logs `in-0`, `in-1`, ... of one sandbox; `done` counts the steps by kind, `written` the records by log."""

    def __init__(self, sandbox: Sandbox, seed: int, consumed: Callable[[], dict[str, DLSN]]) -> None:
        """Begin without logs. `consumed` gives, by log, a position whose earlier records no query needs any more."""
        self.done: Counter[str] = Counter()
        self.written: dict[str, int] = {}
        self._sandbox = sandbox
        self._random = random.Random(seed)
        self._consumed = consumed
        self._open = contextlib.ExitStack()
        self._namespace = self._open.enter_context(Namespace.open(sandbox.uri))
        self._writers: dict[str, LogWriter] = {}
        self._down: int | None = None
        for _ in range(LIVE_LOGS):
            self._create()

    def step(self) -> None:
        """Do one thing; a record is appended in every case, so that there is news."""
        kind = self._random.choices(list(STEPS), list(STEPS.values()))[0]
        happened = {
            "append": lambda: True,
            "roll": self._roll,
            "truncate": self._truncate,
            "seal": self._seal,
            "create": self._create,
            "node": self._kill_or_start_a_node,
        }[kind]()
        if happened:
            self.done[kind] += 1
        self._append()

    def close(self) -> None:
        """Complete all segments and bring every node back."""
        if self._down is not None:
            self._sandbox.start_node(self._down)
            self._down = None
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._open.close()

    def _append(self) -> None:
        name = self._choose()
        pending: list[PendingWrite[DLSN]] = []
        for _ in range(self._random.randint(1, BURST)):
            number = self.written[name]
            pending.append(self._writers[name].write(number + 1, f"{name}/{number}".encode()))
            self.written[name] += 1
        self._writers[name].commit()
        for write in pending:
            write.result(60)

    def _create(self) -> bool:
        name = f"in-{len(self.written)}"
        self._namespace.create_log(name)
        self.written[name] = 0
        self._writers[name] = self._namespace.open_log(name).open_writer()
        return True

    def _roll(self) -> bool:
        name = self._choose()
        self._writers[name].close()
        self._writers[name] = self._namespace.open_log(name).open_writer()
        return True

    def _truncate(self) -> bool:
        consumed = self._consumed()
        names = sorted(name for name in self._writers if name in consumed)
        if not names:
            return False
        name = self._random.choice(names)
        self._writers[name].truncate(consumed[name])
        return True

    def _seal(self) -> bool:
        name = self._choose()
        writer = self._writers.pop(name)
        writer.mark_end_of_stream()
        writer.close()
        if len(self._writers) < LIVE_LOGS:
            self._create()
        return True

    def _kill_or_start_a_node(self) -> bool:
        """Kill a node, or start the one that is down: three replicas need the other three."""
        if self._down is None:
            self._down = self._random.randrange(self._sandbox.node_count)
            self._sandbox.kill_node(self._down)
            return True
        self._sandbox.start_node(self._down)
        self._down = None
        return True

    def _choose(self) -> str:
        return self._random.choice(sorted(self._writers))
