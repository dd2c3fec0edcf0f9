"""`RollingCluster`: a ZooKeeper, four storage nodes with auto-recovery, two write proxies and a read proxy, as real
processes, each of which can be restarted with other settings of security while the others go on.

The order in which a cluster is changed is the test's; here is what one restart is, and what shows which state a server
is in.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dlspark.sandbox.beginning import initialise
from dlspark.sandbox.ports import free_ports
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.state import NAMESPACE_PATH
from helpers.fork_server import Child, ForkServer
from metadata.security.authority import FIRST_ROLES, SECRET_FILE
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.settings import VARIABLE
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.secure_server import ClientPort, ServerSecurity
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_bookie_info_request, encode_start_tls_request
from storage_node.protocol.schema import Status

HOST: Final = "127.0.0.1"
NODES: Final = 4
WRITE_PROXIES: Final = 2
READER: Final = WRITE_PROXIES
"""The read proxy's number among the proxies."""
NODE: Final = "storage_node.bookie.__main__:main"
WRITE_PROXY: Final = "dlspark.serving.write_proxy.__main__:main"
READ_PROXY: Final = "dlspark.serving.read_proxy.__main__:main"
OPERATOR: Final = "CN=operator,OU=operator"
START_S: Final = 120.0
STOP_S: Final = 120.0
SESSION_S: Final = 40
"""Sessions outlive a restart of ZooKeeper on a busy machine."""


class RollingCluster:
    """Starts open; `restart_...` take the security that the server has from then on: off, optional or on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = directory / "tls"
        ports = free_ports(1 + NODES + WRITE_PROXIES + 1, set(), HOST)
        self._held = [_hold(port) for port in ports]
        self._zookeeper = EmbeddedZooKeeper(directory / "zookeeper", port=ports.pop())
        self.node_ports = [ports.pop() for _ in range(NODES)]
        self.proxy_ports = [ports.pop() for _ in range(WRITE_PROXIES + 1)]
        self.uri = f"distributedlog://{self._zookeeper.address}{NAMESPACE_PATH}"
        self.more: dict[int, dict[str, str]] = {}
        """Further settings of a proxy, by its number, from its next start on."""
        self._nodes: dict[int, Child] = {}
        self._proxies: dict[int, Child] = {}
        self.log = directory / "processes.log"
        modules = tuple(target.partition(":")[0] for target in (NODE, WRITE_PROXY, READ_PROXY))
        self._forks = ForkServer(modules, log=self.log)

    async def begin(self) -> None:
        """Give an empty ZooKeeper its tree, and bind the namespace."""
        self._zookeeper.start()
        await initialise(self._zookeeper.address)

    def start(self, mode: str = "off") -> None:
        """Start everything else."""
        for index in range(NODES):
            self._start_node(index, mode)
        for index in range(WRITE_PROXIES + 1):
            self._start_proxy(index, mode)

    @property
    def write_addresses(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.proxy_ports[:WRITE_PROXIES])

    @property
    def read_address(self) -> str:
        return f"{HOST}:{self.proxy_ports[READER]}"

    # ------------------------------------------------------------------ commands

    def run(self, *arguments: str, role: str | None = None) -> tuple[int, str]:
        """Run a command as the holder of a folder; returns its exit status, and what it printed."""
        environment = child_environment() | ({} if role is None else {VARIABLE: str(self.folder(role))})
        done = subprocess.run(
            [sys.executable, "-m", "dlspark.cli", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    def dlspark(self, *arguments: str, role: str | None = None) -> None:
        """Run a command as the holder of a folder. Raises AssertionError where it fails."""
        status, said = self.run(*arguments, role=role)
        assert status == 0, f"dlspark {' '.join(arguments)}: {status}\n{said}"

    def folder(self, role: str) -> Path:
        return self.authority / role

    def settings(self, role: str, mode: str) -> dict[str, str]:
        """Return the settings of a process of a role; `security=off` names no folder."""
        return {} if mode == "off" else {"security": mode, "securityDirectory": str(self.folder(role))}

    # ------------------------------------------------------------------ another authority (docs/security.md)

    def prepare_authority(self, hosts: Sequence[str]) -> Path:
        """Make another authority with the same secret of ZooKeeper, and have everybody believe it beside the one in
        use; returns its folder, whose own folders believe both."""
        new = self.directory / f"{self.authority.name}-next"
        self.dlspark("tls", "init", str(new), *hosts)
        shutil.copy(self.authority / "authority" / SECRET_FILE, new / "authority" / SECRET_FILE)
        self.dlspark("tls", "renew", str(new))
        for one, other in ((self.authority, new), (new, self.authority)):
            for role in FIRST_ROLES:
                for name, added in (("authorities.pem", "certificate.pem"), ("revoked.pem", "revoked.pem")):
                    with (one / role / name).open("ab") as file:
                        file.write((other / "authority" / added).read_bytes())
        return new

    def give_out(self, new: Path) -> None:
        """Put the folders of an authority where those of the one in use are."""
        for role in FIRST_ROLES:
            link = self.authority / f".{role}.next"
            link.symlink_to(new / role)
            os.replace(link, self.authority / role)
        self.authority = new

    def forget_others(self) -> None:
        """Believe the authority in use alone."""
        for role in FIRST_ROLES:
            for name, kept in (("authorities.pem", "certificate.pem"), ("revoked.pem", "revoked.pem")):
                (self.authority / role / name).write_bytes((self.authority / "authority" / kept).read_bytes())

    # ------------------------------------------------------------------ restarts

    def restart_zookeeper(self, mode: str) -> None:
        """Stop the server in order, and start it in another state."""
        self._zookeeper.stop()
        ports = {"optional": ClientPort.BOTH, "on": ClientPort.TLS}
        self._zookeeper.security = (
            None
            if mode == "off"
            else ServerSecurity.of_folder(self.folder("zookeeper"), clients=ports[mode], operator=OPERATOR)
        )
        self._zookeeper.start()

    def restart_node(self, index: int, mode: str) -> None:
        _end(self._nodes[index])
        self._start_node(index, mode)

    def restart_proxy(self, index: int, mode: str) -> None:
        _end(self._proxies[index])
        self._start_proxy(index, mode)

    def _start_node(self, index: int, mode: str) -> None:
        folder = self.directory / f"node-{index}"
        folder.mkdir(exist_ok=True)
        settings = {
            "bookiePort": self.node_ports[index],
            "listeningAddress": HOST,
            "advertisedAddress": HOST,
            "journalDirectories": folder / "journal",
            "ledgerDirectories": folder / "ledgers",
            "zkServers": self._zookeeper.address,
            "zkLedgersRootPath": "/ledgers",
            "zkTimeout": SESSION_S * 1000,
            "autoRecoveryDaemonEnabled": "true",
            "auditLog": folder / "audit.log",
            **self.settings("node", mode),
        }
        conf = folder / "bookie.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        child = self._forks.spawn(NODE, {"arguments": ["--conf", str(conf)]})
        self._nodes[index] = self._served(child, f"node {index}")

    def _start_proxy(self, index: int, mode: str) -> None:
        port = self.proxy_ports[index]
        audit = {"auditLog": self.directory / f"proxy-{index}-audit.log"}
        if index == READER:
            target = READ_PROXY
            values = {"listenHost": HOST, "advertisedHost": HOST, "port": port, "grpcPort": -1, "statsPort": -1}
        else:
            target = WRITE_PROXY
            values = {
                "server_host": HOST,
                "server_advertised_host": HOST,
                "server_port": port,
                "server_grpc_port": -1,
                "server_stats_port": -1,
                "server_shard": index,
                "zkSessionTimeoutSeconds": SESSION_S,
            }
        given = {**values, **audit, **self.settings("proxy", mode), **self.more.get(index, {})}
        arguments = [f"--uri={self.uri}", *(f"--set={key}={value}" for key, value in given.items())]
        child = self._forks.spawn(target, {"arguments": arguments})
        self._proxies[index] = self._served(child, f"proxy {index}")

    def _served(self, child: Child, name: str) -> Child:
        line = child.lines.get(timeout=START_S)
        assert line is not None, f"{name} does not serve: {self.log.read_text()[-3_000:]}"
        return child

    def close(self) -> None:
        self._forks.close()
        self._zookeeper.kill()
        for held in self._held:
            held.close()

    # ------------------------------------------------------------------ which state a server is in

    def certificates(self) -> dict[str, bytes]:
        """Return the certificate that each server shows, by the server's name."""
        files = TlsFiles.of_folder(str(self.folder("operator")))
        context = TlsIdentity(files).client_context()
        servers = {"zookeeper": self._zookeeper.port}
        servers |= {f"proxy {index}": port for index, port in enumerate(self.proxy_ports)}
        shown = {name: _shown(port, context, asked=False) for name, port in servers.items()}
        return shown | {
            f"node {index}": _shown(port, context, asked=True) for index, port in enumerate(self.node_ports)
        }

    def revoked_at(self, name: str) -> set[str]:
        """Return which kinds of server have refused a principal because it was revoked, by their audit trails."""
        kinds = {"proxy": "proxy-*-audit.log", "node": "node-*/audit.log"}
        return {
            kind
            for kind, pattern in kinds.items()
            for trail in self.directory.glob(pattern)
            for line in map(json.loads, trail.read_text().rpartition("\n")[0].splitlines())
            if line["result"] == "refused" and line["principal"] == name and "has revoked it" in line["reason"]
        }

    def plain_heard(self) -> dict[int, bool]:
        """Return whether each storage node answers a request in plain, by its number."""
        return {index: _heard(port) for index, port in enumerate(self.node_ports)}


