"""`CertificateAuthority`: one's own authority in a folder, which issues, renews and revokes certificates.

    DIR/authority/    certificate.pem, key.pem, revoked.pem, register.json, zookeeper.secret
    DIR/NAME          the identity folder of each name (`identity_folders`)

The register is written before the certificate leaves: what was ever issued is known, and can be revoked. A revocation
is in the register first, then in the list, then in the folders beside it: after a crash, giving the command again ends
what was begun. One command at a time holds the folder's lock.

Keys are ECDSA over P-256, PKCS #8, and never leave their folder. The authority may sign certificates of peers only
(path length 0). Everything here needs the extra [security]; nothing else of dlspark does for plain files.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metadata.foundation.private_files import DIRECTORY_MODE, make_private_directory
from metadata.security.certificates import CERTIFICATE, REVOCATIONS, PemBlock, pem_blocks, read_revocations
from metadata.security.errors import IdentityError, no_extra_error
from metadata.security.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE
from metadata.security.identity_folders import check_place, put_folder, write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_FOLDER: Final = "authority"
REGISTER_FILE: Final = "register.json"
SECRET_FILE: Final = "zookeeper.secret"
"""What a cluster's processes share at ZooKeeper: one digest, that ACLs name."""
AUTHORITY_DAYS: Final = 3650
LEAF_DAYS: Final = 90
LIST_DAYS: Final = 180
"""Twice a certificate's days: each renewal makes a new list too, so that a list does not end before its users do."""
SECRET_ROLES: Final = frozenset({"node", "proxy", "operator"})
"""Who gets the secret unless said otherwise. Clients do not: those of proxies would reach past them."""
SERVER_ROLES: Final = ("node", "proxy", "zookeeper")
"""Roles that listen: their certificates name hosts."""
FIRST_ROLES: Final = ("node", "client", "proxy", "zookeeper", "operator")
_SKEW: Final = timedelta(minutes=5)
"""By so much may clocks of hosts go after the one where a certificate is made."""
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names and roles: without any sign that has a meaning in a distinguished name."""
_HOST: Final = re.compile(
    r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """One certificate that was made for a name."""

    serial: int
    begins: datetime
    ends: datetime
    revoked: datetime | None = None


@dataclass(frozen=True, slots=True)
class IssuedName:
    """For whom were certificates made?"""

    name: str
    roles: tuple[str, ...]
    hosts: tuple[str, ...]
    days: int
    certificates: tuple[IssuedCertificate, ...] = field(default=())
    """The newest one last."""
    java_roles: bool = False
    """Roles stand in one organisational unit, `0:role1,role2`, the only form that BookKeeper's bookies read."""
    shares_secret: bool = False
    """Its folder has the secret by which ZooKeeper knows the cluster's processes: it may write all metadata, the rules
    of access too."""

    @property
    def units(self) -> tuple[str, ...]:
        """The organisational units of its certificates' subject."""
        return (f"0:{','.join(self.roles)}",) if self.java_roles else self.roles

    @property
    def is_revoked(self) -> bool:
        """The newest certificate is revoked, and with it all before."""
        return bool(self.certificates) and self.certificates[-1].revoked is not None


