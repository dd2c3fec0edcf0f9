"""The real Java software as a process that takes commands: fetched by Maven once, compiled once, one command a line.

A little Java program of one's own (`JavaProgram`) is compiled against Apache BookKeeper and DistributedLog as Maven
fetches them. It takes commands on standard input and answers on standard output, both JSON, a line each:
`{"id": 7, "do": "ping"}` is answered by `{"id": 7, "ok": ...}` or `{"id": 7, "error": ..., "message": ...}`, in any
order. The end of standard input ends it.

`OutOfReachError` says that the software is not available here: no Java 17 compiler, or Maven absent or without its
repository. Everything else that goes wrong is a failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metadata.foundation.errors import InvariantViolation

REPOSITORY = Path(__file__).resolve().parent.parent.parent
POM = REPOSITORY / "tests" / "interop" / "java" / "pom.xml"
CACHE = REPOSITORY / "build" / "interop"
OPENED_PACKAGES = ("java.nio", "java.io", "sun.nio.ch")
CLASSPATH_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
FETCH_TIMEOUT_S = 240
ANSWER_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
_UNREACHABLE = re.compile(
    r"Could not transfer|Unknown host|Connection refused|timed out|No route to host|Network is unreachable|offline",
    re.IGNORECASE,
)


class OutOfReachError(Exception):
    """The Java software is not available on this machine; the text is the reason for skipping."""


class JavaError(Exception):
    """An exception of the Java side: its class name, its library's code (or None), its message."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(
            f"{answer['error']} (code {answer.get('code')}): {answer['message']} {answer.get('trace', '')}"
        )
        self.error: str = answer["error"]
        self.code: int | None = answer.get("code")
        self.owner: str | None = answer.get("owner")
        """The holder of what was refused, where the program names it."""


@dataclass(frozen=True)
class JavaProgram:
    """Sources of a program below a directory, and how to run it."""

    sources: Path
    main: str
    flags: tuple[str, ...]
    """For the JVM."""


@dataclass(frozen=True)
class JavaSoftware:
    """One version of Apache BookKeeper and DistributedLog, and a program on it, ready to run."""

    version: str
    program: JavaProgram
    classpath: str

    @classmethod
    def prepare(cls, version: str, program: JavaProgram) -> JavaSoftware:
        """Fetch the jars through Maven and compile the program, unless both are there from an earlier run.

        Raises OutOfReachError.
        """
        sources = sorted(program.sources.rglob("*.java"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in [POM, *sources])).hexdigest()[:16]
        directory = CACHE / f"{version}-{digest}"
        listed = directory / "classpath"
        classes = directory / "classes"
        if not _all_there(listed):
            for tool in ("mvn", "java", "javac"):
                if shutil.which(tool) is None:
                    raise OutOfReachError(f"{tool} is not installed: the Java software cannot be fetched and compiled")
            directory.mkdir(parents=True, exist_ok=True)
            jars = _fetch(POM, directory / "resolved", f"-Dbookkeeper.version={version}")
            _compile(jars, sources, classes)
            listed.write_text(jars)
        return cls(version, program, os.pathsep.join([str(program.sources), str(classes), listed.read_text()]))


def class_path_of(pom: Path, cache: Path = CACHE) -> str:
    """Return the jars that a POM asks for, fetched through Maven unless they are there from an earlier run, kept in
    `cache`.

    Raises OutOfReachError.
    """
    listed = cache / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}.classpath"
    if not _all_there(listed):
        for tool in ("mvn", "java"):
            if shutil.which(tool) is None:
                raise OutOfReachError(f"{tool} is not installed: the Java software cannot be fetched and run")
        listed.parent.mkdir(parents=True, exist_ok=True)
        _fetch(pom, listed)
    return listed.read_text().strip()


def _all_there(listed: Path) -> bool:
    """Return whether every jar of a class path that was kept still lies where it did."""
    return listed.exists() and all(Path(jar).exists() for jar in listed.read_text().strip().split(os.pathsep))


def _fetch(pom: Path, output: Path, *settings: str) -> str:
    """Return the class path as Maven resolves it (from its local cache where it can), which it writes to `output`."""
    command = ["mvn", "-q", "-B", "-f", str(pom), CLASSPATH_GOAL, *settings, f"-Dmdep.outputFile={output}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise OutOfReachError(f"Maven did not fetch the jars within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        reason = next((line for line in done.stdout.splitlines() if _UNREACHABLE.search(line)), None)
        if reason is not None:
            raise OutOfReachError(f"Maven's repository is out of reach: {reason}")
        raise RuntimeError(f"Maven failed: {done.stdout}{done.stderr}")
    return output.read_text().strip()


def _compile(jars: str, sources: Sequence[Path], classes: Path) -> None:
    command = ["javac", "-d", str(classes), "-cp", jars, "--release", "17", *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"the Java program does not compile: {done.stderr}")


class JavaTool:
    """A running Java process; commands may overlap, answers are matched by number."""

    def __init__(self, software: JavaSoftware, log: Path) -> None:
        self.log = log
        self.kept: dict[str, Any] = {}
        """What tests keep here to find it again in the same process."""
        flags = ["-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true"]
        flags += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
        command = ["java", *software.program.flags, *flags, "-cp", software.classpath, software.program.main]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )
        self._lock = threading.Lock()
        self._last_id = 0
        self._waiting: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read_responses, name="java-responses", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The Java process's id."""
        return self._process.pid

    def submit(self, do: str, **arguments: object) -> Future[Any]:
        """Send a command; the future gives its result or JavaError."""
        future: Future[Any] = Future()
        with self._lock:
            self._last_id += 1
            self._waiting[self._last_id] = future
            stdin = self._process.stdin
            if stdin is None:
                raise InvariantViolation("the process was started without a standard input")
            stdin.write(json.dumps({"id": self._last_id, "do": do, **arguments}) + "\n")
            stdin.flush()
        return future

    def call(self, do: str, **arguments: object) -> Any:
        """Send a command and wait for what it gives. Raises JavaError, TimeoutError."""
        try:
            return self.submit(do, **arguments).result(ANSWER_TIMEOUT_S)
        except TimeoutError:
            log = self.log.read_text()[-2000:]
            raise TimeoutError(f"{do} was not answered; the Java log ends with: {log}") from None

    async def ask(self, do: str, **arguments: object) -> Any:
        """Like `call`, for a test whose own event loop must go on meanwhile."""
        return await asyncio.wait_for(asyncio.wrap_future(self.submit(do, **arguments)), ANSWER_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL: nothing is closed, sessions stay until they expire."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Close standard input, which ends the process in order."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _read_responses(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            raise InvariantViolation("the process was started without a standard output")
        for line in stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(JavaError(answer))
            else:
                future.set_result(answer["ok"])
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(ConnectionError(f"the Java process ended; see {self.log}"))


def free_port() -> int:
    """Return a port below the range of outgoing connections, so that a server that is down for a while keeps it."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port found in 200 tries")
