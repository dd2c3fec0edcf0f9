"""Python here and in Spark's workers, and Java."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlspark.cli.checks import Finding, fail, ok, warn
from dlspark.version import __version__
from metadata.embedded import MINIMUM_JAVA, find_java
from metadata.foundation.errors import CallerError

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


@dataclass(frozen=True, slots=True)
class Worker:
    """What the interpreter of Spark's workers says of itself."""

    python: str
    executable: str
    versions: Mapping[str, str | None]
    dlspark: str | None
    error: str | None
    shadowed: bool
    found: bool


def check_python() -> Iterator[Finding]:
    """This interpreter."""
    version = platform.python_version()
    if sys.version_info < MINIMUM_PYTHON:
        yield fail("python", f"{sys.executable} is Python {version}", "Use Python 3.10 or later")
    else:
        yield ok("python", f"{version} ({sys.executable}), dlspark {__version__}")
    for name in _COMPARED:
        if _version(name) is None:
            yield fail("python", f"{name} is not installed here", f"pip install {name}, or install dlspark again")


def check_workers() -> Iterator[Finding]:
    """The interpreter that Spark's workers would run on: PYSPARK_PYTHON, else python3 on the PATH."""
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


def _differences(worker: Worker, where: str, use_this: str) -> Iterator[Finding]:
    if worker.python.split(".")[:2] != platform.python_version().split(".")[:2]:
        here = platform.python_version()
        yield fail("workers", f"{where} is Python {worker.python}, and this is {here}: Spark refuses that", use_this)
    for name in _COMPARED:
        if worker.versions[name] != _version(name):
            there, here = (version or "not installed" for version in (worker.versions[name], _version(name)))
            # Spark puts its own pyspark before the interpreter's, as far as its workers go.
            judge = warn if name == "pyspark" else fail
            yield judge("workers", f"{name} is {there} in {where}, and {here} here", use_this)


def _dlspark_in(worker: Worker, where: str, use_this: str) -> Iterator[Finding]:
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
    """What the interpreter says, or why it says nothing."""
    try:
        done = subprocess.run(
            [program, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    try:
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


def check_java() -> Iterator[Finding]:
    """Java, for Spark and for the sandbox's ZooKeeper."""
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


def check_spark_home() -> Iterator[Finding]:
    """A Spark of its own beside PySpark's."""
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
