"""Servers that hold objects, as processes of the test session: S3 by moto (a strict mock) and by SeaweedFS.

Each is started once, when the first test asks, on free ports, with its data in the session's temporary folder; it ends
with the session, and with the process that started it, however that ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dlspark.testing.java_process import free_port
from helpers.waiting import wait_until
from metadata.foundation.processes import ending_with_parent

HOST: Final = "127.0.0.1"
BUCKET: Final = "cold"
REGION: Final = "us-east-1"
ACCESS_KEY: Final = "tests-access-key"
SECRET_KEY: Final = "tests-secret-key"
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_EC2_METADATA_DISABLED": "true"}
)
"""What a process needs in its environment to use them."""


class ServerProcess:
    """A server as a child of this process."""

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

    def client(self) -> Any:
        """Return a client of botocore's own, for what only tests do."""
        return s3_client(self.endpoint)


@cache
def s3_client(endpoint: str) -> Any:
    """Return a client of botocore's for an S3 server of the tests."""
    import botocore.session
    from botocore.config import Config

    return botocore.session.get_session().create_client(
        "s3",
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


def start_seaweed(folder: Path) -> S3Server:
    """Start SeaweedFS: master, volumes, filer and S3 in one process, with a bucket."""
    keys = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [keys]}))
    ports = {
        name: free_port()
        for name in ("master.port", "volume.port", "filer.port", "s3.port")
        for name in (name, f"{name}.grpc")
    }
    settings = {
        **ports,
        "dir": folder,
        "ip": HOST,
        "ip.bind": HOST,
        "s3.config": folder / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "volume.max": 4,
        "volume.minFreeSpace": 1,
        "master.volumeSizeLimitMB": 256,
        "master.telemetry": "false",
        "master.electionTimeout": "1s",
    }
    program = str(Path(sys.executable).with_name("weed"))
    flags = [f"-{name}={value}" for name, value in settings.items()]
    process = ServerProcess([program, "server", "-filer", "-s3", *flags], folder, {"GOMEMLIMIT": "256MiB"})
    return _with_bucket(process, f"http://{HOST}:{ports['s3.port']}")


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
