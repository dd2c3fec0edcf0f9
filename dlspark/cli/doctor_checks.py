"""The checks of `dlspark doctor`; nothing here changes anything that it looks at.

* The machine: descriptors, ports, disks and the clock, for a sandbox or a storage node in a directory.
* The namespace and its cluster: whether they answer, and whether a record could be written.
* The interpreters: Python here and in Spark's workers, and Java.

Each check is a function that returns findings. It never raises for what it is there to find.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from dlspark.default_namespace import ADVICE, VARIABLE, default_uri
from dlspark.sandbox.state import SandboxState, default_directory, entering_line
from dlspark.version import __version__
from metadata.foundation import compiled
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.plurals import counted
from metadata.zookeeper.embedded import MINIMUM_JAVA, find_java

if TYPE_CHECKING:
    from metadata.security.identity import TlsIdentity

DESCRIPTORS_NEEDED = 512
DESCRIPTORS_WANTED = 4096
"""A connection and a file take one each; Spark's own files and sockets come on top."""
FREE_NEEDED_BYTES = 1 << 30
FREE_WANTED_BYTES = 5 << 30
USED_LIMIT = 0.95
"""A storage node's `diskUsageThreshold`: above it the node is read-only."""
_BLOCK_BYTES = 4096
_EARLIEST_S = 1_704_067_200  # 1 January 2024: no machine that runs this can be before it
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class CheckOutcome(str, Enum):
    """`fail`: something will not work; `warn`: it will, but not as it should; `ok`."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One line: what was checked, what was found, and what to do (for all but `ok`)."""

    check: str
    verdict: CheckOutcome
    found: str
    todo: str = ""


def ok(check: str, found: str) -> CheckFinding:
    """Return a check that found nothing to do."""
    return CheckFinding(check, CheckOutcome.OK, found)


def warn(check: str, found: str, todo: str) -> CheckFinding:
    """Return a finding that stops nothing yet; `todo` is the advice. The command still exits with 0."""
    return CheckFinding(check, CheckOutcome.WARN, found, todo)


def fail(check: str, found: str, todo: str) -> CheckFinding:
    """Return a finding that keeps something from working; `todo` is the advice. The command exits with 3."""
    return CheckFinding(check, CheckOutcome.FAIL, found, todo)


# ---------------------------------------------------------------------- the machine


def check_descriptors() -> Iterator[CheckFinding]:
    """Look how many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} open files and connections"
    if soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_WANTED:
        yield ok("descriptors", shown)
        return
    enough = hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS_WANTED
    todo = f"ulimit -n {DESCRIPTORS_WANTED if not enough else 65536 if hard < 0 else min(hard, 65536)}" + (
        "" if enough else f" (the hard limit is {hard}: ask the administrator, or see limits.conf)"
    )
    yield (fail if soft < DESCRIPTORS_NEEDED else warn)("descriptors", shown, todo)


def check_ports(directory: Path) -> Iterator[CheckFinding]:
    """Look at the ports that the directory's sandbox keeps, if it does not run; else whether one can be had at all."""
    try:
        state = SandboxState.load(directory)
    except CallerError as error:
        yield fail("ports", str(error), "Name another directory with --dir")
        return
    if state is not None and state.running():
        yield ok("ports", f"the sandbox in {directory} runs on its own (process {state.pid}, {state.uri})")
        return
    wanted = (0,) if state is None else (state.zookeeper_port, *state.node_ports)
    taken = [port for port in wanted if not _free(port)]
    if taken and state is None:
        yield fail("ports", "no port of 127.0.0.1 can be listened on", "Look at the machine's firewall and limits")
    elif taken:
        yield fail(
            "ports",
            f"{counted(len(taken), 'port is', 'ports are')} in use by others: {', '.join(map(str, taken))}; "
            f"the sandbox in {directory} keeps them, and cannot start",
            "Stop what listens there (ss -ltnp), or start a sandbox in another directory with --dir",
        )
    else:
        what = "a free port can be had" if state is None else f"those of the sandbox in {directory} are free"
        yield ok("ports", what)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port is free though connections of a former server are still winding down.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def check_disk(directory: Path) -> Iterator[CheckFinding]:
    """Look at the place where a sandbox's data are, or would be: room, whether a sync works, and the kind of file
    system.
    """
    place = next((one for one in (directory, *directory.absolute().parents) if one.is_dir()), Path("/"))
    elsewhere = "Name another directory with --dir"
    usage = shutil.disk_usage(place)
    room = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.1f} are free in {place}"
    if usage.free < FREE_NEEDED_BYTES or usage.total - usage.free > USED_LIMIT * usage.total:
        yield fail("disk", f"{room}; storage nodes would take no writes", f"Make room. {elsewhere}")
    elif usage.free < FREE_WANTED_BYTES:
        yield warn("disk", room, f"Make room. {elsewhere}")
    else:
        yield ok("disk", room)
    kind = _file_system(place)
    if kind in _MEMORY_FILE_SYSTEMS:
        yield warn("disk", f"{place} is {kind}: what is there is gone with the next start of the machine", elsewhere)
    yield from _syncs(place, elsewhere)


