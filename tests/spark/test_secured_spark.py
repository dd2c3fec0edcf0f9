"""Queries on a secured cluster: in local mode, on a standalone cluster, through Connect and through proxies; and
nothing secret is left behind by them, wherever Spark or the cluster writes something."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates
from helpers.paths import ROOT, SPARK_PROGRAMS, TESTS
from helpers.quick_start import plain_environment
from helpers.rounds import with_rounds
from helpers.security.java_stores import java_trust_store
from helpers.security.searching import (
    TOKEN_HEADER,
    empty_places,
    found_in,
    secret_of_signing_key,
    secrets_of_folders,
)
from helpers.security.secret_run import CommandLines
from helpers.spark.read_proxy_processes import ReadProxyProcesses
from helpers.spark.rounds_world import StandaloneCluster

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox
from dlspark.serving.process.membership import READ_PROXIES, WRITE_PROXIES, read_members
from dlspark.serving.security.token_issuing import SigningKey
from metadata.security.settings import VARIABLE
from metadata.store import join

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(900)]

PROGRAM = SPARK_PROGRAMS / "secured_app.py"
THROUGH_PROXIES = ["batch", "stream", "explain"]
DIRECT = [*THROUGH_PROXIES, "segments", "staged", "catalog"]
LEFT = ("argv", "environ", "output", "checkpoint/offsets/0", "checkpoint/commits/0", "shown", "progress")
LEFT_BY_CLASSIC = ("events/**/events_1_*", "pages/rest-environment", "pages/rest-sql", "pages/SQL-execution-*")
"""What a run leaves where Spark is in the program's own process, beside the rest: its event log, and pages."""
LEFT_BY_CLUSTER = ("metrics-*", "sandbox/node-*/*.log", "sandbox/write-proxy-*/*.log", "read-proxy/*.log")
IDENTITIES = ("sandbox/security/", "sandbox/zookeeper/tls/", "token-key.jwk", "stores/")
"""Where secrets are at home; ZooKeeper's server reads its key from a file of its own."""


STORE_PASSWORDS = {"key store": "password-of-key-store-93aa", "trust store": "password-of-trust-store-51de"}