def _hold(port: int) -> socket.socket:
    """Keep a port for the servers that listen there one after the other: while none does, it is not free.

    A socket that is bound and does not listen keeps out whoever looks for a free port, as other tests' clusters do, and
    lets in servers: they set SO_REUSEADDR, as it does.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, port))
    return held


def _end(child: Child) -> None:
    child.signal(signal.SIGTERM)
    child.wait(STOP_S)


def _shown(port: int, context: ssl.SSLContext, *, asked: bool) -> bytes:
    """Return the certificate at a port, DER; `asked`: where TLS begins with a request for it."""
    with socket.create_connection((HOST, port), 30) as connection:
        if asked:
            connection.sendall(encode_start_tls_request(1))
            answer = decode_response(memoryview(_frame(connection)))
            assert getattr(answer, "status", Status.EOK) is Status.EOK, answer
        with context.wrap_socket(connection, server_hostname=HOST) as secured:
            certificate = secured.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def _heard(port: int) -> bool:
    with socket.create_connection((HOST, port), 30) as connection:
        connection.sendall(encode_bookie_info_request(1))
        frame = _frame(connection)
    return bool(frame) and getattr(decode_response(memoryview(frame)), "status", Status.EOK) is Status.EOK


def _frame(connection: socket.socket) -> bytes:
    """Return the next frame without its length; empty at the end of the connection."""
    length = _exactly(connection, 4)
    return _exactly(connection, int.from_bytes(length, "big")) if length else b""


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data