def _syncs(place: Path, elsewhere: str) -> Iterator[CheckFinding]:
    """Write, sync and throw away a block; with O_DIRECT too, as a journal is written."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".dlspark-doctor-") as scratch:
            began = time.monotonic()
            scratch.write(bytes(_BLOCK_BYTES))
            scratch.flush()
            os.fsync(scratch.fileno())
            took_ms = (time.monotonic() - began) * 1000
            direct = _writes_directly(scratch.name)
    except OSError as error:
        yield fail("disk", f"nothing can be written and synced in {place}: {error.strerror or error}", elsewhere)
        return
    yield ok("disk", f"a write is on disk after {took_ms:.1f} ms")
    if not direct:
        yield warn(
            "disk",
            f"the file system of {place} refuses O_DIRECT: journals go through the page cache, safe but slower",
            f"{elsewhere}, on ext4 or XFS",
        )


def _writes_directly(name: str) -> bool:
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        file = os.open(name, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        # O_DIRECT needs memory that begins on a page; of bytes that is not certain.
        with mmap.mmap(-1, _BLOCK_BYTES) as aligned:
            return os.write(file, aligned) == _BLOCK_BYTES
    except OSError:
        return False
    finally:
        os.close(file)


def _file_system(place: Path) -> str:
    """Return the type of the file system that holds `place`; empty where the machine does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    resolved, best = place.resolve(), ("", "")
    for line in lines:
        _, point, kind, *_ = line.split()
        # A blank in a path is written \040 there.
        point = point.encode().decode("unicode_escape")
        # The longest mount point holds the place; of two mounts on one point the later hides the earlier.
        if resolved.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def check_clock() -> Iterator[CheckFinding]:
    """Look at the clock: transaction ids are times, and leases are measured by it."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _EARLIEST_S:
        yield fail("clock", f"it is {shown} by this machine's clock", "Set the clock, and keep it by NTP")
    else:
        yield ok("clock", shown)


def check_identity() -> Iterator[CheckFinding]:
    """Look at what this user's commands and clients prove themselves with, by settings and environment."""
    from dlspark.core.settings.settings import Settings
    from metadata.security.settings import SecurityMode, client_identity

    try:
        settings = Settings.from_environment().client_settings().security
        identity = client_identity(settings)
    except DistributedLogError as error:
        where = f" [path {error.path}]" if error.path else ""
        todo = error.advice or "docs/security.md says what an identity folder has"
        yield fail("identity", f"{error.message}{where}", todo)
        return
    if identity is None:
        sandbox = _secured_sandbox()
        if sandbox is None:
            yield ok("identity", "security is off: connections are plain, and nobody proves who they are")
        else:
            found = f"security is off here, and the sandbox in {sandbox} is secured"
            yield warn("identity", found, entering_line(sandbox))
        return
    own = identity.own_certificate
    whose = f"{own.subject_text} by {own.issuer_text}" if own is not None else "no certificate of one's own"
    if (refused := _refused_by_its_own(identity)) is not None:
        yield fail(
            "identity", f"{whose}: {refused}", "dlspark tls renew, or issue another, and give the new folder out"
        )
        return
    for said in identity.endings():
        yield warn("identity", said, "dlspark tls renew, and give the new folder out")
    if settings.client_mode() is SecurityMode.OPTIONAL:
        yield warn(
            "identity",
            f"{whose}; servers that do not speak TLS are spoken to in plain",
            "Set security=on once all of them are changed over",
        )
    else:
        yield ok("identity", whose)


def _secured_sandbox() -> Path | None:
    """Return the directory of the sandbox whose namespace is taken where none is named, if it is secured."""
    directory = default_directory()
    try:
        state = SandboxState.load(directory)
    except CallerError:
        return None  # said by check_ports
    named = os.environ.get(VARIABLE, "").strip()
    return directory if state is not None and state.secured and state.running() and not named else None


def _refused_by_its_own(identity: TlsIdentity) -> str | None:
    """Return why servers that have the same authorities and lists would refuse this certificate; None: they would not.

    Nothing is known of one whose authority is another than those that are believed here.
    """
    from metadata.security.certificates import CERTIFICATE, pem_blocks, read_certificate

    own = identity.own_certificate
    if own is None:
        return None
    files = identity.material
    believed = [read_certificate(one.body) for one in pem_blocks(files.authorities) if one.label == CERTIFICATE]
    if own.issuer not in {one.subject for one in believed}:
        return None
    return identity.judge(next(one.body for one in pem_blocks(files.chain) if one.label == CERTIFICATE))


