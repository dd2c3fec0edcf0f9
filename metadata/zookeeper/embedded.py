"""`EmbeddedZooKeeper`: a real ZooKeeper server as a child process, from the jars that PySpark ships.

For sandboxes, demos and tests; a cluster has its own ensemble. The server keeps its data in one directory and syncs it
to disk, so it survives SIGKILL. It never outlives this process: it is started by a thread that waits for it, and asks
the kernel (Linux) to be killed when that thread, hence the process, ends, however that happens. It has a session of
its own, so that Ctrl-C at a terminal reaches only us, and we stop things in the right order.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from metadata.foundation.addresses import address_text
from metadata.foundation.errors import CallerError, MetadataUnavailableError
from metadata.foundation.private_files import (
    DIRECTORY_MODE,
    make_private_directory,
    private_opener,
    write_private_text,
)
from metadata.foundation.processes import ending_with_parent
from metadata.security.listening import ALLOW, REFUSE, ListeningRule
from metadata.zookeeper.homing import four_letters
from metadata.zookeeper.secure_server import NETTY_JARS, PROVIDER_JAR, ServerSecurity, plain_ports
from metadata.zookeeper.tls_socket import FixedTls

_LOG: Final = logging.getLogger(__name__)
MINIMUM_JAVA: Final = 17
TICK_MS: Final = 250
START_TIMEOUT_MS: Final = 30_000
STOP_TIMEOUT_MS: Final = 5_000
REFRESH_S: Final = 5.0
"""How often the certificates' files are looked at."""
_LOG_TAIL_BYTES: Final = 2_000
_UMASK: Final = 0o077
"""What the server writes is for its user alone: transactions have passwords of ledgers."""
_POLL_S: Final = 0.02
_PORT_ATTEMPTS: Final = 5

# All five are needed: without snappy the server answers `ruok` and never serves.
_JARS: Final = (
    "zookeeper-3*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
)
_LOGGING_JARS: Final = ("log4j-slf4j2-impl-*.jar", "log4j-api-2*.jar", "log4j-core-*.jar")
_JVM_OPTIONS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
HEAP_MB: Final = 64
"""Enough for tens of thousands of znodes. With a hundred thousand ledgers the server stalls until sessions are lost."""
_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_ENSEMBLE_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

