"""The security of a sandbox: an authority of its own, and the identity folders of what runs in it.

They lie in its folder, `security/`, as `dlspark tls init` makes them, and stay across restarts; certificates that end
soon are renewed at a start. What a program needs to enter is `client_folder`, by the variable `DLSPARK_SECURITY` or the
settings `security=on` and `securityDirectory`; an operator's is `operator_folder`.

Its proxies take tokens as well: `security/tokens/key.jwk` makes them (`dlspark token issue --key`), and proxies have
the public half. Who shows one shows a certificate of the sandbox beside it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from dlspark.sandbox.processes import START_TIMEOUT_S, SandboxError, child_environment
from dlspark.sandbox.state import LOCAL_HOST, SECURITY_FOLDER
from metadata.foundation.private_files import make_private_directory
from metadata.security.authority import (
    AUTHORITY_FOLDER,
    FIRST_ROLES,
    REGISTER_FILE,
    SERVER_ROLES,
    CertificateAuthority,
)
from metadata.security.settings import VARIABLE, SecuritySettings
from metadata.zookeeper.secure_server import ServerSecurity

HOSTS: Final = ("localhost", LOCAL_HOST)
_TOKENS: Final = "tokens"
_RENEWED_BEFORE: Final = timedelta(days=30)
_AT_NODES: Final = ("node", "client", "proxy", "operator")
"""Roles whose holders may speak to storage nodes."""
_OPERATOR: Final = "CN=operator,OU=operator"
"""The subject of the operator's certificate, as ZooKeeper compares it."""


class SandboxSecurity:
    """Which identities has a sandbox? One for each role."""

    def __init__(self, directory: Path) -> None:
        """Look at nothing yet; `directory` is the sandbox's."""
        self._place = directory / SECURITY_FOLDER

    def prepare(self) -> None:
        """Make the authority, the folders and the key of tokens, or renew what ends soon. Raises IdentityError;
        SandboxError where the key cannot be made."""
        if not (self._place / AUTHORITY_FOLDER / REGISTER_FILE).exists():
            if self._place.is_dir() and {one.name for one in self._place.iterdir()} == {AUTHORITY_FOLDER}:
                # A start was killed while it made one. It has issued nothing: its register is written before.
                shutil.rmtree(self._place)
            CertificateAuthority.create(self._place)
        soon = datetime.now(timezone.utc) + _RENEWED_BEFORE
        with CertificateAuthority.open_in(self._place) as authority:
            known = {one.name: one for one in authority.names()}
            for role in FIRST_ROLES:  # some are missing where an earlier start was killed in their midst
                if role not in known:
                    hosts = HOSTS if role in SERVER_ROLES else ()
                    authority.issue(role, [role], hosts, shares_secret=role != "zookeeper")
                elif known[role].certificates[-1].ends < soon and not known[role].is_revoked:
                    authority.renew(role)
            authority.refresh_lists()
        self._make_token_key()

    def _make_token_key(self) -> None:
        """Make the key that signs tokens and its public half, where they are not there: whole, or not at all."""
        if self._tokens.is_dir():
            return
        begun = self._tokens.with_suffix(".new")
        shutil.rmtree(begun, ignore_errors=True)  # of a start that was killed
        make_private_directory(begun)
        key, keys = (begun / one.name for one in (self.token_key, self._token_keys))
        # By the command, as anybody makes one: what verifies tokens belongs to proxies, which run as processes, too.
        command = [sys.executable, "-m", "dlspark.cli", "token", "key", str(key), "--keys", str(keys)]
        try:
            made = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=child_environment(),
                timeout=START_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise SandboxError(
                f"the key of the sandbox's tokens was not made within {START_TIMEOUT_S:.0f} s"
            ) from error
        if made.returncode != 0:
            raise SandboxError(f"the key of the sandbox's tokens could not be made: {made.stderr.strip()}")
        keys.chmod(0o600)  # public, but all of a sandbox is for who started it
        begun.replace(self._tokens)

    @property
    def token_key(self) -> Path:
        """The file that makes tokens which the proxies take."""
        return self._tokens / "key.jwk"

    @property
    def _tokens(self) -> Path:
        return self._place / _TOKENS

    @property
    def _token_keys(self) -> Path:
        return self._tokens / "keys.json"

    def folder(self, role: str) -> Path:
        """Return the identity folder of a role."""
        return self._place / role

    @property
    def client_folder(self) -> Path:
        """What a program that reads and writes needs."""
        return self.folder("client")

    @property
    def operator_folder(self) -> Path:
        """What a person needs who may do everything."""
        return self.folder("operator")

    def settings(self, role: str) -> dict[str, str]:
        """Return the settings of a process in a role, by their keys, which are the same for all."""
        return {"security": "on", "securityDirectory": str(self.folder(role))}

    def node_settings(self) -> dict[str, str]:
        """Return the settings of storage nodes: whoever has a role of another name (`dlspark tls issue --role app`) is
        for proxies alone, which keep to the rules of access; a storage node would show it every log."""
        return {**self.settings("node"), "authorizedRoles": ",".join(_AT_NODES)}

    def proxy_settings(self) -> dict[str, str]:
        """Return the settings of a proxy, by their keys."""
        return {**self.settings("proxy"), "tokenKeys": str(self._token_keys)}

    def environment(self, role: str) -> Mapping[str, str]:
        """Return the variables of a process in a role that is a client only."""
        return {VARIABLE: str(self.folder(role))}

    def zookeeper(self) -> ServerSecurity:
        """Return how the ZooKeeper server is secured; the operator is its super user."""
        return ServerSecurity.of_folder(self.folder("zookeeper"), operator=_OPERATOR)

    def operator(self) -> SecuritySettings:
        """Return as whom metadata are initialised."""
        return SecuritySettings(security="on", security_directory=str(self.operator_folder))