# ---------------------------------------------------------------------- the namespace


_SKEW_MS = 5_000


def check_namespace(uri: str | None) -> Iterator[CheckFinding]:
    """Open the namespace that is given, or that is known, and look at its cluster."""
    try:
        found = uri or default_uri()
    except DistributedLogError as error:
        yield fail("namespace", error.message, error.advice or "")
        return
    if found is None:
        yield ok("namespace", f"none is named, and no sandbox runs here. To have one: {ADVICE}")
        return
    import asyncio

    try:
        yield from asyncio.run(_looked_at(found))
    except DistributedLogError as error:
        todo = error.advice or "Check the URI, and that ZooKeeper runs there"
        yield fail("namespace", f"{found} cannot be used: {error.message}", todo)


async def _looked_at(uri: str) -> list[CheckFinding]:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.settings.settings import Settings

    namespace = await AsyncNamespace.open(uri, Settings.from_environment())
    try:
        writable = len(await namespace.ledgers.bookies.writable())
        needed, _, _ = namespace.settings.quorums
        stat = await namespace.store.exists(namespace.uri.path)
    finally:
        await namespace.close()
    findings = [ok("namespace", f"{uri} answers")]
    there = f"{counted(writable, 'storage node is', 'storage nodes are')} writable"
    if writable < needed:
        todo = "Start more, look at why they are read-only, or set bkcEnsembleSize and its quorums lower"
        findings.append(fail("nodes", f"{there}, and a segment needs {needed}", todo))
    elif writable == needed:
        todo = "One more takes the place of one that is lost"
        findings.append(warn("nodes", f"{there}, as many as a segment needs: losing one stops writers", todo))
    else:
        findings.append(ok("nodes", there))
    # The znode's time is the server's. Only one that lies ahead of us proves a skew.
    if stat is not None and stat.mtime_ms > time.time() * 1000 + _SKEW_MS:
        ahead = f"{(stat.mtime_ms - time.time() * 1000) / 1000:.0f} s"
        findings.append(warn("clock", f"ZooKeeper's clock is at least {ahead} ahead of this one", "Keep both by NTP"))
    return findings


# ---------------------------------------------------------------------- interpreters


MINIMUM_PYTHON = (3, 10)
_PROBE_TIMEOUT_S = 120
_COMPARED = ("pyspark", "pyarrow")
# Run by the workers' interpreter, in the folder where it would be: as a worker finds modules, so does this.
_PROBE = """
import json, platform, sys
said = {"python": platform.python_version(), "executable": sys.executable}
from importlib import metadata
for name in ("pyspark", "pyarrow"):
    try:
        said[name] = metadata.version(name)
    except Exception:
        said[name] = None
try:
    import dlspark
    said["dlspark"], said["place"] = dlspark.__version__, dlspark.__file__
except BaseException as error:
    said["error"], said["shadowed"] = str(error), type(error).__name__ == "ShadowedModuleError"
else:
    import pkgutil
    said["found"] = any(one.name == "pyspark_distributedlog" for one in pkgutil.iter_modules())
print(json.dumps(said))
"""


_THREADS = (
    "a session of dlspark.spark.builder writes from every thread; in one of plain SparkSession.builder, begin each "
    "thread but the first with dlspark.spark.register(spark), or a write there ends in DATA_SOURCE_NOT_FOUND"
)
"""Advice on errors that no look at an installation can find, where a user who has seen one looks."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Which interpreter do Spark's workers have, by its own words?"""

    python: str
    executable: str
    versions: Mapping[str, str | None]
    dlspark: str | None
    error: str | None
    shadowed: bool
    found: bool


def check_python() -> Iterator[CheckFinding]:
    """Look at this interpreter."""
    version = platform.python_version()
    if sys.version_info < MINIMUM_PYTHON:
        yield fail("python", f"{sys.executable} is Python {version}", "Use Python 3.10 or later")
    else:
        yield ok("python", f"{version} ({sys.executable}), dlspark {__version__}")
    for name in _COMPARED:
        if _version(name) is None:
            yield fail("python", f"{name} is not installed here", f"pip install {name}, or install dlspark again")


def check_compiled() -> Iterator[CheckFinding]:
    """Look whether the compiled core is in use; it need not be, and everything works without."""
    if compiled.todo:
        yield warn("speed", compiled.said, compiled.todo)
    else:
        yield ok("speed", compiled.said)


