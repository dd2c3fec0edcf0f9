"""`ServerSecurity`: what an embedded ZooKeeper's configuration says of TLS, and the stores that it reads.

ZooKeeper has one port for clients here, whichever way they speak: an address is written down in bindings and
configurations, and must not change when a cluster is secured. That port is plain, takes both kinds (`client.
portUnification`), or is the secure one. Among servers of an ensemble it is the same, with one step more: a server that
takes both kinds from others dials in clear text or by TLS. A running ensemble is secured server by server, in the order
of `Among`; two neighbours in that order understand each other.

A client by TLS proves itself by a certificate (`ssl.clientAuth=need`), and its subject is its identity in access
control lists. Keys lie in files of this user alone; none has a password, so no password is in the configuration or in
the process list. The stores, and the lists of revoked certificates, are read again when they change, by our class in
ZooKeeper (`jvm-shim/zookeeper`), which also ends connections by what is revoked (`docs/security/zookeeper.md`).
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.foundation.private_files import FILE_MODE, make_private_directory
from metadata.security.certificates import REVOCATIONS, RevocationList, pem_blocks, read_revocations
from metadata.security.errors import IdentityError
from metadata.security.identity_files import in_memory, load_pair, moment_text, openssl_reason

_LOG: Final = logging.getLogger(__name__)
STORES: Final = "tls"
"""Directory of the stores, in that of a server."""
_KEYS: Final = "identity.pem"
_TRUSTED: Final = "authorities.pem"
_REVOKED: Final = "revoked.pem"
"""Where our class in ZooKeeper looks by itself, beside the authorities: a place that is named must have a file."""
PROVIDER_JAR: Final = Path(__file__).with_name("dlspark-zookeeper.jar")
"""What looks at certificates inside ZooKeeper; its class path needs it."""
_KEY_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----")
_READABLE_KEY: Final = b"PRIVATE KEY"

_NETTY: Final = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
"""
_CLIENT_TLS: Final = f"""\
ssl.keyStore.location=./{STORES}/{_KEYS}
ssl.keyStore.type=PEM
ssl.trustStore.location=./{STORES}/{_TRUSTED}
ssl.trustStore.type=PEM
ssl.clientAuth=need
ssl.enabledProtocols=TLSv1.3,TLSv1.2
ssl.authProvider=x509
authProvider.x509=org.dlspark.zookeeper.RevocationAuthenticationProvider
"""
_AMONG_TLS: Final = f"""\
ssl.quorum.keyStore.location=./{STORES}/{_KEYS}
ssl.quorum.keyStore.type=PEM
ssl.quorum.trustStore.location=./{STORES}/{_TRUSTED}
ssl.quorum.trustStore.type=PEM
ssl.quorum.clientAuth=need
ssl.quorum.enabledProtocols=TLSv1.3,TLSv1.2
sslQuorumReloadCertFiles=true
"""

# What a netty of ZooKeeper's needs of PySpark's jars, each of one name there.
NETTY_JARS: Final = (
    "netty-buffer-4*.jar",
    "netty-codec-4*.jar",
    "netty-codec-base-4*.jar",
    "netty-common-4*.jar",
    "netty-handler-4*.jar",
    "netty-resolver-4*.jar",
    "netty-transport-4*.jar",
    "netty-transport-classes-epoll-4*.jar",
    "netty-transport-native-unix-common-4*.jar",
    "netty-tcnative-classes-*.jar",
)


class ClientPort(Enum):
    """Which connections does a server take from clients?"""

    BOTH = "both"
    """By TLS and in clear text: while a cluster changes."""
    TLS = "tls"


