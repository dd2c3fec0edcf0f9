"""Builds both jars from the sources beside this file, the SQL catalog's and the one for ZooKeeper servers:
`python jvm-shim/build.py` (`make shim`).

Needs `javac` (JDK 17 or newer) and an installed PySpark, whose own jars are all that the sources are compiled against.
A jar is the same to the byte wherever it is built by the same major version of javac: order, times and modes of its
members are fixed. Both are committed, so that installing dlspark needs no JDK; a test compares them with the sources.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import re
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Jar:
    """What is built from what, and for which Java at the oldest?"""

    title: str
    sources: Path
    path: Path
    release: int


CATALOG = Jar(
    "dlspark SQL catalog",
    HERE / "src",
    HERE.parent / "dlspark" / "spark" / "catalog" / "dlspark-sql.jar",
    17,  # which the supported Sparks need
)
ZOOKEEPER = Jar(
    "dlspark ZooKeeper authentication provider",
    HERE / "zookeeper",
    HERE.parent / "metadata" / "zookeeper" / "dlspark-zookeeper.jar",
    11,  # on which servers of one's own may still run
)
JARS = (CATALOG, ZOOKEEPER)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o644 << 16


def source_files(jar: Jar) -> list[Path]:
    """Everything that goes into the jar, compiled or as it is; sorted."""
    return sorted(path for path in jar.sources.rglob("*") if path.is_file())


def source_digest(jar: Jar) -> str:
    """SHA-256 over names and contents of the sources."""
    digest = hashlib.sha256()
    for path in source_files(jar):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(jar.sources).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def javac_version() -> int:
    """Major version of the `javac` on the PATH. Raises FileNotFoundError without one."""
    said = subprocess.run(["javac", "-version"], check=True, capture_output=True, text=True)
    found = re.search(r"javac (\d+)", said.stdout + said.stderr)
    if found is None:
        raise RuntimeError(f"javac -version said {said.stdout + said.stderr!r}")
    return int(found.group(1))


def pyspark_jars() -> Path:
    """Return the directory of the installed PySpark's jars."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise RuntimeError("PySpark is not installed: its jars are what the sources are compiled against")
    return Path(found.origin).parent / "jars"


def build(jar: Jar, output: Path, jars: Path | None = None) -> None:
    """Compile a jar's sources against `jars` (the installed PySpark's) and write it to `output`."""
    files = source_files(jar)
    with tempfile.TemporaryDirectory() as classes:
        java = [str(path) for path in files if path.suffix == ".java"]
        # Spark's jars name others in their manifests that are not there: not the sources' affair.
        lint = "-Xlint:all,-path,-classfile,-processing"
        place = ["--release", str(jar.release), "-cp", f"{jars or pyspark_jars()}/*", "-d", classes]
        subprocess.run(["javac", "-g:source,lines", "-encoding", "UTF-8", lint, "-Werror", *place, *java], check=True)
        members = {path.relative_to(classes).as_posix(): path for path in Path(classes).rglob("*.class")}
        members |= {path.relative_to(jar.sources).as_posix(): path for path in files if path.suffix != ".java"}
        _write(jar, output, {name: path.read_bytes() for name, path in members.items()})


def manifest_of(path: Path) -> dict[str, str]:
    """Return the main attributes of a jar's manifest."""
    with zipfile.ZipFile(path) as opened:
        lines = opened.read("META-INF/MANIFEST.MF").decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def _write(jar: Jar, output: Path, members: dict[str, bytes]) -> None:
    # No line may be longer than 72 bytes, so the digest is cut in two.
    digest = source_digest(jar)
    manifest = (
        "Manifest-Version: 1.0\r\n"
        f"Implementation-Title: {jar.title}\r\n"
        f"Build-Jdk-Spec: {javac_version()}\r\n"
        f"Source-Digest-1: {digest[:32]}\r\n"
        f"Source-Digest-2: {digest[32:]}\r\n\r\n"
    )
    ordered = {"META-INF/MANIFEST.MF": manifest.encode(), **dict(sorted(members.items()))}
    with zipfile.ZipFile(output, "w") as written:
        for name, content in ordered.items():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = _FILE_MODE
            # Stored: what deflate gives depends on the zlib that did it.
            info.compress_type = zipfile.ZIP_STORED
            written.writestr(info, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the folder to write them into, instead of their own places")
    arguments = parser.parse_args()
    for jar in JARS:
        output = jar.path if arguments.output is None else arguments.output / jar.path.name
        build(jar, output)
        print(f"{output}: {output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