def check_workers() -> Iterator[CheckFinding]:
    """Look at the interpreter that Spark's workers would run on: PYSPARK_PYTHON, else python3 on the PATH."""
    named = os.environ.get("PYSPARK_PYTHON")
    wanted = named or "python3"
    source = "PYSPARK_PYTHON" if named else "python3 on the PATH"
    use_this = f"Set PYSPARK_PYTHON={sys.executable} before the session starts, or activate the virtual environment"
    program = shutil.which(wanted)
    if program is None:
        yield fail("workers", f"Spark's workers would run {wanted} ({source}), which is not there", use_this)
        return
    worker = _probed(program)
    if isinstance(worker, str):
        yield fail("workers", f"{program} ({source}) does not work as an interpreter: {worker}", use_this)
        return
    where = f"{worker.executable or program} ({source})"
    differences = [*_differences(worker, where, use_this), *_dlspark_in(worker, where, use_this)]
    yield from differences
    if not differences:
        yield ok("workers", f"{where} has dlspark, and the same Python, pyspark and pyarrow as this")
        yield ok("modules", "no file here has the name of one of dlspark's packages")
        yield ok("threads", _THREADS)


def _differences(worker: Worker, where: str, use_this: str) -> Iterator[CheckFinding]:
    if worker.python.split(".")[:2] != platform.python_version().split(".")[:2]:
        here = platform.python_version()
        yield fail("workers", f"{where} is Python {worker.python}, and this is {here}: Spark refuses that", use_this)
    for name in _COMPARED:
        if worker.versions[name] != _version(name):
            there, here = (version or "not installed" for version in (worker.versions[name], _version(name)))
            # In its workers Spark puts its own pyspark before the interpreter's.
            judge = warn if name == "pyspark" else fail
            yield judge("workers", f"{name} is {there} in {where}, and {here} here", use_this)


def _dlspark_in(worker: Worker, where: str, use_this: str) -> Iterator[CheckFinding]:
    if worker.shadowed:
        yield fail("modules", worker.error or "", "Rename it, or start your program in another folder")
    elif worker.error is not None:
        yield fail("workers", f"dlspark cannot be imported in {where}: {worker.error}", use_this)
    elif worker.dlspark != __version__:
        yield fail("workers", f"dlspark is {worker.dlspark} in {where}, and {__version__} here", use_this)
    elif not worker.found:
        yield fail(
            "workers",
            f"Spark does not find pyspark_distributedlog on the path of {where}",
            "Install dlspark as a package (pip install), not by a path of your own",
        )


def _probed(program: str) -> Worker | str:
    """Return the interpreter's answer, or why it gives none."""
    try:
        done = subprocess.run(
            [program, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    try:
        # The last line alone: what the interpreter loads at its start may print, too.
        said = json.loads(done.stdout.strip().splitlines()[-1])
        return Worker(
            python=str(said["python"]),
            executable=str(said["executable"]),
            versions={name: said[name] for name in _COMPARED},
            dlspark=said.get("dlspark"),
            error=said.get("error"),
            shadowed=bool(said.get("shadowed")),
            found=bool(said.get("found")),
        )
    except (ValueError, KeyError, IndexError, TypeError):
        text = (done.stderr.strip() or done.stdout.strip()).splitlines()
        return f"status {done.returncode}" + (f", {text[-1][:200]}" if text else ", and it says nothing")


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_java() -> Iterator[CheckFinding]:
    """Look for Java, which Spark and the sandbox's ZooKeeper need."""
    todo = f"Install OpenJDK {MINIMUM_JAVA} or later, and set JAVA_HOME to it or leave it unset"
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(Path(home) / "bin" / "java", os.X_OK):
        yield fail("java", f"JAVA_HOME is {home}, where there is no bin/java: Spark looks nowhere else", todo)
        return
    try:
        java = find_java()
    except CallerError as error:
        yield fail("java", error.message, error.advice or todo)
        return
    if home and not java.startswith(str(Path(home))):
        yield fail("java", f"JAVA_HOME is {home}, whose Java is too old or does not run; {java} would do", todo)
    else:
        yield ok("java", java)


def check_spark_home() -> Iterator[CheckFinding]:
    """Look for a Spark of its own beside PySpark's."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    todo = "Unset SPARK_HOME to use the Spark that PySpark brings, or set it to one of the same version"
    try:
        release = (Path(home) / "RELEASE").read_text()
    except OSError:
        if not (Path(home) / "bin" / "spark-submit").exists():
            yield fail("spark", f"SPARK_HOME is {home}, where there is no Spark", todo)
        return
    version = release.split()[1] if len(release.split()) > 1 else "?"
    if version != _version("pyspark"):
        yield warn("spark", f"SPARK_HOME is Spark {version}, and pyspark {_version('pyspark')}", todo)
    else:
        yield ok("spark", f"SPARK_HOME is Spark {version}")
