"""Rounds of faults over one Spark session: the session as a process, a standalone cluster, what holds at the end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil
import pyspark

from dlspark.core.runtime import Runtime
from dlspark.sandbox.sandbox import Sandbox
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.driver import open_publishing
from dlspark.spark.sink.segments.leftovers import find_leftovers, sweep_leftovers
from helpers.jvm_flags import spark_flags
from helpers.paths import ROOT, SPARK_PROGRAMS, TESTS
from helpers.spark.sink_driver import Plan
from helpers.spark.typed_frames import RAW
from metadata.distributedlog.sinks import application_sink, query_sink
from metadata.foundation import fault_points

SPARK_HOME = Path(pyspark.__file__).parent
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
PATIENCE_S = 240.0
SESSION_SETTING = ("DLSPARK_SET_zkSessionTimeoutSeconds", "4")
"""A dead process's lock on a log ends soon."""
FRUGAL = spark_flags()
SLOW_START = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start; where a busy machine needs more, the query is started again."""
SLOW_STARTS = 3
HOSTS = ("127.0.0.1", "127.0.0.2")
"""One worker each: Spark runs a second attempt of a task on another host only."""


class StandaloneCluster:
    """A Spark standalone cluster: a master and a worker of one core on each host, as processes of ours."""

    def __init__(self, place: Path) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._place = self.place = place
        with socket.socket() as free:
            free.bind((HOSTS[0], 0))
            self.master = f"spark://{HOSTS[0]}:{free.getsockname()[1]}"
        port = self.master.rpartition(":")[2]
        self._start("master.Master", "--host", HOSTS[0], "--port", port, "--webui-port", "0")
        _await(lambda: _listens(int(port)), "the master listens")
        for host in HOSTS:
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(place / host))
            self._start("worker.Worker", "--host", host, *limits, "--webui-port", "0", self.master)

    def _start(self, name: str, *arguments: str) -> None:
        java = shutil.which("java") or str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
        command = [java, "-Xmx192m", *FRUGAL.split(), "-cp", f"{SPARK_HOME}/jars/*"]
        command.append("-Dspark.deploy.maxExecutorRetries=-1")  # executors are killed for a living here
        output = (self._place / f"{name}-{len(self._processes)}.log").open("wb")
        self._processes.append(
            subprocess.Popen(
                [*command, f"org.apache.spark.deploy.{name}", *arguments],
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "SPARK_HOME": str(SPARK_HOME),
                    "SPARK_LOCAL_IP": HOSTS[0],
                    "SPARK_SCALA_VERSION": _scala_version(),
                },
            )
        )
        output.close()

    def executors(self) -> list[psutil.Process]:
        """Return the executors' JVMs that run now."""
        return [
            child
            for process in self._processes[1:]
            for child in psutil.Process(process.pid).children()
            if any("CoarseGrainedExecutorBackend" in word for word in _command_line(child))
        ]

    def stop(self) -> None:
        for process in reversed(self._processes):
            _kill_family(process.pid)
            process.wait(60)


