"""`ForkServer`: processes that start in milliseconds, because their imports were done once, before they were asked for.

Fault tests kill and start a process every second or so; importing the packages each time would cost more than all they
do. The server is one process that has imported what its children need, holds no thread and no connection, and forks.

    with ForkServer(("storage_node.client",), log=directory / "children.log") as server:
        child = server.spawn("package.module:function", {"name": "writer"})
        child.send("go")                    # a line on its standard input
        child.lines.get()                   # a line of its standard output; None once it has ended

A child is a real process: SIGKILL and SIGSTOP do to it what they do to any other. It dies with the server, the server
dies with the process that made it, and (on Linux) both do so even where that one was killed or they are stopped.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from helpers.paths import ROOT, TESTS
from metadata.foundation.errors import CallerError, NotAppliedError

START_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1
_PATHS: Final = (str(TESTS), str(ROOT))
"""For children: these helpers, and the packages of the repository."""
# One thread in the libraries that would start some on import: a process with threads must not be forked.
_SINGLE: Final = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


_GO: Final = b"\n"


class ChildError(NotAppliedError):
    """A child process did not start, or did not end in order."""


class Child:
    """A process that a `ForkServer` started."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.name = name
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """What it prints, line by line; None at its end."""
        self._connection = connection
        self._output = connection.makefile("r", encoding="utf-8", errors="replace")
        first = self._output.readline()
        if not first:
            self._close()
            raise ChildError(f"{name} did not start")
        self.pid = int(first)
        self._process = os.pidfd_open(self.pid)
        connection.sendall(_GO)
        self._ended = threading.Event()
        self._pump = threading.Thread(target=self._read, name=f"output-of-{name}", daemon=True)
        self._pump.start()

    @property
    def running(self) -> bool:
        """Return whether its end was not heard yet."""
        return not self._ended.is_set()

    def send(self, line: str) -> None:
        """Give it a line on standard input; nothing happens where the child has ended."""
        try:
            self._connection.sendall(line.encode() + b"\n")
        except OSError:
            pass  # `lines` reports its end

    def close_input(self) -> None:
        """End its standard input, which asks most programs to end in order."""
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process >= 0:
            try:
                signal.pidfd_send_signal(self._process, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Wait for its end. Raises ChildError."""
        if self._process >= 0:
            ended, _, _ = select.select([self._process], [], [], timeout_s)
            if not ended:
                raise ChildError(f"{self.name} (process {self.pid}) has not ended after {timeout_s:g} s")
            os.close(self._process)
            self._process = -1
        self._pump.join()
        self._close()

    def _read(self) -> None:
        try:
            for line in self._output:
                if line.endswith("\n"):  # what a killed process had not finished is not a line
                    self.lines.put(line[:-1])
        except OSError:
            pass  # reset by a process that was killed with input unread
        self._ended.set()
        self.lines.put(None)

    def _close(self) -> None:
        self._output.close()
        self._connection.close()


class ForkServer:
    """`imports` are modules to have ready, `paths` come first on the children's `sys.path`, `log` takes stderr."""

    def __init__(self, imports: Sequence[str], *, log: Path, paths: Sequence[str] = ()) -> None:
        if sys.platform != "linux":
            raise CallerError("children that die with their parent need Linux")
        self._directory = tempfile.TemporaryDirectory(prefix="dlspark-fork-")
        self._address = f"{self._directory.name}/socket"
        self._children: list[Child] = []
        # The kernel signals a child when the thread that started it ends: this thread ends with our process.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="dlspark-fork-server")
        arguments = json.dumps(
            {"address": self._address, "imports": list(imports), "paths": [*paths, *_PATHS], "parent": os.getpid()}
        )
        command = [sys.executable, "-m", "helpers.fork_server", arguments]
        search = os.pathsep.join(part for part in (*_PATHS, os.environ.get("PYTHONPATH", "")) if part)
        with log.open("ab") as errors:
            self._process = self._starter.submit(
                lambda: subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **_SINGLE, "PYTHONPATH": search},
                    start_new_session=True,
                )
            ).result()
        stdout = self._process.stdout
        ready = stdout.readline() if stdout is not None else b""
        if stdout is not None:
            stdout.close()
        if not ready:
            self.close()
            raise ChildError(f"the fork server did not start; see {log}")

    def spawn(self, target: str, arguments: Mapping[str, object], *, join: int | None = None) -> Child:
        """Run `target` ("package.module:function") in a new process; what it returns is the exit status.

        `join`: first enter the network and mount namespaces of that process. Raises ChildError.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(START_TIMEOUT_S)
            connection.connect(self._address)
            connection.sendall(
                json.dumps({"target": target, "arguments": dict(arguments), "join": join}).encode() + b"\n"
            )
            connection.settimeout(None)
            child = Child(connection, str(arguments.get("name", target)))
        except OSError as error:
            connection.close()
            raise ChildError(f"{target} cannot be started: {error}") from error
        self._children = [*(each for each in self._children if each.running), child]
        return child

    def close(self) -> None:
        """Kill every child and the server. Idempotent."""
        for child in self._children:
            child.kill()
        self._children.clear()
        self._process.kill()
        self._process.wait()
        self._starter.shutdown()
        self._directory.cleanup()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------------------------- in the server


def _serve(address: str, imports: Sequence[str], paths: Sequence[str], parent: int) -> None:
    _die_with_parent(parent)
    sys.path[:0] = [path for path in paths if path not in sys.path]
    for name in imports:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        print("ready", flush=True)
        os.dup2(2, 1)
        server = os.getpid()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become(connection, server)
            connection.close()


def _become(connection: socket.socket, server: int) -> None:
    """Read, in the child, what to run; run it on the connection as standard input and output, and end."""
    status = 1
    try:
        _die_with_parent(server)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request = b""
        while not request.endswith(b"\n"):
            piece = connection.recv(1 << 16)
            if not piece:
                os._exit(1)
            request += piece
        order = json.loads(request)
        for number in (0, 1):
            os.dup2(connection.fileno(), number)
        connection.close()
        if order["join"] is not None:
            _join(order["join"])
        print(os.getpid(), flush=True)
        if os.read(0, 1) != _GO:  # a process that ended before its starter holds it would be gone without a trace
            os._exit(1)
        module, _, name = order["target"].partition(":")
        status = int(getattr(importlib.import_module(module), name)(**order["arguments"]) or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass
        os._exit(status)


def _join(pid: int) -> None:
    """Enter the network and mount namespaces of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptors = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "mnt")]
    for descriptor in descriptors:
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    _serve(**json.loads(sys.argv[1]))