class Among(Enum):
    """How do the servers of an ensemble speak with each other? In the order of a rolling change."""

    PLAIN = "plain"
    TAKE_TLS = "take-tls"
    """Both kinds are taken; others are dialled in clear text."""
    DIAL_TLS = "dial-tls"
    """Both kinds are taken; others are dialled by TLS."""
    TLS = "tls"


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """By which certificates does a ZooKeeper server speak TLS, and who must?

    Args:
        certificate: PEM file with the server's certificate, and those between it and an authority.
        key: PEM file with its key, in PKCS#8 without a password.
        authorities: PEM file with the authorities whose certificates are let in.
        clients: what its port for clients takes.
        among: what servers of an ensemble take from each other.
        operator: subject of the certificate whose holder may do everything, whatever the access control lists say, in
            the form of RFC 2253 ("CN=operator,OU=operator"); empty: none.
        revoked: PEM file with revocation lists; there may be none, but once it was there it has to stay. None: no
            lists are looked at, and those of an earlier start are removed.
    """

    certificate: Path
    key: Path
    authorities: Path
    clients: ClientPort = ClientPort.TLS
    among: Among = Among.TLS
    operator: str = ""
    revoked: Path | None = None

    @classmethod
    def of_folder(
        cls, folder: Path, *, clients: ClientPort = ClientPort.TLS, among: Among = Among.TLS, operator: str = ""
    ) -> ServerSecurity:
        """Take the identity in a folder that `dlspark tls` made."""
        files = (folder / "certificate.pem", folder / "key.pem", folder / "authorities.pem")
        return cls(*files, clients=clients, among=among, operator=operator, revoked=folder / "revoked.pem")

    def config(self, host: str, port: int) -> str:
        """Return the lines of the configuration, the port for clients among them. Raises CallerError for an operator's
        subject that cannot stand there."""
        if not (self.operator.isascii() and self.operator.isprintable()):
            raise CallerError("the operator's subject has a character that ZooKeeper's configuration cannot hold")
        escaped = self.operator.replace("\\", "\\\\")
        superuser = f"X509AuthenticationProvider.superUser={escaped}\n" if escaped else ""
        if self.clients is ClientPort.TLS:
            ports = f"secureClientPortAddress={host}\nsecureClientPort={port}\n"
        else:
            ports = f"{plain_ports(host, port)}client.portUnification=true\n"
        among = "" if self.among is Among.PLAIN else _AMONG_TLS
        among += f"sslQuorum={str(self.among in (Among.DIAL_TLS, Among.TLS)).lower()}\n"
        among += f"portUnification={str(self.among in (Among.TAKE_TLS, Among.DIAL_TLS)).lower()}\n"
        return _NETTY + ports + _CLIENT_TLS + superuser + among

    def install(self, directory: Path) -> bool:
        """Write the stores into the server's directory, where they are other ones than before; returns whether so.

        Raises CallerError where a file cannot be read or is not what it should be. What it is about is as before then:
        lists that are bad keep no certificate away, and the other way round.
        """
        make_private_directory(directory / STORES)
        changed, bad = False, None
        for install in (self._install_lists, self._install_pair):
            try:
                changed = install(directory / STORES) or changed
            except CallerError as error:
                bad = bad or error
        if bad is not None:
            raise bad
        return changed

    def _install_lists(self, stores: Path) -> bool:
        if self.revoked is None:
            # One of an earlier start would count for ever, with what has been revoked till then.
            there = (stores / _REVOKED).exists()
            (stores / _REVOKED).unlink(missing_ok=True)
            return there
        if not os.path.lexists(self.revoked):
            if (stores / _REVOKED).exists():
                raise CallerError(
                    "ZooKeeper's revocation lists are not there any more; those that were there stay in force",
                    path=str(self.revoked),
                    advice=f"Put them back. If nothing is to count as revoked: stop it, and remove {stores / _REVOKED}",
                )
            return False
        content = _read(self.revoked, "file of revocation lists")
        lists = _read_lists(content, self.revoked)
        changed = _replace(stores / _REVOKED, content)
        if changed:
            _warn_of_ended(lists, self.revoked)
        return changed

    def _install_pair(self, stores: Path) -> bool:
        key, chain = _read(self.key, "key"), _read(self.certificate, "certificate")
        trusted = _read(self.authorities, "authorities")
        _check_key(key, self.key)
        self._check_pair(key, chain, trusted)
        # ZooKeeper reads one when it changes: what it is to trust is there before the certificate by that authority.
        changed = _replace(stores / _TRUSTED, trusted)
        return _replace(stores / _KEYS, key.rstrip() + b"\n" + chain) or changed

    def probe_context(self) -> ssl.SSLContext:
        """Return a context to ask the server whether it serves, as whose client the server's own certificate does."""
        context = ssl.create_default_context(cafile=self.authorities)
        # It is asked at the address where it listens, which may be any of this machine's; nothing secret is sent.
        context.check_hostname = False
        context.load_cert_chain(self.certificate, self.key)
        return context

    def _check_pair(self, key: bytes, chain: bytes, trusted: bytes) -> None:
        """Raise CallerError unless they fit together: files may be half renewed at this moment. What was read is
        looked at, and not the files again, which may be other ones by now."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            load_pair(context, chain, key, None, key_place=str(self.key), chain_place=str(self.certificate))
            with in_memory(trusted) as place:
                context.load_verify_locations(place)
        except (IdentityError, OSError, ValueError) as error:
            reason = error.message if isinstance(error, IdentityError) else openssl_reason(error)
            raise CallerError(
                f"ZooKeeper's certificate, key and authorities do not fit together: {reason}",
                path=str(self.certificate),
                advice="Nothing was changed. Let the files be those of one identity",
            ) from error


def plain_ports(host: str, port: int) -> str:
    """Return the lines of a configuration for a port that takes clients in clear text."""
    return f"clientPortAddress={host}\nclientPort={port}\n"


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CallerError(f"ZooKeeper's {what} cannot be read: {error.strerror or error}", path=str(path)) from error


def _check_key(content: bytes, path: Path) -> None:
    found = _KEY_BLOCK.search(content)
    if found is None or found[1] != _READABLE_KEY:
        kind = "no private key" if found is None else f"a key of the kind {found[1].decode().title()}"
        raise CallerError(
            f"the file has {kind}; ZooKeeper reads keys in PKCS#8 without a password alone",
            path=str(path),
            advice="openssl pkcs8 -topk8 -nocrypt -in KEY -out key.pem makes one; so does dlspark tls",
        )


def _read_lists(content: bytes, path: Path) -> list[RevocationList]:
    """Return a file's lists. One that has ended is none of its faults: its authority alone is refused by it, and
    what others have revoked meanwhile counts."""
    advice = "The lists that it had stay in force. Copy the authority's newest list (dlspark tls renew makes one)"
    try:
        found = [read_revocations(one.body) for one in pem_blocks(content) if one.label == REVOCATIONS]
    except ValueError as error:
        raise CallerError(
            f"ZooKeeper's revocation lists cannot be read: {error}", path=str(path), advice=advice
        ) from error
    if not found:
        raise CallerError("ZooKeeper's file of revocation lists holds none", path=str(path), advice=advice)
    return found


def _warn_of_ended(lists: Sequence[RevocationList], path: Path) -> None:
    newest = {
        (one.issuer, one.part, one.authority_key_id): one for one in sorted(lists, key=lambda each: each.this_update_s)
    }
    for one in newest.values():
        if one.next_update_s is not None and one.next_update_s <= time.time():
            _LOG.warning(
                "%s: the revocation list of %s ended at %s; ZooKeeper refuses what that authority has signed. Copy its "
                "newest list (dlspark tls renew makes one)",
                path,
                one.issuer_text,
                moment_text(one.next_update_s),
            )


def _replace(path: Path, content: bytes) -> bool:
    """Put `content` in the place of a file, at once and for this user alone; returns False where it is there."""
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    beside = path.with_suffix(".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "wb") as file:
        os.fchmod(file.fileno(), FILE_MODE)  # it may be left from before, with another mode
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return True
