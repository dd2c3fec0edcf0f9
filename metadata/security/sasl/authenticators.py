"""SASL as a node's and a client's plug-in of AUTH: which users, from which file, by which machine.

The files are read anew when they change, so users come, change their passwords and go without a restart: who comes is
known at the next connection, who goes, or has another password, is found by `still`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.security.exchange import SASL_PLUGIN, SCRAM_PLUGIN, ChannelFacts, Step
from metadata.security.principals import Principal, Scheme
from metadata.security.reread_file import RereadFile
from metadata.security.sasl.credentials import ScramUsers, read_scram_users
from metadata.security.sasl.digest_md5 import DigestMd5Client, DigestMd5Server
from metadata.security.sasl.jaas import JaasError, JaasSection, KerberosLogin, section_of
from metadata.security.sasl.kerberos import KerberosClient, KerberosServer, kerberos_library
from metadata.security.sasl.machine import SaslClient, SaslError, SaslServer
from metadata.security.sasl.scram import ScramClient, ScramServer
from metadata.security.secrets import Secret, secret_from_file

EVERYBODY: Final = re.compile(".*", re.DOTALL)


class MachineExchange:
    """Runs a server's machine for one connection.

    Args:
        credentials: by users' names, those which the machine verifies; None: it has none (Kerberos).
    """

    def __init__(self, machine: SaslServer, credentials: Mapping[str, object] | None = None) -> None:
        self._machine = machine
        self._credentials = credentials

    def step(self, payload: bytes) -> Step:
        """Take the client's message. Raises SaslError."""
        answer = self._machine.step(payload)
        principal = self._machine.principal
        if principal is not None and self._credentials is not None:
            principal = replace(principal, credential=self._credentials[principal.name])
        return Step(answer, principal)


class MachineClientExchange:
    """Runs a client's machine for one connection."""

    def __init__(self, machine: SaslClient) -> None:
        self._machine = machine

    @property
    def done(self) -> bool:
        """True once both sides have proved what they had to."""
        return self._machine.done

    def first(self) -> bytes:
        """Return the first message, perhaps an empty one. Raises SaslError."""
        return self._machine.step(b"") or b""

    def step(self, payload: bytes) -> bytes | None:
        """Take the node's message and return the next one. Raises SaslError."""
        return self._machine.step(payload)


# ------------------------------------------------------------------------------------ nodes


class SaslAuthenticator:
    """Who may enter by upstream's plug-in? The login configuration says by which mechanism: it names a module for
    Kerberos, or users with passwords for DIGEST-MD5.

    Args:
        path, section: the login configuration; its users are the options `user_NAME`.
        allowed: a name has to match it whole.
        without_tls: whether a connection outside of TLS may use DIGEST-MD5.

    Raises:
        JaasError: the configuration cannot be read, or has neither.
        SaslError: it is for Kerberos, and the extra `kerberos` is not installed.
    """

    plugin = SASL_PLUGIN

    def __init__(
        self, path: str | os.PathLike[str], section: str, *, allowed: re.Pattern[str], without_tls: bool
    ) -> None:
        self._allowed = allowed
        self._without_tls = without_tls
        self._section = RereadFile(path, lambda place: _with_users(section_of(place, section)))
        if self._section.current().kerberos() is not None:
            kerberos_library()

    @property
    def needs_tls(self) -> bool:
        """True where nobody can enter outside of TLS."""
        return not self._without_tls and self._section.current().kerberos() is None

    def begin(self, facts: ChannelFacts) -> MachineExchange:
        """Return the exchange of a new connection. Raises SaslError for DIGEST-MD5 outside of TLS, unless allowed."""
        login = self._section.current().kerberos()
        if login is not None:
            return MachineExchange(KerberosServer(login.keytab, login.principal, self._is_allowed))
        if not facts.secured and not self._without_tls:
            raise SaslError(
                "DIGEST-MD5 is spoken inside TLS only",
                advice="saslDigestMd5WithoutTls=true allows it on plain connections, whose bytes anybody may change",
            )
        users = self._section.current().passwords()
        return MachineExchange(DigestMd5Server(users.get, self._is_allowed), users)

    def still(self, principal: Principal) -> str | None:
        """Return why a user may not stay: it is not in the file any more, or has another password there."""
        if principal.scheme is not Scheme.DIGEST_MD5:
            return None  # a ticket's end is the session's
        return _why_not(principal, self._section.current().passwords(), "login configuration")

    def _is_allowed(self, name: str) -> bool:
        return self._allowed.fullmatch(name) is not None


