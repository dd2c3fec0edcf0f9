"""Keys of AUTH: what a node asks of clients, and what a client proves, by upstream's names; and what is made of them.

Upstream names Java classes (`bookieAuthProviderFactoryClass`); no class is loaded here: the names that are known stand
for what does the same. A node may name several, separated by commas, and a client is let in by one of them: so a
cluster goes over from one to another without an hour in which nobody can enter.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import FLAG, TEXT, WORDS, setting
from metadata.security.exchange import Authenticator, ClientAuthenticator
from metadata.security.sasl.authenticators import (
    SaslAuthenticator,
    SaslClientAuthenticator,
    ScramAuthenticator,
    ScramClientAuthenticator,
    allowed_ids,
)

Provider = Literal["sasl", "scram", "certificate"]

NODE_PROVIDERS: Final[Mapping[str, Provider]] = {
    "sasl": "sasl",
    "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory": "sasl",
    "certificate": "certificate",
    "org.apache.bookkeeper.tls.BookieAuthZFactory": "certificate",
    "scram": "scram",
}
CLIENT_PROVIDERS: Final[Mapping[str, Provider]] = {
    "sasl": "sasl",
    "org.apache.bookkeeper.sasl.SASLClientProviderFactory": "sasl",
    "scram": "scram",
}


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """Where are the names and passwords of SASL, and where may DIGEST-MD5 be spoken? For nodes and clients alike."""

    jaas_file: str = setting(
        TEXT,
        "",
        "saslJaasConfigurationFile",
        "The login configuration with names and passwords: the file that Java is given by the property "
        "java.security.auth.login.config. Only owner and group may read it. It is read again when it changes",
        own=True,
        section="Authentication by SASL",
    )
    digest_md5_without_tls: bool = setting(
        FLAG,
        False,
        "saslDigestMd5WithoutTls",
        "Speak DIGEST-MD5 on connections without TLS as well, as Java does. What follows on them is protected by "
        "nothing, and a password that can be guessed is found from what was overheard",
        own=True,
    )
    kerberos_service: str = setting(
        TEXT,
        "bookkeeper",
        "saslKerberosServiceName",
        "With Kerberos: the first part of the storage nodes' principals, to their clients (Java's property "
        "bookkeeper.sasl.servicename)",
        own=True,
    )


@dataclass(frozen=True, slots=True)
class NodeProofSettings:
    """What does a storage node ask of its clients, beside a certificate?"""

    providers: tuple[str, ...] = setting(
        WORDS,
        (),
        "bookieAuthProviderFactoryClass",
        "What a client has to prove: `sasl` or org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory (DIGEST-MD5 or "
        "Kerberos, whichever the login configuration has), `scram` (SCRAM-SHA-256), `certificate` or "
        "org.apache.bookkeeper.tls.BookieAuthZFactory (a certificate with one of authorizedRoles, which is demanded "
        "beside the others). One of `sasl` and `scram` is enough where both are named, separated by commas. Empty: "
        "nothing, but the roles if there are any",
    )
    bookie_section: str = setting(
        TEXT, "Bookie", "saslJaasBookieSectionName", "The section of the login configuration that is the node's"
    )
    allowed_ids: str = setting(
        TEXT,
        ".*bookkeeper.*",
        "saslJaasClientAllowedIds",
        "A regular expression that the name of a client which comes by SASL has to match as a whole",
    )
    scram_users_file: str = setting(
        TEXT,
        "",
        "scramUsersFile",
        "The file with the stored keys of SCRAM's users, which `dlspark scram` writes. It is read again when it "
        "changes",
        own=True,
    )
    permitted_startup_users: tuple[str, ...] = setting(
        WORDS,
        (),
        "permittedStartupUsers",
        "The users of the operating system under which the node may be started; empty: any",
    )
    sasl: SaslSettings = field(default_factory=SaslSettings)

    def authenticators(self, error: Callable[..., CallerError] = CallerError) -> Mapping[str, Authenticator]:
        """Return who is let in by AUTH messages, by the name of the plug-in; none: nobody is asked for any.

        Raises `error`, or the error of a file that cannot be used.
        """
        made: list[Authenticator] = []
        for provider in self.asked(error):
            if provider == "sasl":
                _needed("saslJaasConfigurationFile", self.sasl.jaas_file, "sasl", error)
                made.append(
                    SaslAuthenticator(
                        self.sasl.jaas_file,
                        self.bookie_section,
                        allowed=allowed_ids(self.allowed_ids, error),
                        without_tls=self.sasl.digest_md5_without_tls,
                    )
                )
            elif provider == "scram":
                _needed("scramUsersFile", self.scram_users_file, "scram", error)
                made.append(ScramAuthenticator(self.scram_users_file))
        return {one.plugin: one for one in made}

    def asked(self, error: Callable[..., CallerError] = CallerError) -> frozenset[Provider]:
        """Return which proofs are taken. Raises `error` for a class that stands for nothing here."""
        return frozenset(
            _known(name, NODE_PROVIDERS, "bookieAuthProviderFactoryClass", error) for name in self.providers
        )


@dataclass(frozen=True, slots=True)
class ClientProofSettings:
    """What does a ledger client prove to storage nodes, beside a certificate?"""

    provider: str = setting(
        TEXT,
        "",
        "clientAuthProviderFactoryClass",
        "How the client proves who it is: `sasl` or org.apache.bookkeeper.sasl.SASLClientProviderFactory (DIGEST-MD5 "
        "or Kerberos, whichever the login configuration has), `scram` (SCRAM-SHA-256). Empty: by a certificate at most",
        section="Authentication of a client (in a node's file: auto-recovery's)",
    )
    client_section: str = setting(
        TEXT, "BookKeeper", "saslJaasClientSectionName", "The section of the login configuration that is the client's"
    )
    auditor_section: str = setting(
        TEXT, "Auditor", "saslJaasAuditorSectionName", "The section that is the client's where clientRole is `system`"
    )
    role: str = setting(
        TEXT,
        "standard",
        "clientRole",
        "`system` for auto-recovery's client, which is so by itself: it only chooses the section",
        choices=("standard", "system"),
    )
    scram_user: str = setting(TEXT, "", "scramUser", "The name with which the client enters by SCRAM", own=True)
    scram_password_file: str = setting(
        TEXT,
        "",
        "scramPasswordFile",
        "The file with that user's password; only owner and group may read it. It is read again when it changes",
        own=True,
    )
    demands_proof: bool = setting(
        FLAG,
        False,
        "clientDemandsAuthentication",
        "Refuse storage nodes that ask for no proof by AUTH, and so give none. Java's clients go on, which lets them "
        "be set up before the nodes are",
        own=True,
    )
    sasl: SaslSettings = field(default_factory=SaslSettings)

    def authenticator(self, error: Callable[..., CallerError] = CallerError) -> ClientAuthenticator | None:
        """Return how the client proves who it is by AUTH messages; None: it sends none.

        Raises `error`, or the error of a file that cannot be used.
        """
        if not self.provider:
            return None
        if _known(self.provider, CLIENT_PROVIDERS, "clientAuthProviderFactoryClass", error) == "scram":
            _needed("scramUser", self.scram_user, "scram", error)
            _needed("scramPasswordFile", self.scram_password_file, "scram", error)
            return ScramClientAuthenticator(self.scram_user, self.scram_password_file)
        _needed("saslJaasConfigurationFile", self.sasl.jaas_file, "sasl", error)
        section = self.auditor_section if self.role == "system" else self.client_section
        return SaslClientAuthenticator(self.sasl.jaas_file, section, without_tls=self.sasl.digest_md5_without_tls)


def check_startup_user(permitted: tuple[str, ...], error: Callable[..., CallerError] = CallerError) -> None:
    """Raise `error` unless this process runs as one of these users; none named: anybody may."""
    if not permitted:
        return
    number = os.geteuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:
        user = str(number)  # a container's user without a name is known by its number
    if user not in permitted:
        raise error(
            f"the user {user} is not among permittedStartupUsers; nothing was started",
            advice=f"Start the node as {' or '.join(permitted)}",
        )


def _known(name: str, providers: Mapping[str, Provider], key: str, error: Callable[..., CallerError]) -> Provider:
    provider = providers.get(name)
    if provider is None:
        raise error(f"{key}={name}: no class is loaded by its name here", advice=f"Known are: {', '.join(providers)}")
    return provider


def _needed(key: str, value: str, provider: str, error: Callable[..., CallerError]) -> None:
    if not value:
        raise error(f"the provider {provider} needs {key}, which is not set")