# A path of the data directory relative to the working directory needs no escaping, for any name of the directory.
_CONFIG: Final = """\
tickTime={tick_ms}
minSessionTimeout={minimum_ms}
maxSessionTimeout=120000
dataDir=./data
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,mntr,stat,cons
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
OBSERVER: Final = ":observer"
# A leader that is heard and hears nothing has its vote counted once more: the others elect it again, and would try to
# reach it for initLimit, 5 seconds, before they elect one of themselves. To connect takes a round trip, and no more.
_ENSEMBLE_CONFIG: Final = """\
initLimit=20
syncLimit=8
connectToLearnerMasterLimit=6
"""


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """Which server of an ensemble is this, and who are the others?

    Args:
        number: of this server, from 1.
        servers: of all, by number: `host:port:port`, the ports for followers and for elections. One that ends in
            `:observer` has no vote: changes do not wait for it, and its loss takes none away.
        socks: a SOCKS proxy by way of which this server reaches the others, `host` and port; None: directly.
    """

    number: int
    servers: Mapping[int, str]
    socks: tuple[str, int] | None = None

    def config(self) -> str:
        """Return what the configuration of one server has in addition."""
        peer_type = "peerType=observer\n" if self.servers[self.number].endswith(OBSERVER) else ""
        servers = "".join(f"server.{number}={server}\n" for number, server in self.servers.items())
        return _ENSEMBLE_CONFIG + peer_type + servers

    def jvm_options(self) -> list[str]:
        """Return options by which the JDK dials other servers by way of the proxy, loopback addresses too."""
        if self.socks is None:
            return []
        host, port = self.socks
        return [
            f"-DsocksProxyHost={host}",
            f"-DsocksProxyPort={port}",
            "-DsocksProxyVersion=4",
            "-DsocksNonProxyHosts=",
        ]


class EmbeddedZooKeeper:
    """Is there a ZooKeeper to try things with? A server in `directory`, with data that stay there.

    Not thread-safe. `start` and `stop` block (for a fraction of a second); run them off the event loop.

    Args:
        directory: its data and its log.
        port: 0 takes a free one and keeps it over restarts of this object.
        host: the address to listen at.
        tick_ms: ZooKeeper's unit of time: sessions last two ticks at least and expire by the tick.
        heap_mb: bounds the server's memory, and with it the number of znodes.
        security: TLS on its port, and among servers of an ensemble; None: all is in clear text. The certificate must
            be one for `host`, and have both uses. The files are looked at again every few seconds.
        member: its place in an ensemble, which needs a port that was chosen; None: it is alone. `start` then returns
            only once enough others run: `launch` all first, and `await_serving` after that.
        insecure_listen: allow a `host` that other machines can reach, though nobody has to prove who he is.

    Raises CallerError for a member without a port, and for such a host unless it is allowed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        tick_ms: int = TICK_MS,
        heap_mb: int = HEAP_MB,
        security: ServerSecurity | None = None,
        member: EnsembleMember | None = None,
        insecure_listen: bool = False,
    ) -> None:
        if member is not None and port == 0:
            raise CallerError("a server of an ensemble needs a port that the others know", advice="Choose one")
        self._rule = ListeningRule("the embedded ZooKeeper", "host", ALLOW if insecure_listen else REFUSE)
        self._rule.host(host, secured=security is not None)
        self._member = member
        self._directory = Path(directory)
        self._host = host
        self._port = port
        self._chosen = port == 0
        self._tick_ms = tick_ms
        self._heap_mb = heap_mb
        self.security = security
        """As the next start takes it."""
        self._probe: FixedTls | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiter: threading.Thread | None = None
        self._lock: IO[bytes] | None = None

    @property
    def port(self) -> int:
        """The client port; 0 before the first start with a port to choose."""
        return self._port

    @property
    def address(self) -> str:
        """For ZooKeeperStore.connect, e.g. "127.0.0.1:2181"."""
        return address_text(self._host, self._port)

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """True while the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The file with what the server prints."""
        return self._directory / "zookeeper.log"

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it serves. A running one is left alone.

        Raises CallerError where Java or PySpark is missing or too old, the port is in use, or another process uses the
        directory; MetadataUnavailableError where the server ended or did not come up, with what it said.
        """
        if self.running:
            return
        if self._member is not None:
            self.launch()
            self.await_serving()
            return
        java = self._prepare()
        try:
            self._start_on_some_port(java)
        except BaseException:
            self.kill()
            raise
        atexit.register(self.kill)

    def launch(self) -> None:
        """Start a server of an ensemble without waiting until it serves. Raises CallerError as `start`."""
        if self.running:
            return
        java = self._prepare()
        try:
            self._check_port()
            self._launch(java)
        except BaseException:
            self.kill()
            raise
        atexit.register(self.kill)

    def await_serving(self) -> None:
        """Wait until a launched server serves: until most of the ensemble's do. Raises MetadataUnavailableError."""
        if not self._serves(START_TIMEOUT_MS):
            try:
                self._fail(find_java())
            finally:
                self.kill()

    def _prepare(self) -> str:
        self._reap()
        java = find_java()
        self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        make_private_directory(self._directory / "data")  # what the store holds, passwords of ledgers among it
        self._take_lock()
        return java

    def _check_port(self) -> None:
        if not _can_bind(self._host, self._port):
            raise CallerError(
                f"port {self._port} of {self._host} is in use",
                advice="Stop what listens there, or choose another port (0: any free one)",
            )

    def _launch(self, java: str) -> None:
        # Once more: `security` may have been taken away since.
        self._rule.host(self._host, secured=self.security is not None)
        config = _CONFIG.format(tick_ms=self._tick_ms, minimum_ms=2 * self._tick_ms)
        self._probe = None
        if self.security is None:
            config += plain_ports(self._host, self._port)
        else:
            self.security.install(self._directory)
            self._probe = FixedTls(self.security.probe_context())
            config += self.security.config(self._host, self._port)
        if self._member is not None:
            write_private_text(self._directory / "data" / "myid", f"{self._member.number}\n")
            config += self._member.config()
        write_private_text(self._directory / "zoo.cfg", config)
        self._spawn(self._command(java, _JARS))

    def _command(self, java: str, patterns: tuple[str, ...]) -> list[str]:
        member = self._member
        more, main = ([], _MAIN) if member is None else (member.jvm_options(), _ENSEMBLE_MAIN)
        if self.security is not None:
            return _command(java, patterns + NETTY_JARS, self._heap_mb, more, main, (str(PROVIDER_JAR),))
        return _command(java, patterns, self._heap_mb, more, main)

    def _start_on_some_port(self, java: str) -> None:
        for attempt in range(_PORT_ATTEMPTS):
            if self._port == 0:
                self._port = _free_port(self._host)
            else:
                self._check_port()
            self._launch(java)
            if self._serves(START_TIMEOUT_MS):
                return
            lost_race = self._chosen and not self.running and not _can_bind(self._host, self._port)
            if not lost_race or attempt == _PORT_ATTEMPTS - 1:
                break
            self._reap()
            self._port = 0  # another process took the free port first: choose another
        self._fail(java)

    def _spawn(self, command: list[str]) -> None:
        """Start the child from a thread that lives as long: the kernel sends the parent-death signal per thread."""
        started = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                with open(self.log_path, "ab", opener=private_opener) as log:
                    self._process = subprocess.Popen(
                        ending_with_parent(command),
                        cwd=self._directory,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        umask=_UMASK,
                    )
            except BaseException as error:
                failure.append(error)
                return
            finally:
                started.set()
            self._wait(self._process)

        self._waiter = threading.Thread(target=run, name="dlspark-zookeeper", daemon=True)
        self._waiter.start()
        started.wait()
        if failure:
            raise CallerError(f"Java cannot be started: {failure[0]}") from failure[0]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the server's end, and hand renewed certificates to it meanwhile."""
        security, said = self.security, ""
        if security is None:
            process.wait()
            return
        while True:
            try:
                process.wait(REFRESH_S)
                return
            except subprocess.TimeoutExpired:
                pass
            try:
                security.install(self._directory)
                said = ""
            except (CallerError, OSError) as error:
                # The server goes on with what it has; files that are half replaced are whole the next time.
                if str(error) != said:
                    _LOG.warning("the ZooKeeper at %s keeps what it has of this: %s", self.address, error)
                said = str(error)

    def _serves(self, timeout_ms: int) -> bool:
        """Return True once `srvr` answers with a mode; False when the process ended or the time is up."""
        deadline = time.monotonic() + timeout_ms / 1000
        while time.monotonic() < deadline:
            if not self.running:
                return False
            if "Mode:" in four_letters(self._host, self._port, "srvr", tls=self._probe):
                return self.running
            time.sleep(_POLL_S)
        return False

    def _fail(self, java: str) -> None:
        """Say why it did not start. Without a logging back end the server is mute, so let it say it once with one."""
        ended = self._process.returncode if self._process is not None and not self.running else None
        self.kill(keep_lock=True)
        if ended is not None:
            self._spawn(self._command(java, _JARS + _LOGGING_JARS))
            if self._waiter is not None:
                self._waiter.join(STOP_TIMEOUT_MS / 1000)
            self.kill(keep_lock=True)
        what = "did not serve in time" if ended is None else f"ended with status {ended}"
        raise MetadataUnavailableError(
            f"the embedded ZooKeeper {what}. The end of its log:\n{self._log_tail()}\n",
            path=str(self.log_path),
            node=self.address,
        )

    def _log_tail(self) -> str:
        try:
            data = self.log_path.read_bytes()
        except OSError as error:
            return f"(no log: {error})"
        return data[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or "(the log is empty)"

    def stop(self) -> None:
        """Stop the server: SIGTERM, and SIGKILL if it does not end. Idempotent; the data stays."""
        self._signal(signal.SIGTERM)
        if self._waiter is not None:
            self._waiter.join(STOP_TIMEOUT_MS / 1000)
        self.kill()

    def kill(self, *, keep_lock: bool = False) -> None:
        """End the server at once with SIGKILL, as a crash would. Idempotent; the data stays."""
        self._signal(signal.SIGKILL)
        self._reap()
        if not keep_lock:
            self._release_lock()
            atexit.unregister(self.kill)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _reap(self) -> None:
        if self._waiter is not None:
            self._waiter.join()
        self._waiter = None
        self._process = None

    def _take_lock(self) -> None:
        """Take the directory for this server alone: two would destroy each other's data."""
        if self._lock is not None:
            return
        lock = open(self._directory / "lock", "ab", opener=private_opener)  # noqa: SIM115  # held until it ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise CallerError(
                "another process runs a ZooKeeper in this directory",
                path=str(self._directory),
                advice="Stop it first, or choose another directory",
            ) from error
        self._lock = lock

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _command(
    java: str, patterns: tuple[str, ...], heap_mb: int, more: Sequence[str], main: str, own: tuple[str, ...] = ()
) -> list[str]:
    jars = _jar_directory()
    found = list(own)
    for pattern in patterns:
        matches = sorted(jars.glob(pattern))
        if not matches:
            raise CallerError(
                f"PySpark's jars lack {pattern}", path=str(jars), advice="Install pyspark 4.2 or later from PyPI"
            )
        found.append(str(matches[-1]))
    return [java, f"-Xmx{heap_mb}m", *_JVM_OPTIONS, *more, "-cp", os.pathsep.join(found), main, "zoo.cfg"]


