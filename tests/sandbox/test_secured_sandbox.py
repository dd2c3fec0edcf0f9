"""A secured sandbox: who has a certificate of it enters, by itself and through proxies, and nobody else does.

With --rounds an open sandbox starts beside it, too, in a shell that names its identity.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from helpers.waiting import wait_until

from dlspark.core.sync.namespace import Namespace
from dlspark.errors import MetadataUnavailableError, RequestDeniedError
from dlspark.sandbox.beginning import initialise
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.security import SandboxSecurity
from dlspark.sandbox.state import SECURITY_FOLDER, SandboxState
from dlspark.serving.client.sync import Client
from dlspark.serving.security.token_issuing import SigningKey
from metadata.foundation.errors import CallerError, NoAuthError
from metadata.security.errors import IdentityError
from metadata.security.listening import is_loopback
from metadata.security.settings import VARIABLE, SecurityMode, SecuritySettings
from metadata.store import join
from metadata.zookeeper.access import OPEN
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.securing import open_session
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_read_request, encode_start_tls_request
from storage_node.protocol.schema import Status

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    directory = tmp_path_factory.mktemp("secured")
    former = os.umask(0)  # nothing is left to the user's shell
    try:
        yield from _running(directory)
    finally:
        os.umask(former)


def _running(directory: Path) -> Iterator[Sandbox]:
    with Sandbox(directory / "sandbox", nodes=3, proxies=1, cold=directory / "cold", secure=True) as running:
        yield running


def dlspark(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlspark.cli", *arguments],
        env=child_environment() | dict(environment),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_client_writes_and_reads_by_the_settings_that_it_is_told(secured: Sandbox) -> None:
    with Namespace.open(secured.uri, secured.settings) as namespace:
        namespace.create_log("direct")
        with namespace.open_log("direct") as log, log.open_writer() as writer:
            writer.write(1, b"hidden on its way").result(60)
        with namespace.open_log("direct") as log, log.open_reader() as reader:
            assert [record.payload for record in reader.read_bulk(1)] == [b"hidden on its way"]


def test_who_has_no_certificate_of_it_gets_nowhere(secured: Sandbox, tmp_path: Path) -> None:
    other = SandboxSecurity(tmp_path)
    other.prepare()
    with pytest.raises(MetadataUnavailableError, match="TLS"):
        Namespace.open(secured.uri, other.settings("operator"))


async def test_nobody_enters_in_plain(secured: Sandbox) -> None:
    """The server says so, long before the time for connecting is up: a machine that is busy is no refusal."""
    with pytest.raises(MetadataUnavailableError, match="speaks TLS at this port, and this session is without"):
        await asyncio.wait_for(ZooKeeperStore.connect(secured.zookeeper_address, connect_timeout_ms=60_000), 60)


def test_a_client_may_work_through_proxies_until_it_is_denied(
    secured: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(secured.security.client_folder))
    proxy = secured.proxies.write_addresses[0]
    with Client.connect(proxy) as client:
        client.create("served")
        with client.producer("served") as producer:
            producer.write(b"allowed")
    as_operator = {VARIABLE: str(secured.security.operator_folder)}
    denied = dlspark(
        "acl", "add", "deny", "role:client", "write", "served", "--uri", secured.uri, environment=as_operator
    )
    assert denied.returncode == 0, denied.stderr
    asked = dlspark(
        "acl", "check", "client", "write", "served", "--role", "client", "--uri", secured.uri, environment=as_operator
    )
    assert asked.returncode == 3
    assert "deny role:client write served" in asked.stdout
    with Client.connect(proxy) as client:

        def refused() -> bool:
            try:
                client.write("served", b"not any more")
            except RequestDeniedError:
                return True
            return False

        wait_until(refused)  # rules reach all proxies within 10 s
        trail = secured.directory / "write-proxy-0" / "audit.log"
        wait_until(lambda: "deny role:client write served" in trail.read_text())
        assert stat.S_IMODE(trail.stat().st_mode) & 0o077 == 0


def test_a_token_of_the_sandboxs_key_narrows_what_its_bearer_may_do(secured: Sandbox, tmp_path: Path) -> None:
    place = tmp_path / "token"
    issued = dlspark(
        "token", "issue", "--key", str(secured.security.token_key), "--for", "etl", "--role", "client",
        "--log", "by-token", "--out", str(place), environment={},
    )  # fmt: skip
    assert issued.returncode == 0, issued.stderr
    shown = {**secured.security.settings("client"), "tokenFile": str(place)}
    with Client.connect(secured.proxies.write_addresses[0], shown) as client:
        client.create("by-token")
        client.write("by-token", b"allowed")
        with pytest.raises(RequestDeniedError, match="etl may not create this log"):
            client.create("another")
    with Client.connect(secured.proxies.write_addresses[0], secured.security.settings("client")) as client:
        client.create("another")


def test_the_key_of_tokens_stays_and_is_whole_or_not_there(tmp_path: Path) -> None:
    security = SandboxSecurity(tmp_path)
    security.prepare()
    key, keys = security.token_key.read_bytes(), tmp_path / SECURITY_FOLDER / "tokens" / "keys.json"
    published = keys.read_bytes()
    assert stat.S_IMODE(security.token_key.stat().st_mode) == 0o600
    security.prepare()
    assert (security.token_key.read_bytes(), keys.read_bytes()) == (key, published)
    shutil.rmtree(keys.parent)
    begun = keys.parent.with_suffix(".new")  # of a start that was killed
    begun.mkdir()
    (begun / "key.jwk").write_bytes(b"{")
    security.prepare()
    assert SigningKey.read(security.token_key).key_id in keys.read_text()
    assert not begun.exists()


def test_commands_that_ask_proxies_show_what_the_caller_is(secured: Sandbox) -> None:
    listed = dlspark(
        "proxy", "list", "--output", "json", "--uri", secured.uri,
        environment={VARIABLE: str(secured.security.operator_folder)},
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert [proxy.get("error") for proxy in json.loads(listed.stdout)["proxies"]] == [None, None]


@pytest.fixture(scope="module")
def guest(secured: Sandbox) -> Path:
    """The identity folder of a client that is for proxies alone."""
    issued = dlspark("tls", "issue", str(secured.directory / SECURITY_FOLDER), "guest", "--role", "app", environment={})
    assert issued.returncode == 0, issued.stderr
    return secured.directory / SECURITY_FOLDER / "guest"


def test_who_is_for_proxies_alone_reads_nothing_at_storage_nodes(secured: Sandbox, guest: Path) -> None:
    """There are no rights by log at storage nodes: what one may read there is everything."""
    for port in secured.state.node_ports:
        assert status_of_a_read(port, secured.security.client_folder) == Status.ENOLEDGER
        assert status_of_a_read(port, guest) == Status.EUA


def status_of_a_read(port: int, folder: Path) -> int:
    """Return what a storage node answers to who reads an entry of a ledger that is not there."""
    context = ssl.create_default_context(cafile=folder / "authorities.pem")
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        plain.sendall(encode_start_tls_request(1))
        decode_response(answered(plain))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as under_tls:
            under_tls.sendall(encode_read_request(2, 1 << 40, 0))
            return decode_response(answered(under_tls)).status


def answered(sock: socket.socket) -> memoryview:
    with sock.makefile("rb", buffering=0) as stream:
        (length,) = struct.unpack(">i", stream.read(4) or b"")
        return memoryview(stream.read(length) or b"")


async def test_a_certificate_without_the_secret_makes_no_znode_anywhere(secured: Sandbox, guest: Path) -> None:
    """Not at the top either, where ZooKeeper's own list is open: there it could fill the server's memory until it ends,
    and the cluster with it."""
    settings = SecuritySettings(security="on", security_directory=str(guest))
    store = await open_session(secured.zookeeper_address, settings)
    try:
        for path in ("/", *await every_znode(store, "/"), "/ledgers/available", "/distributedlog"):
            with pytest.raises(NoAuthError):
                await store.create(join(path, "guest"))
            with pytest.raises(NoAuthError):
                await store.put_list(path, OPEN, -1)
        assert "ledgers" in (await store.children("/"))[0]
    finally:
        await store.close()


async def every_znode(store: ZooKeeperStore, path: str) -> list[str]:
    """Return what this session can see below `path`."""
    try:
        below = [join(path, name) for name in (await store.children(path))[0]]
    except NoAuthError:
        return []
    return [seen for one in below for seen in (one, *await every_znode(store, one))]


def test_keys_are_for_their_owner_alone_and_in_no_command_line(secured: Sandbox) -> None:
    folder = secured.security.client_folder
    assert stat.S_IMODE(os.stat(secured.directory / "security").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / "key.pem").st_mode) == 0o600
    secret = (folder / "zookeeper.secret").read_text().strip()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or another user's
        assert secret.encode() not in said


def test_all_that_it_writes_is_for_its_owner_alone_and_all_that_listens_is_for_this_machine(secured: Sandbox) -> None:
    open_to_others = [
        path
        for path in (secured.directory, *secured.directory.rglob("*"))
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []
    assert {path.name for path in secured.directory.rglob("*")} >= {
        "zoo.cfg",
        "zookeeper.log",
        "proxy.log",
        "bookie.conf",
    }
    # Not those that other tests of this process have left running.
    named = (str(secured.directory), secured.zookeeper_address)
    listening = [
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE  # one of another test's, which has nothing open
        if any(name in word for name in named for word in process.cmdline())
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 1 + 3 + 2 * 2, "ZooKeeper, nodes, and frames and gRPC of both proxies"
    assert [host for host in listening if not is_loopback(host)] == []


@pytest.mark.long
def test_an_open_one_starts_in_a_shell_that_was_put_into_a_secured_one(
    secured: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(secured.security.client_folder))
    with (
        Sandbox(tmp_path / "open", nodes=1, proxies=1) as running,
        Namespace.open(running.uri, {"security": "off"}) as namespace,
    ):
        namespace.create_log("open")
        assert namespace.logs() == ["open"]


def test_a_directory_keeps_to_it(tmp_path: Path) -> None:
    (tmp_path / "s" / "security.new" / "authority").mkdir(parents=True)  # a start was killed while it made this
    with Sandbox(tmp_path / "s", nodes=1, secure=True) as first:
        authority = (first.security.client_folder / "authorities.pem").read_bytes()
        with Namespace.open(first.uri, first.settings) as namespace:
            namespace.create_log("kept")
    with pytest.raises(CallerError, match="with security"):
        Sandbox(tmp_path / "s", nodes=1).start()
    with Sandbox(tmp_path / "s", nodes=1, secure=True) as second:
        assert (second.security.client_folder / "authorities.pem").read_bytes() == authority
        with Namespace.open(second.uri, second.settings) as namespace:
            assert namespace.logs() == ["kept"]
    kept = SandboxState.load(tmp_path / "s")
    assert kept is not None
    assert kept.secured


def test_regions_and_security_are_not_both_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="not secured"):
        Sandbox(tmp_path / "s", regions=3, secure=True)


def test_a_start_that_was_killed_while_it_made_the_authority_keeps_no_other_from_starting(tmp_path: Path) -> None:
    place = tmp_path / SECURITY_FOLDER / "authority"
    place.mkdir(parents=True)
    (place / "key.pem").write_text("half a key")
    security = SandboxSecurity(tmp_path)
    security.prepare()
    assert (security.client_folder / "certificate.pem").exists()
    (place / "register.json").unlink()
    with pytest.raises(IdentityError, match="not empty"):
        security.prepare()  # here something was issued, and is not thrown away


def test_the_identity_of_another_cluster_does_not_reach_a_plain_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert VARIABLE not in child_environment()
    assert child_environment(secured_as_here=True)[VARIABLE] == str(tmp_path / "none")
    opened: list[SecuritySettings] = []

    async def open_session(_servers: str, security: SecuritySettings) -> None:
        opened.append(security)
        raise MetadataUnavailableError("enough was seen")

    monkeypatch.setattr("metadata.zookeeper.securing.open_session", open_session)
    with pytest.raises(MetadataUnavailableError):
        asyncio.run(initialise("127.0.0.1:1"))
    assert [one.client_mode() for one in opened] == [SecurityMode.OFF]
