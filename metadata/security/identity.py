"""`TlsIdentity`: the certificate, key, authorities and revocation lists of one process, read again when they change.

    files ──read──> material ──> one generation: a server's and a client's context, lists to judge peers by
      ^                              |
      └── refresh(): changed? ───────┘

A generation is made from one consistent reading, or not at all. Files are read between two looks at their signatures
(time of change, size, inode), and what was read goes to OpenSSL from memory, never by its path: certificate and key are
a pair, though somebody exchanges them at that moment. A reading that fails (half-written, a key of another certificate,
a list that is gone, no descriptor left) leaves the generation as it is, with one warning, and each look tries again;
the old files' contents hold until they expire. At the start there is no old generation: then it is an error, and the
process does not start. Of several revocation lists one may have ended: the file is taken over for the others' sake, and
what the authority of that one has signed is refused. Where all have ended, it is a reading that fails.

Contexts of a generation are never changed, only replaced: a connection keeps what it was made with, and `judge` says
whether its peer is still good.

Fault model: files may be written in place, replaced, missing or unreadable at any moment. Keys are never logged, never
in an error, and never written to a disk.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeAlias

from metadata.security.certificate_paths import path_objection
from metadata.security.certificates import (
    REVOCATIONS,
    CertificateFacts,
    Name,
    RevocationList,
    pem_blocks,
    read_certificate,
    read_revocations,
)
from metadata.security.ciphers import apply_ciphers, apply_protocols
from metadata.security.errors import IdentityError, PeerRefusedError
from metadata.security.file_signatures import FileSignature, are_settled, file_signature
from metadata.security.identity_files import (
    blocks_of,
    certificates_of,
    facts_of,
    file_error,
    in_memory,
    is_variable,
    key_of,
    load_pair,
    moment_text,
    open_to_all,
    openssl_reason,
    password_of,
    read_file,
)
from metadata.security.principals import Principal, PrincipalMapping
from metadata.security.revocations import lists_in_force, lists_missing, revocation_objection
from metadata.security.secrets import Secret
from metadata.security.stores import StoreError, authorities_of_store, key_of_store, store_error

logger = logging.getLogger(__name__)

CERTIFICATE_FILE: Final = "certificate.pem"
KEY_FILE: Final = "key.pem"
AUTHORITIES_FILE: Final = "authorities.pem"
REVOKED_FILE: Final = "revoked.pem"
PEM: Final = "pem"
_READINGS: Final = 5
"""How often files are read that change while they are read, before that is given up until the next look."""


class TlsConnection(Protocol):
    """A connection whose handshake is over: `ssl.SSLSocket` or `ssl.SSLObject`."""

    def getpeercert(self, binary_form: Literal[True], /) -> bytes | None:
        """Return the peer's certificate, DER; None: it showed none."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Which files prove who this process is, and whom does it believe?"""

    certificate: str = ""
    """PEM: the certificate, and behind it those that lead to an authority; empty: this process shows none."""
    key: str = ""
    """Its private key, or the store that has both."""
    key_password: str = ""
    """The file with the key's, or the store's, password, or `env:` and the name of a variable; empty: it has none."""
    authorities: str = ""
    """Certificates of those whose signature is believed."""
    revoked: str = ""
    """Revocation lists, one of each authority; empty: none are looked at."""
    revoked_may_be_missing: bool = False
    """There need not be such a file at the start; once it was there, it has to stay."""
    protocols: tuple[str, ...] = ()
    """TLSv1.2 and TLSv1.3; empty: both."""
    ciphers: tuple[str, ...] = ()
    """Names of OpenSSL or of Java; empty: those that are good today."""
    peers_prove: bool = True
    """A server demands a certificate of each client."""
    names_checked: bool = True
    """A client demands that the server's certificate names the host that it was asked to connect to."""
    reread: bool = True
    """Files that change are taken over; else they are read once."""
    key_type: str = PEM
    """`pem`, `jks` or `pkcs12`."""
    authorities_type: str = PEM
    authorities_password: str = ""
    """The file with the authorities' store's password, or a variable as for key_password; empty: it has none."""
    key_secret: Secret | None = None
    """The key's, or the store's, password itself, where settings hold it; so is the next one."""
    authorities_secret: Secret | None = None

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> TlsFiles:
        """Return the files of an identity folder, as `dlspark tls issue` makes one."""
        place = os.fspath(folder)
        return cls(
            certificate=os.path.join(place, CERTIFICATE_FILE),
            key=os.path.join(place, KEY_FILE),
            authorities=os.path.join(place, AUTHORITIES_FILE),
            revoked=os.path.join(place, REVOKED_FILE),
            revoked_may_be_missing=True,
        )

    def paths(self) -> tuple[str, ...]:
        """Return all that is read."""
        named = (
            self.certificate,
            self.key,
            self.key_password,
            self.authorities,
            self.authorities_password,
            self.revoked,
        )
        return tuple(dict.fromkeys(path for path in named if path and not is_variable(path)))


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What one reading of the files has given. Its representation has no key."""

    chain: bytes
    """PEM: this process's certificate first; empty: it has none."""
    key: bytes = field(repr=False)
    """PEM."""
    key_password: bytes | None = field(repr=False)
    """None: the key is not encrypted."""
    authorities: bytes
    """PEM."""
    revoked: bytes | None
    """PEM; None: no lists are looked at."""