def _jar_directory() -> Path:
    """Return PySpark's own jars, without importing it; SPARK_HOME may be a Spark of another kind."""
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        jars = Path(location) / "jars"
        if jars.is_dir():
            return jars
    raise CallerError("PySpark's jars are not found", advice="Install pyspark 4.2 or later from PyPI")


def find_java() -> str:
    """Return the `java` to run, from JAVA_HOME, else from PATH. Raises CallerError where it is missing or below 17."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    candidates += [found for found in [shutil.which("java")] if found]
    seen = []
    for java in candidates:
        if not os.access(java, os.X_OK):
            seen.append(f"{java} is not there")
            continue
        version = _java_version(java, os.stat(java).st_mtime_ns)
        if version >= MINIMUM_JAVA:
            return java
        seen.append(f"{java} is Java {version}" if version else f"{java} does not say its version")
    raise CallerError(
        f"Java {MINIMUM_JAVA} or later is needed" + (f", but {'; '.join(seen)}" if seen else ", and none is installed"),
        advice=f"Install OpenJDK {MINIMUM_JAVA} or later, and set JAVA_HOME or PATH so that it is found",
    )


@functools.lru_cache(maxsize=8)
def _java_version(java: str, _changed: int) -> int:
    """Return the major version; 0 where it is not known."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])  # before Java 9: 1.8


def _listener(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener


def _free_port(host: str) -> int:
    with _listener(host) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def _can_bind(host: str, port: int) -> bool:
    with _listener(host) as listener:
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError:
            return False
        return True