class SecuredWorld:
    """A secured sandbox with a write proxy, a read proxy that takes tokens, and a key that makes them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sandbox = Sandbox(place / "sandbox", nodes=3, proxies=1, secure=True)
        self.sandbox.start()
        self.key_file = place / "token-key.jwk"
        key = SigningKey.make("ES256")
        key.write(self.key_file)
        key.publish(place / "token-keys.json")
        security = self.sandbox.security
        tokens = {"tokenKeys": place / "token-keys.json", "tlsClientAuthentication": "false"}
        (place / "read-proxy").mkdir()
        self.reading = ReadProxyProcesses(
            self.sandbox.uri, place / "read-proxy", 1, {**security.settings("proxy"), **tokens}
        )
        self.client = security.client_folder
        self.executor = place / "executor"
        """What an executor needs whose tasks have tokens: whom to believe, and nothing to prove."""
        self.executor.mkdir()
        shutil.copy(self.client / "authorities.pem", self.executor)
        self.secrets = secrets_of_folders(place / "sandbox" / "security")
        self.secrets |= {"signing key": secret_of_signing_key(self.key_file), "a token": TOKEN_HEADER}
        self.secrets |= {"a password by value": "hunter-by-value"}
        self.stores = make_stores(self.client, place / "stores")
        self.secrets |= STORE_PASSWORDS

    @property
    def proxies(self) -> dict[str, dict[str, str]]:
        """Options of queries through proxies."""
        return {
            "source": {"proxy": self.reading.option},
            "sink": {"proxy": ",".join(self.sandbox.proxies.write_addresses)},
        }

    def close(self) -> None:
        self.reading.close()
        self.sandbox.stop()

    def run(self, directory: Path, name: str, config: dict[str, Any], **environment: str) -> dict[str, object]:
        """Run the program and search for secrets in all that was written, by whom ever; what it found."""
        directory.mkdir(exist_ok=True)
        with Namespace.open(self.sandbox.uri, self.sandbox.settings) as namespace:
            for what in ("rows", "copy", "segments", "staged"):
                namespace.create_log(f"{what}-{name}")
        made = {"uri": self.sandbox.uri, "name": name, "directory": str(directory), **config}
        (directory / "config").write_text(json.dumps(made))
        variables = plain_environment() | {"PYTHONPATH": str(TESTS)} | environment
        with CommandLines(directory / "argv", variables):
            done = subprocess.run(
                [sys.executable, str(PROGRAM), str(directory / "config")],
                cwd=ROOT,
                capture_output=True,
                text=True,
                env=variables,
                timeout=500,
                check=False,
            )
        (directory / "output").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr[-6000:]
        self.save_metrics()
        left = [*LEFT, *(() if "remote" in config else LEFT_BY_CLASSIC)]
        assert empty_places(directory, left) == []
        assert empty_places(self.place, LEFT_BY_CLUSTER) == []
        assert len(self.secrets) > 8
        assert found_in(directory, self.secrets) == []
        # The folders, logs and metadata of the cluster: ZooKeeper's, with `/ledgers`, and of nodes and proxies.
        assert found_in(self.place, self.secrets, IDENTITIES) == []
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        files = sum(path.is_file() for place in (directory, self.place) for path in place.rglob("*"))
        print(f"{name}: {found}; {len(self.secrets)} secrets are in none of {files} files")
        return found

    def save_metrics(self) -> None:
        """Save what proxies show of themselves on their pages."""
        for address in asyncio.run(self._pages()):
            with urlopen(f"http://{address}/metrics", timeout=60) as answer:
                (self.place / f"metrics-{address}").write_bytes(answer.read())

    async def _pages(self) -> list[str]:
        async with await AsyncNamespace.open(self.sandbox.uri, self.sandbox.settings) as namespace:
            members = [
                member
                for folder in (READ_PROXIES, WRITE_PROXIES)
                for member in await read_members(namespace.store, join(namespace.uri.path, folder))
            ]
        return [str(member.stats) for member in members if member.stats is not None]


def make_stores(client: Path, folder: Path) -> dict[str, str]:
    """Make stores of Java of an identity folder; returns the options that name them."""
    folder.mkdir()
    key = load_pem_private_key((client / "key.pem").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    own, *above = load_pem_x509_certificates((client / "certificate.pem").read_bytes())
    password = STORE_PASSWORDS["key store"]
    hidden = BestAvailableEncryption(password.encode())
    (folder / "key.p12").write_bytes(serialize_key_and_certificates(b"client", key, own, above, hidden))
    believed = [
        one.public_bytes(Encoding.DER) for one in load_pem_x509_certificates((client / "authorities.pem").read_bytes())
    ]
    (folder / "trust.jks").write_bytes(java_trust_store(believed, STORE_PASSWORDS["trust store"]))
    for name in ("key.p12", "password"):
        (folder / name).touch(mode=0o600)
        (folder / name).chmod(0o600)
    (folder / "password").write_text(password)
    return {
        "tls.keyStore": str(folder / "key.p12"),
        "tls.keyStorePassword": f"file:{folder / 'password'}",
        "tls.trustStore": str(folder / "trust.jks"),
        "tls.trustStorePassword": "env:TRUST_PASSWORD",
        "bkc.zkAclSecretPath": str(client / "zookeeper.secret"),
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredWorld]:
    made = SecuredWorld(tmp_path_factory.mktemp("secured"))
    yield made
    made.close()


def test_a_batch_and_a_stream_through_proxies_with_tokens(world: SecuredWorld, tmp_path: Path) -> None:
    options = {"tls.directory": str(world.client)}
    proxies = world.proxies
    proxies["source"]["tokenKeyFile"] = str(world.key_file)
    run = tmp_path / "run"
    config = {"master": "local[2]", "steps": THROUGH_PROXIES, "options": options, **proxies}
    assert world.run(run, "tokens", config) == dict.fromkeys(THROUGH_PROXIES, True)
    # Where they are at home, they are found: the search sees what there is to see.
    assert any(one.startswith("signing key") for one in found_in(world.place, world.secrets))


@pytest.mark.parametrize("by", with_rounds("options", "stores", "variable"))
def test_everything_in_local_mode(world: SecuredWorld, tmp_path: Path, by: str) -> None:
    given = {"options": {"tls.directory": str(world.client)}, "stores": world.stores, "variable": {}}[by]
    confs = {f"spark.distributedlog.{name}": value for name, value in given.items()}
    environment = {VARIABLE: str(world.client)} if by == "variable" else {}
    environment |= {"TRUST_PASSWORD": STORE_PASSWORDS["trust store"]} if by == "stores" else {}
    config = {"master": "local[2]", "steps": DIRECT, "confs": confs}
    assert world.run(tmp_path / "run", f"local-{by}", config, **environment) == dict.fromkeys(DIRECT, True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    made = StandaloneCluster(tmp_path_factory.mktemp("standalone"))
    yield made
    made.stop()


def standalone(executors: Path) -> dict[str, str]:
    """The confs of a session with one executor on each of two workers, which have an identity folder of their own."""
    return {
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        f"spark.executorEnv.{VARIABLE}": str(executors),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }


@pytest.mark.long
def test_everything_on_two_workers(world: SecuredWorld, cluster: StandaloneCluster, tmp_path: Path) -> None:
    config = {"master": cluster.master, "steps": DIRECT, "confs": standalone(world.client)}
    found = world.run(tmp_path / "run", "workers", config, **{VARIABLE: str(world.client)})
    assert found == dict.fromkeys(DIRECT, True)
    assert found_in(cluster.place, world.secrets) == []


@pytest.mark.long
def test_two_workers_that_have_nothing_but_tokens(
    world: SecuredWorld, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Their tasks could reach neither ZooKeeper nor storage nodes: the driver alone has a certificate, and the key."""
    confs = standalone(world.executor)
    config = {"master": cluster.master, "steps": THROUGH_PROXIES, "confs": confs, **world.proxies}
    variables = {VARIABLE: str(world.client), "DLSPARK_TOKEN_KEY_FILE": str(world.key_file)}
    assert world.run(tmp_path / "run", "bare", config, **variables) == dict.fromkeys(THROUGH_PROXIES, True)
    assert found_in(cluster.place, world.secrets) == []


@pytest.mark.parametrize("through", with_rounds("nodes", "proxies"))
def test_a_client_of_spark_connect(world: SecuredWorld, tmp_path: Path, through: str) -> None:
    steps = DIRECT if through == "nodes" else THROUGH_PROXIES
    more = {} if through == "nodes" else world.proxies
    config = {"remote": "local[2]", "steps": steps, **more}
    variables = {VARIABLE: str(world.client), "DLSPARK_TOKEN_KEY_FILE": str(world.key_file)}
    assert world.run(tmp_path / "run", f"connect-{through}", config, **variables) == dict.fromkeys(steps, True)