@dataclass(frozen=True, slots=True)
class _FilesRead:
    material: TlsMaterial
    signatures: tuple[FileSignature | None, ...]
    settled: bool
    """Another change would show in the signatures."""


@dataclass(frozen=True, slots=True)
class _Generation:
    material: TlsMaterial
    own: CertificateFacts | None
    server: ssl.SSLContext | None
    client: ssl.SSLContext
    authorities: tuple[CertificateFacts, ...]
    trusted: frozenset[_Signer]
    lists: tuple[RevocationList, ...] | None


_Signer: TypeAlias = tuple[Name, bytes | None, bytes]
"""Name, number of the key, and key of what is believed: an authority, or one peer."""


class TlsIdentity:
    """Who is this process, and whom does it believe? Safe to use from several threads.

    Args:
        files: where certificate, key, authorities and lists are.
        mapping: makes principals of peers' certificates.
        clock: seconds since the epoch.

    Raises:
        IdentityError: a file cannot be read or used; the message names it and says why.
    """

    def __init__(
        self,
        files: TlsFiles,
        mapping: PrincipalMapping | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.files = files
        self.generation = 1
        """Goes up by one each time that changed files have been taken over."""
        self._mapping = mapping or PrincipalMapping()
        self._clock = clock
        self._lock = threading.Lock()
        self._warned = ""
        self._warned_of_end: set[str] = set()
        self._settled = False
        self._signatures: tuple[FileSignature | None, ...] = ()
        """Of the files as they were when that was read which is held."""
        reading = self._read(None)
        self._current = self._make(reading.material, None)
        self._signatures, self._settled = reading.signatures, reading.settled
        self._ever_trusted: frozenset[_Signer] = self._current.trusted
        self._warn_of_end()
        for path in (files.key, files.key_password):
            if path and open_to_all(path):
                logger.warning("everybody on this host may read the private key, or its password: chmod o= %s", path)

    @property
    def _own_place(self) -> str:
        return self.files.certificate or self.files.key

    @property
    def material(self) -> TlsMaterial:
        """The contents of the files, for a library that makes its contexts itself."""
        return self._current.material

    @property
    def own_certificate(self) -> CertificateFacts | None:
        """What this process shows; None: it has no certificate."""
        return self._current.own

    def server_context(self) -> ssl.SSLContext:
        """Return the context for connections that come in: of this generation, and the same until the next.

        Raises IdentityError where there is no certificate to show.
        """
        context = self._current.server
        if context is None:
            raise IdentityError(
                "a server needs a certificate and its key, and none is named",
                advice="Name an identity folder (securityDirectory), or tlsCertificatePath and tlsKeyStore",
            )
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context for connections that go out; name the host to them (`server_hostname`)."""
        return self._current.client

    def refresh(self) -> bool:
        """Look whether the files have changed, and take over what they have now. Return whether a new generation began.

        What cannot be used is not taken over: it is warned of once, and tried again at each call.
        """
        with self._lock:
            if not self.files.reread:
                self._warn_of_end()
                return False
            try:
                self._warn_of_end()
                if self._settled and self._look() == self._signatures:
                    return False
                changed = self._take_over()
            except IdentityError as error:
                self._warn_of_failure(str(error))
                return False
            except Exception as error:
                # The boundary: a caller's watch over its connections goes on, whatever a library has raised. Its words
                # may be a file's, so that only its kind and its place are said.
                self._warn_of_failure(f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}")
                return False
            self._warned = ""
            if changed:
                self._warn_of_end()  # a list in it may have ended before it came
                logger.info("certificates were read again: generation %d%s", self.generation, self._until())
            return changed

    def _take_over(self) -> bool:
        """Begin a new generation if the files hold something else; return whether one began."""
        before = self._current
        reading = self._read(before.material)
        changed = reading.material != before.material
        if changed:
            after = self._make(reading.material, before.material)
            self._ever_trusted = self._ever_trusted | after.trusted
            self._current = after
            self.generation += 1
        # At the very end: as long as it fails, by whatever error, the signatures are those of what is held, and so each
        # look tries again. Else a revocation would be lost by one moment without descriptors.
        self._signatures, self._settled = reading.signatures, reading.settled
        return changed

    def _warn_of_failure(self, reason: str) -> None:
        if reason != self._warned:
            self._warned = reason
            logger.warning("changed certificates are not taken over, the old ones stay in use: %s", reason)

    def judge(self, der: bytes, now_s: float | None = None, shown: Sequence[bytes] | None = None) -> str | None:
        """Return why a peer's certificate, once verified, is not good any more; None: it is.

        Looked at are its time, the revocation lists of this generation, and whether its authority has been believed
        before and is not now. Authorities that stand between are known to the handshake only, unless `shown` says which
        certificates the peer has shown beside its own (DER): the whole way to an authority is judged then. Who verifies
        without lists, as gRPC does, has to say it.
        """
        now = self._clock() if now_s is None else now_s
        current = self._current
        try:
            facts = read_certificate(der)
            others = [read_certificate(one) for one in shown or ()]
        except ValueError as error:
            return f"it cannot be read: {error}"
        why = self._objection(facts, current, now)
        if why is not None or shown is None:
            return why
        return path_objection(facts, others, current.authorities, lambda one: self._objection(one, current, now))

    def _objection(self, facts: CertificateFacts, current: _Generation, now: float) -> str | None:
        if now >= facts.not_after_s:
            return f"it ended at {moment_text(facts.not_after_s)}"
        if now < facts.not_before_s:
            return f"it begins at {moment_text(facts.not_before_s)} only"
        if _is_among(facts, self._ever_trusted) and not _is_among(facts, current.trusted):
            return f"its authority, {facts.issuer_text}, is not believed any more"
        if current.lists is None:
            return None
        return revocation_objection(facts, current.lists, now)

    def principal_of(self, der: bytes) -> Principal:
        """Return whose certificate it is. Raises PeerRefusedError for one that gives no usable name."""
        try:
            facts = read_certificate(der)
        except ValueError as error:
            raise PeerRefusedError(f"the peer's certificate cannot be read: {error}") from error
        return self._mapping.principal(facts)

    def principal(self, connection: TlsConnection, now_s: float | None = None) -> Principal:
        """Return who is at the other end of a connection whose handshake is over.

        Raises PeerRefusedError where it has shown no certificate, where that one is not good (a session of TLS 1.2 that
        was taken up again is not verified anew by OpenSSL), and where it gives no usable name.
        """
        der = connection.getpeercert(True)
        if not der:
            raise PeerRefusedError(
                "the peer has shown no certificate", advice="It needs one of an authority known here"
            )
        reason = self.judge(der, now_s)
        if reason is not None:
            raise PeerRefusedError(f"the peer's certificate is not good: {reason}")
        return self.principal_of(der)

    # -------------------------------------------------------------------- reading

    def _look(self) -> tuple[FileSignature | None, ...]:
        return tuple(file_signature(path) for path in self.files.paths())

    def _read(self, before: TlsMaterial | None) -> _FilesRead:
        """Return what the files hold, all of it of one moment."""
        for _ in range(_READINGS):
            signatures = self._look()
            failure: IdentityError | None = None
            try:
                material = self._read_once(before)
            except IdentityError as error:
                failure = error
            if signatures != self._look():
                continue
            if failure is not None:
                raise failure
            return _FilesRead(material, signatures, are_settled(signatures, self._clock()))
        raise IdentityError("the files of certificates change all the time; none of them was taken over")

    def _read_once(self, before: TlsMaterial | None) -> TlsMaterial:
        files = self.files
        if files.key_type == PEM and bool(files.certificate) != bool(files.key):
            raise IdentityError(
                "a certificate needs a key, and a key a certificate: one of both is not named",
                advice="Name both (tlsCertificatePath, tlsKeyStore), or an identity folder (securityDirectory)",
            )
        if not files.authorities:
            raise IdentityError(
                "no authorities are named whose certificates are believed",
                advice="Name an identity folder (securityDirectory, in Spark option tls.directory), or a file of "
                "certificates (tlsTrustStore, in Spark tls.trustStore). The folder that DLSPARK_SECURITY names counts "
                "only where no setting or option switches security on",
            )
        chain, key, password = self._read_pair()
        return TlsMaterial(chain, key, password, self._read_authorities(), self._read_lists(before))

    def _read_pair(self) -> tuple[bytes, bytes, bytes | None]:
        files = self.files
        if not files.key:
            return b"", b"", None
        password = _password(files.key_secret, files.key_password)
        if files.key_type == PEM:
            return b"".join(one.text for one in certificates_of(files.certificate)), key_of(files.key), password
        try:
            key, chain = key_of_store(read_file(files.key), password)
        except StoreError as error:
            raise store_error(files.key, error) from None
        return chain, key, None

    def _read_authorities(self) -> bytes:
        files = self.files
        if files.authorities_type == PEM:
            return b"".join(one.text for one in certificates_of(files.authorities))
        try:
            password = _password(files.authorities_secret, files.authorities_password)
            return authorities_of_store(read_file(files.authorities), password)
        except StoreError as error:
            raise store_error(files.authorities, error) from None

    def _read_lists(self, before: TlsMaterial | None) -> bytes | None:
        path = self.files.revoked
        if not path:
            return None
        was_there = before is not None and before.revoked is not None
        if self.files.revoked_may_be_missing and not was_there and not os.path.lexists(path):
            return None
        blocks = [one for one in blocks_of(path) if one.label == REVOCATIONS]
        if not blocks:
            raise file_error(path, "it holds no revocation list (a PEM block of X509 CRL)")
        return b"".join(one.text for one in blocks)

    # -------------------------------------------------------------------- contexts

    def _make(self, material: TlsMaterial, before: TlsMaterial | None) -> _Generation:
        """Return a new generation. What has not changed is not held against it that it has ended meanwhile: a new
        revocation list counts, though this process's own certificate is over."""
        own = None
        if material.chain:
            own = facts_of(pem_blocks(material.chain)[0].body, self._own_place)
            if before is None or before.chain != material.chain:
                self._check_time(own)
        authorities = [
            _as_believed(facts_of(one.body, self.files.authorities)) for one in pem_blocks(material.authorities)
        ]
        trusted = frozenset((one.subject, one.key_id, one.key) for one in authorities)
        lists = None
        if material.revoked is not None:
            lists = self._lists(material.revoked, None if before is None else before.revoked, authorities)
        server = self._context(material, ssl.PROTOCOL_TLS_SERVER) if own is not None else None
        client = self._context(material, ssl.PROTOCOL_TLS_CLIENT)
        for missing in lists_missing(lists, authorities) if lists is not None else ():
            logger.warning("%s %s", self.files.revoked, missing)
        return _Generation(material, own, server, client, tuple(authorities), trusted, lists)

    def _check_time(self, own: CertificateFacts) -> None:
        now = self._clock()
        if not own.not_before_s <= now < own.not_after_s:
            begin, end = moment_text(own.not_before_s), moment_text(own.not_after_s)
            raise file_error(
                self._own_place,
                f"the certificate holds from {begin} to {end} only, and it is {moment_text(now)} now",
                "Renew it (dlspark tls renew), or set this host's clock",
            )

    def _lists(
        self, content: bytes, before: bytes | None, authorities: Sequence[CertificateFacts]
    ) -> tuple[RevocationList, ...]:
        """Return the lists that are in force."""
        read: list[RevocationList] = []
        for block in pem_blocks(content):
            try:
                read.append(read_revocations(block.body))
            except ValueError as error:
                raise file_error(self.files.revoked, f"a revocation list in it cannot be read: {error}") from error
        lists = lists_in_force(read, authorities)
        ended = [one for one in lists if self._has_ended(one)]
        # One that has ended keeps none of the others out: what its authority has signed is refused, each time anew
        # (`judge`, and OpenSSL in handshakes). Where all have, the file says nothing that could count.
        if content != before and len(ended) == len(lists):
            raise file_error(
                self.files.revoked,
                "; ".join(_end_text(one, "ended") for one in ended),
                "Fetch the authority's new list (dlspark tls renew makes one)",
            )
        return lists

    def _has_ended(self, one: RevocationList) -> bool:
        return one.next_update_s is not None and self._clock() >= one.next_update_s

    def _context(self, material: TlsMaterial, kind: int) -> ssl.SSLContext:
        context = ssl.SSLContext(kind)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.hostname_checks_common_name = False
        apply_protocols(context, self.files.protocols)
        apply_ciphers(context, self.files.ciphers)
        if kind == ssl.PROTOCOL_TLS_SERVER:
            # A ticket lets a client come back without its certificate being verified again.
            context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
            context.num_tickets = 0
            # A certificate that is shown is verified in any case.
            context.verify_mode = ssl.CERT_REQUIRED if self.files.peers_prove else ssl.CERT_OPTIONAL
        else:
            context.check_hostname = self.files.names_checked
            context.verify_mode = ssl.CERT_REQUIRED
        # Java believes what stands in a trust store, be it an authority or the very certificate of one peer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._load(context, material)
        return context

    def _load(self, context: ssl.SSLContext, material: TlsMaterial) -> None:
        try:
            context.load_verify_locations(cadata=material.authorities.decode("ascii"))
        except (OSError, ValueError) as error:
            raise file_error(self.files.authorities, f"it cannot be used: {openssl_reason(error)}") from error
        if material.chain:
            load_pair(
                context,
                material.chain,
                material.key,
                material.key_password,
                key_place=self.files.key,
                chain_place=self.files.certificate,
            )
        if material.revoked is not None:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
            try:
                with in_memory(material.revoked) as path:
                    context.load_verify_locations(cafile=path)
            except OSError as error:
                raise file_error(self.files.revoked, f"it cannot be used: {openssl_reason(error)}") from error

    def endings(self) -> list[str]:
        """Return what of this identity ends soon, and with it connections, or has ended, in words."""
        now, own = self._clock(), self._current.own
        found: list[str] = []
        if own is not None and own.ends_soon(now):
            found.append(
                f"the certificate of {own.subject_text} ends at {moment_text(own.not_after_s)}, and nobody is let in"
                " any more then"
            )
        for one in self._current.lists or ():
            if self._has_ended(one):
                found.append(f"{_end_text(one, 'ended')}: what that authority has signed is refused")
            elif one.ends_soon(now):
                found.append(f"{_end_text(one, 'ends')}: what that authority has signed is refused then")
        return found

    def _warn_of_end(self) -> None:
        for said in self.endings():
            if said not in self._warned_of_end:
                self._warned_of_end.add(said)
                logger.warning("%s; renew it: dlspark tls renew", said)

    def _until(self) -> str:
        own = self._current.own
        return "" if own is None else f", {own.subject_text} until {moment_text(own.not_after_s)}"


def _end_text(one: RevocationList, verb: str) -> str:
    end = "" if one.next_update_s is None else f" at {moment_text(one.next_update_s)}"
    return f"the revocation list of {one.issuer_text} {verb}{end}"


def _as_believed(facts: CertificateFacts) -> CertificateFacts:
    """Return an authority's facts with the key that has signed it: a root may leave out that it was its own (RFC 5280,
    4.2.1.1). Of a peer's certificates that is not assumed."""
    if facts.authority_key_id is not None or facts.issuer != facts.subject:
        return facts
    return replace(facts, authority_key_id=facts.key_id)


def _is_among(facts: CertificateFacts, signers: Iterable[_Signer]) -> bool:
    """Return whether one of these may have signed it, or is itself: a trust store may have certificates of peers."""
    return any(
        facts.may_be_signed_by(name, key_id) or (facts.subject == name and facts.key == key)
        for name, key_id, key in signers
    )


def _password(secret: Secret | None, path: str) -> bytes | None:
    """Return a password that is given, or that is in a file; None: there is none. Raises IdentityError."""
    return secret.reveal().encode() if secret else password_of(path)
