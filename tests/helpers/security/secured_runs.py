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
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

# Every process of the tests loads this module: what only secured runs need is imported by them.
if TYPE_CHECKING:
    from dlspark.sandbox.security import SandboxSecurity
    from metadata.zookeeper.secure_server import ServerSecurity

OPTION: Final = "--secured"
VARIABLE: Final = "DLSPARK_SECURITY"
DEFAULT_ROLE: Final = "client"
REAL_MARKERS: Final = ("processes", "spark")


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


def zookeeper_security() -> ServerSecurity | None:
    """Return how a ZooKeeper server is secured; None in a plain run."""
    return None if SecuredRun.identities is None else SecuredRun.identities.zookeeper()


class SecuredRuns:
    """The plugin: registered where `--secured` is given."""

    def __init__(self) -> None:
        from dlspark.sandbox.security import SandboxSecurity

        self._place = Path(tempfile.mkdtemp(prefix="dlspark-secured-"))
        SecuredRun.identities = self._identities = SandboxSecurity(self._place)
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
        from metadata.security.settings import SecuritySettings
        from storage_node.settings.client import ClientSettings

        kind = cluster.InProcessCluster
        node = SecuritySettings(security="on", security_directory=str(self._identities.folder("node")))
        mine = SecuritySettings(security="on", security_directory=str(self._identities.client_folder))
        nodes_settings = cluster.BookieSettings
        start, connect = kind.start_node, kind.connect
        identities = self._identities

        def on_sockets(made: cluster.InProcessCluster) -> bool:
            return made._network is None

        @functools.wraps(start)
        async def start_node(made: cluster.InProcessCluster, index: int) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                if on_sockets(made):
                    patch.setattr(cluster, "BookieSettings", functools.partial(nodes_settings, security=node))
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
