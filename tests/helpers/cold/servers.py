"""Servers that hold objects, as processes of the test session: S3 by moto (a strict mock) and SeaweedFS, HDFS.

Each is started once, when the first test asks, on free ports, with its data in the session's temporary folder; it ends
with the session, and with the process that started it, however that ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dlspark.testing.java_process import OutOfReachError, class_path_of, free_port
from helpers.jvm_flags import java_flags
from helpers.waiting import wait_until
from metadata.foundation.processes import ending_with_parent

HOST: Final = "127.0.0.1"
BUCKET: Final = "cold"
LAKE: Final = "lake"
REGION: Final = "us-east-1"
ACCESS_KEY: Final = "tests-access-key"
SECRET_KEY: Final = "tests-secret-key"
START_S: Final = 240
"""A JVM that first compiles its program, beside everything else: a minute was too short on two busy cores."""
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_EC2_METADATA_DISABLED": "true"}
)
"""What a process needs in its environment to use them."""


class ServerProcess:
    """A server as a child of this process. What it prints is its log."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "server.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, **(environment or {})},
            )

    def wait_for_http(self, url: str) -> None:
        """Wait until something answers there, whatever it says. Raises AssertionError where the process has ended."""

        def answers() -> bool:
            assert self._process.poll() is None, (
                f"the server has ended: {self.log.read_text('utf-8', 'replace')[-2000:]}"
            )
            try:
                urllib.request.urlopen(url, timeout=5).close()
            except urllib.error.HTTPError as answer:
                answer.close()
            except OSError:
                return False
            return True

        wait_until(answers, lambda: f"{url}: {self.last_lines()}", every_s=0.1)

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Wait until a line of its log begins like this; return it. Raises AssertionError where it has ended."""
        found: list[re.Match[str]] = []

        def printed() -> bool:
            assert self._process.poll() is None, f"the server has ended: {self.last_lines()}"
            match = re.search(f"^{pattern}$", self.log.read_text("utf-8", "replace"), re.MULTILINE)
            if match is not None:
                found.append(match)
            return match is not None

        wait_until(printed, self.last_lines, patience_s=START_S, every_s=0.1)
        return found[0]

    def last_lines(self) -> str:
        """Return the end of its log."""
        return self.log.read_text("utf-8", "replace")[-2000:]

    def stop(self) -> None:
        """End it, and wait until it has. It keeps nothing that would be worth an orderly end."""
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class S3Server:
    """A server with an empty bucket."""

    process: ServerProcess
    endpoint: str
    catalog: str = ""
    """The address of its Iceberg REST catalog, whose tables lie in the bucket `LAKE`; empty without one."""

    def client(self) -> Any:
        """Return a client of botocore's own, for what only tests do."""
        return s3_client(self.endpoint)


@cache
def s3_client(endpoint: str) -> Any:
    """Return a client of botocore's for an S3 server of the tests."""
    return _aws_client("s3", endpoint)


def _aws_client(service: str, endpoint: str) -> Any:
    import botocore.session
    from botocore.config import Config

    return botocore.session.get_session().create_client(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(s3={"addressing_style": "path"}),
    )


def start_moto(folder: Path) -> S3Server:
    """Start moto's server, with a bucket."""
    port = free_port()
    program = str(Path(sys.executable).with_name("moto_server"))
    process = ServerProcess([sys.executable, program, "-H", HOST, "-p", str(port)], folder)
    return _with_bucket(process, f"http://{HOST}:{port}")


def start_seaweed(folder: Path, *, catalog: bool = False) -> S3Server:
    """Start SeaweedFS: master, volumes, filer and S3 in one process, with a bucket; `catalog`: with an Iceberg REST
    catalog and its own bucket as well."""
    keys = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [keys]}))
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    drawn: set[int] = set()
    while len(drawn) <= len(names):
        drawn.add(free_port())
    catalog_port, *others = drawn
    ports = dict(zip(names, others, strict=True))
    settings = {
        **ports,
        "dir": folder,
        "ip": HOST,
        "ip.bind": HOST,
        "s3.config": folder / "s3.json",
        "s3.port.iceberg": catalog_port if catalog else 0,
        "s3.port.lance": 0,
        "volume.max": 16 if catalog else 4,  # each bucket takes seven
        "volume.minFreeSpace": 1,
        "master.volumeSizeLimitMB": 256,
        "master.telemetry": "false",
        "master.electionTimeout": "1s",
    }
    program = str(Path(sys.executable).with_name("weed"))
    flags = [f"-{name}={value}" for name, value in settings.items()]
    process = ServerProcess([program, "server", "-filer", "-s3", *flags], folder, {"GOMEMLIMIT": "256MiB"})
    server = _with_bucket(process, f"http://{HOST}:{ports['s3.port']}")
    if not catalog:
        return server
    try:
        process.wait_for_http(f"http://{HOST}:{catalog_port}/v1/config")
        _aws_client("s3tables", server.endpoint).create_table_bucket(name=LAKE)
    except BaseException:
        process.stop()
        raise
    return replace(server, catalog=f"http://{HOST}:{catalog_port}")


def _with_bucket(process: ServerProcess, endpoint: str) -> S3Server:
    """Make the bucket, once the server can hold an object in it."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        process.wait_for_http(endpoint)
        client = s3_client(endpoint)

        def holds() -> bool:
            try:
                client.create_bucket(Bucket=BUCKET)
            except client.exceptions.BucketAlreadyOwnedByYou:
                pass
            except (BotoCoreError, ClientError):
                return False
            try:
                client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
                client.delete_object(Bucket=BUCKET, Key="ready")
            except (BotoCoreError, ClientError):
                return False
            return True

        wait_until(holds, f"a bucket at {endpoint}", every_s=0.1)
    except BaseException:
        process.stop()
        raise
    return S3Server(process, endpoint)


@dataclass(frozen=True)
class HdfsServer:
    """A name node and a data node in one process.

    Args:
        root: the address of its file system.
        endpoint: where its name node serves WebHDFS.
        data_node: where its data node shows what it counts.
    """

    process: ServerProcess
    root: str
    endpoint: str
    data_node: str


def start_hdfs(folder: Path) -> HdfsServer:
    """Start HDFS's mini cluster, whose jars Maven fetches. Raises OutOfReachError."""
    here = Path(__file__).parent / "hdfs"
    jars = class_path_of(here / "pom.xml")
    java = shutil.which("java")
    if java is None:
        raise OutOfReachError("java is not installed")
    command = [java, *java_flags(192), "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", jars]
    process = ServerProcess([*command, str(here / "MiniHdfs.java"), "data"], folder)
    try:
        ports = process.wait_for_line(r"ready (\d+) (\d+) (\d+)")
    except BaseException:
        process.stop()
        raise
    address = f"http://{HOST}:"
    return HdfsServer(process, f"hdfs://{HOST}:{ports[1]}", f"{address}{ports[2]}", f"{address}{ports[3]}")