class CertificateAuthority:
    """Who signs the certificates of a cluster? `create` makes one, `open_in` opens one that is there.

    Args:
        place: the folder, above `authority`.
        clock: the time.
    """

    def __init__(self, place: Path, clock: Callable[[], datetime]) -> None:
        self.place = place
        self._clock = clock
        self._names: dict[str, IssuedName] = {}

    @classmethod
    def create(cls, place: Path, clock: Callable[[], datetime] | None = None) -> CertificateAuthority:
        """Make an authority in a folder that does not exist, or is empty.

        Raises IdentityError; an error half-way may leave a folder that has to be removed before this is tried again.
        """
        library = _library()
        made = cls(place, clock or _now)
        try:
            if place.exists() and (not place.is_dir() or any(place.iterdir())):
                raise IdentityError(
                    "the folder is not empty; nothing was made",
                    path=str(place),
                    advice="Name another one. In the folder of an authority: dlspark tls issue, dlspark tls renew",
                )
            make_private_directory(place)
            # Of two commands at once only one makes it.
            made._folder.mkdir(mode=DIRECTORY_MODE)
        except OSError as error:
            raise IdentityError(f"the folder cannot be made: {error.strerror or error}", path=str(place)) from error
        key = library.ec.generate_private_key(library.ec.SECP256R1())
        # A name that no other authority has: lists and issuers are found by it.
        name = library.name([("CN", f"dlspark authority {secrets.token_hex(4)}")])
        begins = made._clock() - _SKEW
        certificate = (
            library.builder(name, name, key.public_key(), begins, made._clock() + timedelta(days=AUTHORITY_DAYS))
            .add_extension(library.x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(library.usage(signs_certificates=True), critical=True)
            .add_extension(library.x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, library.hashes.SHA256())
        )
        write_private(made._folder / SECRET_FILE, f"cluster:{secrets.token_urlsafe(32)}\n".encode())
        write_private(made._folder / KEY_FILE, library.key_pem(key))
        write_private(made._folder / CERTIFICATE_FILE, library.pem(certificate))
        made._write_register()
        made._write_list()
        return made

    @classmethod
    @contextmanager
    def open_in(cls, place: Path, clock: Callable[[], datetime] | None = None) -> Iterator[CertificateAuthority]:
        """Open the authority of a folder; while this lasts no other command can change it. Raises IdentityError."""
        folder = place / AUTHORITY_FOLDER
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise IdentityError(
                f"there is no authority: {error.strerror or error}",
                path=str(place),
                advice="Make one: dlspark tls init DIR",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            opened = cls(place, clock or _now)
            opened._read_register()
            yield opened
        finally:
            os.close(lock)

    def names(self) -> list[IssuedName]:
        """Return for whom certificates were made, by name."""
        return [self._names[name] for name in sorted(self._names)]

    def named(self, name: str) -> IssuedName:
        """Return what was made for a name. Raises IdentityError where nothing was."""
        found = self._names.get(name)
        if found is None:
            raise IdentityError(
                f"this authority has issued nothing to {name!r}",
                path=str(self.place),
                advice=f"It knows {', '.join(sorted(self._names)) or 'no name yet'}",
            )
        return found

    def issue(
        self,
        name: str,
        roles: Sequence[str],
        hosts: Sequence[str] = (),
        days: int = LEAF_DAYS,
        *,
        java_roles: bool = False,
        shares_secret: bool | None = None,
    ) -> IssuedName:
        """Make a certificate for a new name, and its identity folder. Raises IdentityError; nothing was made then.

        `java_roles`: as bookies of Apache BookKeeper read them (`authorizedRoles` of its BookieAuthZFactory).
        `shares_secret`: with the cluster's secret at ZooKeeper; None: where a role is one of the cluster's own.
        """
        if name in self._names:
            raise IdentityError(
                f"{name!r} has a certificate already; nothing was made",
                path=str(self.place),
                advice=f"Another one for it: dlspark tls renew {self.place} {name}",
            )
        for word in (name, *roles):
            if not _WORD.fullmatch(word) or word == AUTHORITY_FOLDER:
                raise IdentityError(
                    f"{word!r} cannot be a name or a role",
                    advice="Use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit; 'authority' is taken",
                )
        if not roles:
            raise IdentityError(f"{name!r} has no role", advice=f"Give --role: {', '.join(FIRST_ROLES)}, or your own")
        listening = [role for role in roles if role in SERVER_ROLES]
        if listening and not hosts:
            raise IdentityError(
                f"a {listening[0]} is connected to by its host's name, and none is given; nothing was made",
                advice="Give --host for each name and address by which it is reached",
            )
        for host in hosts:
            check_host(host)
        check_place(self.place / name)
        self.refresh_lists()
        if shares_secret is None:
            shares_secret = _are_the_clusters(roles)
        distinct, places = tuple(dict.fromkeys(roles)), tuple(dict.fromkeys(hosts))
        return self._make(IssuedName(name, distinct, places, days, (), java_roles, shares_secret))

    def renew(self, name: str, days: int | None = None) -> IssuedName:
        """Renew one name, as `renew_all`."""
        (made,) = self.renew_all([name], days)
        return made

    def renew_all(self, names: Sequence[str], days: int | None = None) -> list[IssuedName]:
        """Make new keys and certificates with the names' roles and hosts; the old ones hold until they end.

        Raises IdentityError: before anything is made, for a name that is unknown; else some may be renewed, and the
        others have their old folders.
        """
        wanted = [self.named(name) for name in dict.fromkeys(names)]
        self.refresh_lists()
        return [self._make(one if days is None else replace(one, days=days)) for one in wanted]

    def revoke(self, name: str) -> IssuedName:
        """Take all certificates of a name back: they are in the list from now on, here and in the folders beside.

        Raises IdentityError; giving it again ends what was begun.
        """
        found = self.named(name)
        now = self._clock()
        revoked = tuple(replace(one, revoked=one.revoked or now) for one in found.certificates)
        self._names[name] = replace(found, certificates=revoked)
        self._write_register()
        self.refresh_lists()
        return self._names[name]

    def refresh_lists(self) -> None:
        """Make the revocation list anew, for its next days, and put it into the folders beside.

        Raises IdentityError, also for a folder that does not take it: all others have it then.
        """
        self._write_list()
        failed: dict[str, IdentityError] = {}
        for name in self._names:
            folder = self.place / name
            if folder.is_dir():
                try:
                    write_private(folder.resolve() / REVOKED_FILE, self._lists_for(folder))
                except IdentityError as error:
                    failed[name] = error
        if failed:
            first = next(iter(failed.values()))
            raise IdentityError(
                f"the list of what is revoked is in all folders but {', '.join(sorted(failed))}: {first.message}",
                path=first.path,
                advice=first.advice,
            ) from first

    def certificate_pem(self) -> bytes:
        """Return the authority's own certificate. Raises IdentityError."""
        return self._read(CERTIFICATE_FILE)

    # -------------------------------------------------------------------- making

    @property
    def _folder(self) -> Path:
        return self.place / AUTHORITY_FOLDER

    def _make(self, wanted: IssuedName) -> IssuedName:
        library = _library()
        now = self._clock()
        above, signing_key = self._signer(library)
        ends = min(now + timedelta(days=wanted.days), above.not_valid_after_utc)
        key = library.ec.generate_private_key(library.ec.SECP256R1())
        subject = library.name([*(("OU", unit) for unit in wanted.units), ("CN", wanted.name)])
        builder = (
            library.builder(subject, above.subject, key.public_key(), now - _SKEW, ends)
            .add_extension(library.x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(library.usage(signs_certificates=False), critical=True)
            .add_extension(library.both_ends(), critical=False)
            .add_extension(library.x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                library.x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
            )
        )
        if wanted.hosts:
            alternatives = library.x509.SubjectAlternativeName([library.host(host) for host in wanted.hosts])
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(signing_key, library.hashes.SHA256())
        made = IssuedCertificate(
            certificate.serial_number, certificate.not_valid_before_utc, certificate.not_valid_after_utc
        )
        # What has ended cannot be used, so that it need not be revoked either: the register does not grow for ever.
        kept = tuple(one for one in wanted.certificates if one.ends > now)
        self._names[wanted.name] = replace(wanted, certificates=(*kept, made))
        self._write_register()
        files = {
            CERTIFICATE_FILE: library.pem(certificate),
            KEY_FILE: library.key_pem(key),
            AUTHORITIES_FILE: self._authorities_for(self.place / wanted.name),
            REVOKED_FILE: self._lists_for(self.place / wanted.name),
        }
        if wanted.shares_secret:
            files[SECRET_FILE] = self._read(SECRET_FILE)
        put_folder(self.place / wanted.name, files)
        return self._names[wanted.name]

    def _signer(self, library: _Library) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Return the authority's certificate and key. Raises IdentityError, also once it has ended."""
        certificate = library.x509.load_pem_x509_certificate(self.certificate_pem())
        now = self._clock()
        if now >= certificate.not_valid_after_utc:
            raise IdentityError(
                f"the authority ended at {certificate.not_valid_after_utc:%Y-%m-%d}; nothing was made",
                path=str(self.place),
                advice="Make a new one elsewhere (dlspark tls init); let both be believed until all have changed over",
            )
        try:
            key = library.serialization.load_pem_private_key(self._read(KEY_FILE), None)
        except ValueError as error:
            raise IdentityError("the authority's key is damaged", path=str(self._folder / KEY_FILE)) from error
        if not isinstance(key, library.ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise IdentityError("the authority's key is not the one of its certificate", path=str(self._folder))
        return certificate, key

    def _authorities_for(self, folder: Path) -> bytes:
        """Return this authority's certificate and others that somebody has put into the folder beside it: both are
        believed while a cluster changes from one authority to the next."""
        mine = self.certificate_pem()
        (block,) = pem_blocks(mine)
        others = [one.text for one in _blocks_in(folder / AUTHORITIES_FILE, CERTIFICATE) if one.body != block.body]
        return b"".join((mine, *others))

    def _lists_for(self, folder: Path) -> bytes:
        """Return this authority's list and those of others in the folder."""
        mine = self._read(REVOKED_FILE)
        own = read_revocations(pem_blocks(mine)[0].body)
        place = folder / REVOKED_FILE
        blocks = _blocks_in(place, REVOCATIONS)
        try:
            found = [(one.text, read_revocations(one.body)) for one in blocks]
        except ValueError as error:
            raise _kept_error(place, error) from error
        # A list of this authority from before may lack its key's number, and its name is no other one's.
        mine_too = {None, own.authority_key_id}
        others = [text for text, one in found if one.issuer != own.issuer or one.authority_key_id not in mine_too]
        return b"".join((mine, *others))

    def _write_list(self) -> None:
        """Write the list of what is revoked."""
        library = _library()
        certificate, key = self._signer(library)
        now = self._clock()
        builder = (
            library.x509.CertificateRevocationListBuilder()
            .issuer_name(certificate.subject)
            .last_update(now - _SKEW)
            .next_update(now + timedelta(days=LIST_DAYS))
            .add_extension(library.x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        )
        for name in self.names():
            for one in name.certificates:
                if one.revoked is not None:
                    entry = library.x509.RevokedCertificateBuilder().serial_number(one.serial)
                    builder = builder.add_revoked_certificate(entry.revocation_date(one.revoked).build())
        content: bytes = builder.sign(key, library.hashes.SHA256()).public_bytes(library.serialization.Encoding.PEM)
        write_private(self._folder / REVOKED_FILE, content)

    # -------------------------------------------------------------------- the register

    def _read(self, name: str) -> bytes:
        place = self._folder / name
        try:
            return place.read_bytes()
        except OSError as error:
            raise IdentityError(
                f"a file of the authority cannot be read: {error.strerror or error}", path=str(place)
            ) from error

    def _write_register(self) -> None:
        rows = {
            one.name: {
                "roles": list(one.roles),
                "hosts": list(one.hosts),
                "days": one.days,
                "java_roles": one.java_roles,
                "shares_secret": one.shares_secret,
                "certificates": [
                    {
                        "serial": f"{made.serial:x}",
                        "begins": made.begins.isoformat(),
                        "ends": made.ends.isoformat(),
                        "revoked": made.revoked.isoformat() if made.revoked else None,
                    }
                    for made in one.certificates
                ],
            }
            for one in self.names()
        }
        write_private(self._folder / REGISTER_FILE, json.dumps({"version": 1, "names": rows}, indent=1).encode())

    def _read_register(self) -> None:
        content = self._read(REGISTER_FILE)
        try:
            found = json.loads(content)
            if found["version"] != 1:
                raise ValueError(found["version"])
            self._names = {
                name: IssuedName(
                    name,
                    tuple(row["roles"]),
                    tuple(row["hosts"]),
                    int(row["days"]),
                    tuple(
                        IssuedCertificate(
                            int(made["serial"], 16),
                            datetime.fromisoformat(made["begins"]),
                            datetime.fromisoformat(made["ends"]),
                            datetime.fromisoformat(made["revoked"]) if made["revoked"] else None,
                        )
                        for made in row["certificates"]
                    ),
                    bool(row.get("java_roles", False)),
                    bool(row.get("shares_secret", _are_the_clusters(row["roles"]))),
                )
                for name, row in found["names"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IdentityError(
                "the register of certificates is damaged, or of another version; nothing was done",
                path=str(self._folder / REGISTER_FILE),
                advice="Fetch it from a backup: without it what was issued cannot be revoked",
            ) from error


def _are_the_clusters(roles: Sequence[str]) -> bool:
    """Return whether these roles are of the cluster's own processes, or of its operators."""
    return not SECRET_ROLES.isdisjoint(roles)


def _blocks_in(place: Path, label: str) -> list[PemBlock]:
    """Return the blocks of a file, which may be missing. Raises IdentityError for one that is damaged."""
    try:
        return [one for one in pem_blocks(place.read_bytes()) if one.label == label]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise _kept_error(place, error) from error


def _kept_error(place: Path, error: Exception) -> IdentityError:
    return IdentityError(
        f"what is there cannot be read, and is kept: {error}",
        path=str(place),
        advice="Remove the file if only this authority is believed, and give the command again",
    )


def check_host(text: str) -> None:
    """Raise IdentityError for what is neither a host's name nor an address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # What consists of digits and dots is a mistyped address, not a name.
        if len(text) > 253 or not _HOST.fullmatch(text) or re.fullmatch(r"[0-9.]+", text):
            raise IdentityError(
                f"{text!r} is neither a host's name nor an address",
                advice="Give names as node-1.example.org, and addresses as 10.0.0.7 or fd00::7, without a port",
            ) from None


class _Library:
    """What is used of `cryptography`, which is loaded when an authority works."""

    def __init__(self) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec
            from cryptography.x509 import oid
        except ImportError as error:
            raise no_extra_error("an authority of one's own", "cryptography") from error
        self.x509 = x509
        self.oid = oid
        self.hashes = hashes
        self.serialization = serialization
        self.ec = ec

    def name(self, parts: Sequence[tuple[str, str]]) -> x509.Name:
        kinds = {"CN": self.oid.NameOID.COMMON_NAME, "OU": self.oid.NameOID.ORGANIZATIONAL_UNIT_NAME}
        return self.x509.Name([self.x509.NameAttribute(kinds[kind], value) for kind, value in parts])

    def builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime
    ) -> x509.CertificateBuilder:
        return (
            self.x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(self.x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )

    def usage(self, *, signs_certificates: bool) -> x509.KeyUsage:
        return self.x509.KeyUsage(
            digital_signature=not signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            encipher_only=False,
            decipher_only=False,
        )

    def both_ends(self) -> x509.ExtendedKeyUsage:
        kinds = self.oid.ExtendedKeyUsageOID
        return self.x509.ExtendedKeyUsage([kinds.SERVER_AUTH, kinds.CLIENT_AUTH])

    def host(self, text: str) -> x509.GeneralName:
        check_host(text)
        try:
            return self.x509.IPAddress(ipaddress.ip_address(text))
        except ValueError:
            return self.x509.DNSName(text)

    def pem(self, certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(self.serialization.Encoding.PEM)

    def key_pem(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        form = self.serialization
        return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


_loaded: list[_Library] = []


def _library() -> _Library:
    """Return the library. Raises NoExtraError where it is not installed."""
    if not _loaded:
        _loaded.append(_Library())
    return _loaded[0]


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)
