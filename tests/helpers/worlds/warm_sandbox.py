"""`WarmSandbox`: a sandbox whose storage nodes start in a tenth of the time, for tests that start many."""

from __future__ import annotations

import queue
import signal

from dlspark.sandbox.processes import START_TIMEOUT_S, SandboxError
from dlspark.sandbox.sandbox import Sandbox
from helpers.fork_server import Child, ChildError, ForkServer

NODE = "storage_node.bookie.__main__:main"


class WarmSandbox(Sandbox):
    """The same processes on the same directories, forked from a process that has imported everything (Linux)."""

    _forks: ForkServer | None = None

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._children: dict[int, Child] = {}
        self._forks = ForkServer((NODE.partition(":")[0],), log=self.directory / "nodes.log")
        super().start()

    def stop(self) -> None:
        """End all processes, nodes first. Idempotent."""
        if self._forks is not None:
            for child in self._children.values():
                child.signal(signal.SIGCONT)
                child.signal(signal.SIGTERM)
            for child in self._children.values():
                try:
                    child.wait()
                except ChildError:
                    child.kill()
            self._forks.close()
            self._forks = None
        super().stop()

    def node_pid(self, index: int) -> int | None:
        child = self._children.get(index)
        return child.pid if child is not None and child.running else None

    def kill_node(self, index: int) -> None:
        self._children[index].kill()

    def pause_node(self, index: int) -> None:
        self._children[index].signal(signal.SIGSTOP)

    def resume_node(self, index: int) -> None:
        self._children[index].signal(signal.SIGCONT)

    def _spawn(self, index: int) -> None:
        if self._forks is None:
            raise SandboxError("the sandbox is not running")
        self._children[index] = self._forks.spawn(NODE, {"arguments": ["--conf", str(self._configure(index))]})

    def _await_ready(self, index: int) -> None:
        child = self._children[index]
        try:
            line = child.lines.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            line = None
        if line is None:
            child.kill()
            raise SandboxError(f"storage node {index} did not start; see nodes.log", path=str(self.directory))