class SparkProcess:
    """`rounds_driver.py` with its session; started again after it was killed."""

    def __init__(self, master: str, place: Path) -> None:
        self.starts = 0
        self.script = place / "faults.json"
        self._master = master
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: IO[bytes] | None = None

    def start(self) -> None:
        """Start the session, if none runs."""
        if self._process is not None:
            return
        self.starts += 1
        environment = {
            **os.environ,
            SESSION_SETTING[0]: SESSION_SETTING[1],
            fault_points.VARIABLE: f"@{self.script}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": HOSTS[0],
        }
        with (self._place / "driver.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(SPARK_PROGRAMS / "rounds_driver.py"),
                    self._master,
                    json.dumps(self._conf(environment)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        assert self._reply() == "ready"

    def _conf(self, environment: dict[str, str]) -> dict[str, str]:
        conf = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
            "spark.sql.warehouse.dir": str(self._place / "warehouse"),
            # Little data in many small jobs: compiling code costs more than it saves.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.extraJavaOptions": FRUGAL,
            "spark.executor.extraJavaOptions": FRUGAL,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.excludeOnFailure.enabled": "false",
            # A task that takes long gets a second attempt on the other host, and both write.
            "spark.speculation": "true",
            "spark.speculation.task.duration.threshold": "2s",
        }
        for name in (SESSION_SETTING[0], fault_points.VARIABLE, "PYTHONPATH"):
            conf[f"spark.executorEnv.{name}"] = environment[name]
        return conf

    def ask(self, do: str, **arguments: object) -> Any:
        """Send one command; its answer."""
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        process.stdin.flush()
        return self._reply()

    def _reply(self) -> Any:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else b""
        assert line, f"no reply; the driver's log ends:\n{self.log_tail()}"
        return json.loads(line)

    def log_tail(self) -> str:
        return (self._place / "driver.log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """Send SIGKILL to the driver, its JVM and its Python workers, as the loss of its machine would."""
        process, self._process = self._process, None
        if process is not None:
            _kill_family(process.pid)
            process.wait(60)
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]


class Stream:
    """A streaming query that rounds share, and what its logs must hold by now."""

    def __init__(
        self,
        sandbox: Sandbox,
        spark: SparkProcess,
        directory: Path,
        name: str,
        *,
        tables: bool = False,
        one_log: bool = False,
        several_logs: bool = False,
        typed: bool = False,
    ) -> None:
        rng = random.Random(name)
        self.tables = tables
        """Whether its logs are written by a `foreachBatch`, several times under one number."""
        routed = rng.random() < 0.3 and not tables
        names = "abcde"[: rng.randint(2, 5)] if tables else ("012" if routed else "abc")[: rng.randint(1, 3)]
        names = names[:1] if one_log else names  # batches of up to 512 KiB are appended then
        if several_logs and len(names) == 1:  # and those for several are staged
            names = "012" if routed else "abc"
        directory.mkdir()
        self.spark = spark
        self.checkpoint = directory / "checkpoint"
        self.limit = directory / "limit"
        self.running = False
        self.next = 0
        """First batch that has not been asked for."""
        self.foreign: set[bytes] = set()
        """Records of others in its logs."""
        self.shortened: dict[str, int] = {}
        """Logs that were cut at their beginning, and the batch from which on everything must be there."""
        self.plan = Plan(
            uri=sandbox.uri,
            query_id=name,
            logs=tuple(f"{name}-{letter}" for letter in names),
            batches=0,
            rows=rng.choice([20, 100, 600]),
            checkpoint="",
            stamped=rng.random() < 0.4,
            routed=routed,
            empty=rng.choice([0.1, 0.5]),
            kind=rng.choice(["json", "avro", "arrow"]) if typed else RAW,
        )
        self.plan.declare(*(f"{log}-fork" for log in self.plan.logs))

    def expected(self, log: str, first: int = 0) -> list[bytes]:
        """Return what `log` must hold of the batches from `first` on, in order."""
        rows = (row for batch in range(first, self.next) for row in self.plan.batch_rows(batch))
        return [value for _, name, value in rows if name == log]

    def check(self) -> None:
        """Assert one copy of everything, in order, and nothing left of failed attempts."""
        for log in self.plan.logs:
            txids, values = self.plan.read(log)
            assert txids == sorted(txids), log
            ours = [value for value in values if value not in self.foreign]
            expected = self.expected(log)
            if log in self.shortened:
                assert len(ours) >= len(self.expected(log, self.shortened[log])), log
                expected = expected[len(expected) - len(ours) :]
            assert ours == expected, log
        Runtime.shared().run(self._check_swept())

    async def _check_swept(self) -> None:
        publishing = await open_publishing(Options({"uri": self.plan.uri}, Scope.SINK_STREAM))
        session = publishing.session
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        sink = application_sink(self.plan.query_id) if self.tables else query_sink(query)
        for log in self.plan.logs:
            # Who waits for a log that the driver's process holds, gets it, with the sink's marks moved.
            if await session.namespace.log_exists(log):
                await (await (await session.namespace.open_log(log)).open_writer()).close()
        mark = await session.sinks.read(sink)
        assert mark is not None
        with_rows = [batch for batch in range(self.next) if self.plan.batch_rows(batch)]
        assert mark.value.batch >= max(with_rows, default=-1)
        (found,) = await find_leftovers(session.sinks, session.namespace.services.logs, 0, names=[sink])
        await sweep_leftovers(publishing.sweeper, session.sinks, found)
        assert await session.sinks.staged(sink) == []


class Round:
    """A few batches of a stream, and one fault."""

    def __init__(self, stream: Stream, directory: Path, seed: str, batches: int) -> None:
        self.rng = random.Random(seed)
        self.stream = stream
        self.spark = stream.spark
        self.flag = directory / "flag"
        self.go_on = directory / "go-on"
        self.first = stream.next
        self.last = stream.next + batches - 1
        stream.next += batches
        self.mend()

    def strike(self, point: str, do: str, *, everyone: bool = False) -> None:
        """Have `point` strike from now on, once or everyone."""
        action = {"do": do, "flag": str(self.flag), "until": str(self.go_on), "everyone": everyone}
        self._script({point: action})

    def mend(self) -> None:
        """Have no fault from now on."""
        self._script({})

    def _script(self, script: dict[str, dict[str, object]]) -> None:
        temporary = self.spark.script.with_suffix(".new")
        temporary.write_text(json.dumps(script))
        temporary.replace(self.spark.script)

    def begin(self, until: int | None = None, *, stride: int = 1) -> None:
        """Let the query find the batches up to `until`; if it does not run it is started, with other tasks (D14)."""
        stream = self.stream
        temporary = stream.limit.with_suffix(".new")
        temporary.write_text(str((self.last if until is None else until) + 1))
        temporary.replace(stream.limit)
        if not stream.running:
            self._start(self.spark, stream.checkpoint, stride, fork=False)
            stream.running = True

    def _start(self, spark: SparkProcess, checkpoint: Path, stride: int, *, fork: bool) -> None:
        spark.ask(
            "start",
            plan=asdict(self.stream.plan),
            limit=str(self.stream.limit),
            stride=stride,
            cuts=self.rng.randrange(1 << 30),
            checkpoint=str(checkpoint),
            tables=self.stream.tables,
            fork=fork,
        )

    def run_fork(self, checkpoint: Path) -> None:
        """Run a copied checkpoint to the round's end, over logs of its own, beside the query if that runs.

        In a session of its own: Spark stops a query where another with its id is started.
        """
        place = checkpoint.with_name(f"session-{checkpoint.name}")
        place.mkdir()
        spark = SparkProcess("local[1]", place)
        spark.script.write_text("{}")
        error: str | None = None
        try:
            for _ in range(SLOW_STARTS):
                self._start(spark, checkpoint, 1, fork=True)
                error = spark.ask("until", batch=self.last)
                if error is None or SLOW_START not in error:
                    break
            assert error is None, f"{error}\n{spark.log_tail()}"
            spark.ask("stop")
        finally:
            spark.kill()

    def run(self, until: int | None = None) -> str | None:
        """Run until a batch is committed. Returns why the query ended before, if it did."""
        error: str | None = None
        for _ in range(SLOW_STARTS):
            self.begin(until)
            error = self.spark.ask("until", batch=self.last if until is None else until)
            self.stream.running = error is None
            if error is None or SLOW_START not in error:
                break
        return error

    def finish(self) -> None:
        """Run to the round's end."""
        error = self.run()
        assert error is None, error

    def stop(self) -> None:
        """Stop the query, whatever it is at."""
        self.spark.ask("stop")
        self.stream.running = False

    def error(self) -> str:
        """Wait for the query to fail; why it did."""
        told: str = self.spark.ask("error")
        self.stream.running = False
        return told

    def kill_driver(self) -> None:
        self.spark.kill()
        self.stream.running = False

    def struck(self) -> None:
        """Wait until the fault point was reached."""
        _await(self.flag.exists, f"the fault point is reached\n{self.spark.log_tail()}")

    def check(self) -> None:
        assert self.flag.exists()
        self.stream.check()


def _await(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def _scala_version() -> str:
    """Return what workers ask for before they start an executor; Spark's own scripts look at the jars' names."""
    (core,) = SPARK_HOME.glob("jars/spark-core_*.jar")
    return core.name.partition("_")[2].partition("-")[0]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOSTS[0], port)) == 0


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _kill_family(pid: int) -> None:
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, 20)
