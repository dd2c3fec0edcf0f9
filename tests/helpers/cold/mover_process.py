"""`MoverProcess`: `dlspark cold run` as a process that a test kills and starts again, quickly: its imports were done
before (`fork_server`); all else is as a terminal starts it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from helpers.fork_server import START_TIMEOUT_S, Child, ForkServer

IMPORTS: Final = (
    "dlspark.cli.main",
    "dlspark.cold.moving.daemon",
    "dlspark.core.namespace",
    "dlspark.core.cold.files.writing",
    "dlspark.objects.local",
    "dlspark.objects.s3",
    "obstore",
    "botocore.session",
)


class MoverProcess:
    """A mover of a namespace.

    Args:
        forks: starts it; made with `IMPORTS`, in whose environment the store's keys are.
        name: for people.
        uri: the namespace's.
        settings: by key; where files are, above all.
    """

    def __init__(self, forks: ForkServer, name: str, uri: str, settings: Mapping[str, str]) -> None:
        self._forks = forks
        self._name = name
        self._words = ["--verbose", "cold", "run", f"--uri={uri}"]
        self._words += [f"--set={key}={value}" for key, value in settings.items()]
        self._child: Child | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.running

    @property
    def ended_alone(self) -> bool:
        """Whether it was started, not killed, and does not run."""
        return self._child is not None and not self.alive

    async def start(self) -> None:
        """Start it, and wait until it is at work; nothing where it runs."""
        if self.alive:
            return
        self.kill()
        child = self._child = self._forks.spawn(
            "helpers.cold.mover_process:run_mover", {"name": self._name, "words": self._words}
        )
        loop = asyncio.get_running_loop()
        line = await loop.run_in_executor(None, lambda: child.lines.get(timeout=START_TIMEOUT_S))
        assert line is not None
        assert "is at work" in line, f"{self._name} said: {line}"

    def kill(self) -> None:
        """End it by SIGKILL, whatever it is at."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def run_mover(name: str, words: Sequence[str]) -> None:
    """Be the program `dlspark`, in a process that a `ForkServer` made."""
    from dlspark.cli.__main__ import main

    sys.argv = ["dlspark", *words]
    main()