class ScramAuthenticator:
    """Which users of a credentials file may enter by SCRAM-SHA-256?

    Args:
        path: the file that `dlspark scram` writes.
        allowed: a name has to match it whole.

    Raises:
        CredentialsError: the file cannot be used.
    """

    plugin = SCRAM_PLUGIN

    def __init__(self, path: str | os.PathLike[str], *, allowed: re.Pattern[str] = EVERYBODY) -> None:
        self._allowed = allowed
        self._users: RereadFile[ScramUsers] = RereadFile(path, read_scram_users)

    def begin(self, facts: ChannelFacts) -> MachineExchange:
        """Return the exchange of a new connection. Raises SaslError where its TLS has no channel binding."""
        users = self._users.current()
        binding = _binding_of(facts)
        machine = ScramServer(users.users.get, self._is_allowed, binding=binding, decoy=users.decoy)
        return MachineExchange(machine, users.users)

    def still(self, principal: Principal) -> str | None:
        """Return why a user may not stay: it is not in the file any more, or has another password there."""
        return _why_not(principal, self._users.current().users, "file of SCRAM users")

    def _is_allowed(self, name: str) -> bool:
        return self._allowed.fullmatch(name) is not None


def allowed_ids(pattern: str, error: Callable[..., CallerError] = CallerError) -> re.Pattern[str]:
    """Return a pattern of names. Raises `error` where it is not a regular expression."""
    try:
        return re.compile(pattern)
    except re.error as cause:
        raise error(f"saslJaasClientAllowedIds is not a regular expression: {cause}") from cause


def _why_not(principal: Principal, credentials: Mapping[str, object], where: str) -> str | None:
    """Return why a user may not stay. One whose password was changed has to prove the new one: it may have been changed
    because another knows it, who is connected."""
    known = credentials.get(principal.name)
    if known is None:
        return f"the user {principal.name} was taken out of the {where}"
    return None if known == principal.credential else f"the user {principal.name} has another password now"


def _with_users(section: JaasSection) -> JaasSection:
    if section.kerberos() is None and not section.passwords():
        raise JaasError(
            f"the section {section.name} knows no user, so nobody could enter",
            path=section.path,
            advice='Users are options of its module: user_NAME="PASSWORD"',
        )
    return section


def _binding_of(facts: ChannelFacts) -> bytes | None:
    """Return the connection's channel binding. Raises SaslError where it is in TLS and has none: nothing binds then."""
    if not facts.secured:
        return None
    binding = facts.binding()
    if binding is None:
        raise SaslError("SCRAM: the connection's TLS has no channel binding")
    return binding


# ------------------------------------------------------------------------------------ clients


class SaslClientAuthenticator:
    """As whom does a client enter by upstream's plug-in? The login configuration says by which mechanism.

    Args:
        path, section: the login configuration, with `username` and `password`, or with a module for Kerberos.
        without_tls: whether DIGEST-MD5 is spoken outside of TLS.
        service: the first part of the storage nodes' principals.

    Raises:
        JaasError: the configuration cannot be read, or has neither.
        SaslError: it is for Kerberos, and the extra `kerberos` is not installed.
    """

    plugin = SASL_PLUGIN

    def __init__(
        self, path: str | os.PathLike[str], section: str, *, without_tls: bool, service: str = "bookkeeper"
    ) -> None:
        self._without_tls = without_tls
        self._service = service

        def login(place: Path) -> KerberosLogin | tuple[str, Secret]:
            found = section_of(place, section)
            return found.kerberos() or found.login()

        self._login: RereadFile[KerberosLogin | tuple[str, Secret]] = RereadFile(path, login)
        if isinstance(self._login.current(), KerberosLogin):
            kerberos_library()

    @property
    def blocks(self) -> bool:
        """True with Kerberos: a step may ask its server for a ticket, for seconds."""
        return isinstance(self._login.current(), KerberosLogin)

    def begin(self, facts: ChannelFacts) -> MachineClientExchange:
        """Return the exchange of a new connection. Raises SaslError for DIGEST-MD5 outside of TLS, unless allowed."""
        login = self._login.current()
        if isinstance(login, KerberosLogin):
            client = KerberosClient(
                self._service,
                facts.peer,
                principal=login.principal,
                keytab=login.keytab,
                ticket_cache=login.ticket_cache,
            )
            return MachineClientExchange(client)
        if not facts.secured and not self._without_tls:
            raise SaslError(
                "DIGEST-MD5 is spoken inside TLS only; nothing was sent",
                advice="Set security=on, or saslDigestMd5WithoutTls=true where everybody on the way is trusted",
            )
        name, password = login
        return MachineClientExchange(DigestMd5Client(name, password))


class ScramClientAuthenticator:
    """As which user does a client enter by SCRAM-SHA-256?

    Args:
        name: the user.
        password_file: its first lines are the password; nobody but owner and group may read it.

    Raises:
        CallerError: the password cannot be read.
    """

    plugin = SCRAM_PLUGIN
    blocks = False

    def __init__(self, name: str, password_file: str | os.PathLike[str]) -> None:
        self._name = name
        self._password: RereadFile[Secret] = RereadFile(Path(password_file), secret_from_file)

    def begin(self, facts: ChannelFacts) -> MachineClientExchange:
        """Return the exchange of a new connection. Raises SaslError where its TLS has no channel binding."""
        return MachineClientExchange(ScramClient(self._name, self._password.current(), binding=_binding_of(facts)))
