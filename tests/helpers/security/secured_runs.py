"""What `--secured` does: the clusters that tests start are secured ones, and their clients have an identity.

The same tests run on them. An authority is made once for each process of the tests, and everything gets what it needs
from it:

    Sandbox, WarmSandbox     secured, with identities of that authority, unless it has regions (refused by the product)
    InProcessCluster         its storage nodes speak TLS and demand certificates, where they are on real sockets
    zookeeper                the fixture: TLS and lists on its one port
    DLSPARK_SECURITY         in tests that are marked `processes` or `spark`, and what they start: the client's folder,
                             or that of the role which the marker `identity` names

Clusters in memory, with links that are no sockets, or with virtual time, stay plain: there TLS cannot be. A test that
asks for something plain on purpose is marked `plain_only`, with the reason, and skipped.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

# Every process of the tests loads this module: what only secured runs need is imported by them.
if TYPE_CHECKING:
    from dlspark.sandbox.security import SandboxSecurity
    from dlspark.serving.security.credentials import ClientCredentials
    from metadata.security.settings import SecuritySettings
    from metadata.zookeeper.secure_server import ServerSecurity

OPTION: Final = "--secured"
VARIABLE: Final = "DLSPARK_SECURITY"
DEFAULT_ROLE: Final = "client"
REAL_MARKERS: Final = ("processes", "spark")
REAL_FIXTURES: Final = ("driver_world",)
"""Storage nodes on sockets of this process, whose clients are found as tasks are: by the variable."""
NETWORKS: Final = tuple(f"127.9.{number}" for number in range(1, 9))
"""Prefixes of addresses for hosts of a test's own (`ForwardedNetwork`); certificates name these addresses."""
FIRST_HOST: Final = 10
MOST_HOSTS: Final = 20


class SecuredRun:
    """The one run of this process: `identities` is None where it is a plain one."""

    identities: SandboxSecurity | None = None
    """Whom everything in this run is."""


def is_secured() -> bool:
    """Return whether this run's clusters are secured."""
    return SecuredRun.identities is not None


def role_settings(role: str) -> Mapping[str, str]:
    """Return the settings by which a process is this role; none in a plain run."""
    return {} if SecuredRun.identities is None else SecuredRun.identities.settings(role)


def role_security(role: str) -> SecuritySettings:
    """Return as what a process is secured in this role; not at all in a plain run."""
    from metadata.security.settings import SecuritySettings

    if SecuredRun.identities is None:
        return SecuritySettings()
    return SecuritySettings(security="on", security_directory=str(SecuredRun.identities.folder(role)))


def credentials_for(_address: str) -> ClientCredentials | None:
    """Return what this process, which asks proxies over frames, shows them: its variable says it."""
    from dlspark.serving.security.credentials import client_credentials
    from metadata.security.settings import SecuritySettings

    return client_credentials(SecuritySettings())


def secured_link(link: socket.socket, host: str) -> socket.socket:
    """Return a connection that a test has made itself, by TLS where the run is a secured one."""
    from metadata.security.settings import client_identity

    identity = client_identity(role_security(DEFAULT_ROLE), {})
    return link if identity is None else identity.client_context().wrap_socket(link, server_hostname=host)


def zookeeper_security() -> ServerSecurity | None:
    """Return how a ZooKeeper server is secured; None in a plain run."""
    return None if SecuredRun.identities is None else SecuredRun.identities.zookeeper()


class SecuredRuns:
    """The plugin: registered where `--secured` is given."""

    def __init__(self) -> None:
        from dlspark.sandbox.security import SandboxSecurity
        from dlspark.sandbox.state import SECURITY_FOLDER

        self._place = Path(tempfile.mkdtemp(prefix="dlspark-secured-"))
        SecuredRun.identities = self._identities = SandboxSecurity(self._place)
        _issue(self._place / SECURITY_FOLDER)
        self._identities.prepare()
        self._patch = pytest.MonkeyPatch()
        self._secure_sandboxes()
        self._secure_clusters()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what is plain on purpose."""
        for item in items:
            plain = item.get_closest_marker("plain_only")
            if plain is not None:
                item.add_marker(pytest.mark.skip(reason=f"plain only: {plain.kwargs['reason']}"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Set the variable before any fixture of the test, or take it away: worlds in memory know no TLS."""
        real = any(item.get_closest_marker(name) is not None for name in REAL_MARKERS)
        real = real or not set(REAL_FIXTURES).isdisjoint(getattr(item, "fixturenames", ()))
        identity = item.get_closest_marker("identity")
        role = DEFAULT_ROLE if identity is None else identity.args[0]
        if real and role:
            os.environ[VARIABLE] = str(self._identities.folder(role))
        else:
            os.environ.pop(VARIABLE, None)

    def pytest_unconfigure(self) -> None:
        """Take everything back."""
        self._patch.undo()
        os.environ.pop(VARIABLE, None)
        SecuredRun.identities = None
        shutil.rmtree(self._place, ignore_errors=True)

    def _secure_sandboxes(self) -> None:
        from dlspark.sandbox import sandbox
        from dlspark.sandbox.state import SECURITY_FOLDER

        made = sandbox.Sandbox.__init__
        prepared = sandbox._secured

        @functools.wraps(made)
        def make(self: sandbox.Sandbox, *arguments: Any, **options: Any) -> None:
            made(self, *arguments, **{"secure": not options.get("regions"), **options})

        def prepare(directory: Path) -> SandboxSecurity:
            if not (directory / SECURITY_FOLDER).exists():
                shutil.copytree(self._place / SECURITY_FOLDER, directory / SECURITY_FOLDER, symlinks=True)
            return prepared(directory)

        self._patch.setattr(sandbox.Sandbox, "__init__", make)
        self._patch.setattr(sandbox, "_secured", prepare)

    def _secure_clusters(self) -> None:
        from dlspark.core.settings.settings import Settings
        from dlspark.testing import cluster
        from storage_node.settings.bookie import BookieSettings
        from storage_node.settings.client import ClientSettings

        kind = cluster.InProcessCluster
        node, mine = role_security("node"), role_security("client")
        start, connect = kind.start_node, kind.connect
        identities = self._identities

        def on_sockets(made: cluster.InProcessCluster) -> bool:
            return made._network is None

        @functools.wraps(start)
        async def start_node(made: cluster.InProcessCluster, index: int) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                if on_sockets(made):
                    patch.setattr(cluster, "BookieSettings", functools.partial(BookieSettings, security=node))
                return await start(made, index)

        @functools.wraps(connect)
        async def connect_secured(
            made: cluster.InProcessCluster, settings: Settings | None = None, *, client: ClientSettings | None = None
        ) -> Any:
            if on_sockets(made):
                settings = (settings or made._settings).with_values(identities.settings("client"))
                client = None if client is None else replace(client, security=mine)
            return await connect(made, settings, client=client)

        self._patch.setattr(kind, "start_node", start_node)
        self._patch.setattr(kind, "connect", connect_secured)


def _issue(place: Path) -> None:
    """Make the authority, and identities with more addresses than a sandbox's have."""
    from dlspark.sandbox.security import HOSTS
    from metadata.security.authority import FIRST_ROLES, SERVER_ROLES, CertificateAuthority

    hosts = [*HOSTS, *(f"{network}.{FIRST_HOST + host}" for network in NETWORKS for host in range(MOST_HOSTS))]
    CertificateAuthority.create(place)
    with CertificateAuthority.open_in(place) as authority:
        for role in FIRST_ROLES:
            authority.issue(role, [role], hosts if role in SERVER_ROLES else (), shares_secret=role != "zookeeper")
        authority.refresh_lists()
