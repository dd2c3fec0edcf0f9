"""`Access`: which identities a session shows to ZooKeeper, and which ones may do what with the znodes that it creates.

ZooKeeper knows a session by all the identities that it has shown: the subject of its certificate (`x509`), and names
with passwords (`digest`). A znode has a list of identities with rights; a session none of whose identities is in it has
none. There are no roles and no patterns there: an entry of `x509` is one whole subject.

So the processes of a cluster, which all write the same znodes, share one identity: a digest, whose name and password
are in a file of every identity folder (`zookeeper.secret`). A certificate alone cannot be that: what creates a znode
for its own subject shuts all others out, `zkEnableSecurity` of Java software among them, which counts on one principal
of Kerberos for all. Subjects can be named beside it (`zkAclIdentities`), for software that cannot show a digest.

A digest's password is clear text to ZooKeeper, so it is shown by TLS alone; but for upstream's `zkAclId`, which never
was a secret: its name is its password.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.security.secrets import Secret, secret_from_file

_SHA1_BYTES: Final = 20
"""Of the hash by which ZooKeeper knows a digest identity: its format."""
SECRET_FILE: Final = "zookeeper.secret"
"""In an identity folder: one line `name:password`, the same for all processes of a cluster."""

READ: Final = 1
ALL: Final = 31
_LETTERS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
_SCHEMES: Final = ("digest", "x509", "sasl", "ip", "world")


@dataclass(frozen=True, slots=True, order=True)
class AclEntry:
    """Which identity has which rights on a znode?

    Args:
        scheme: `digest`, `x509`, `sasl`, `ip` or `world`.
        identity: as ZooKeeper has it: a subject in the form of RFC 2253, `name:base64(sha1(name:password))`, `anyone`.
        rights: the sum of 1 (read), 2 (write), 4 (create), 8 (delete), 16 (administer).
    """

    scheme: str
    identity: str
    rights: int = ALL

    def __str__(self) -> str:
        letters = "".join(letter for letter in "cdrwa" if self.rights & _LETTERS[letter])
        return f"{self.scheme}:{self.identity}:{letters}"

    @classmethod
    def parse(cls, text: str) -> AclEntry:
        """Take an entry of ZooKeeper's own form, `scheme:identity` or `scheme:identity:rights` (letters of `cdrwa`); a
        digest's identity has its password hashed. Raises CallerError."""
        scheme, colon, rest = text.strip().partition(":")
        identity, last, letters = rest.rpartition(":")
        if last and letters and set(letters) <= _LETTERS.keys():
            rights = sum(_LETTERS[letter] for letter in set(letters))
        else:
            identity, rights = rest, ALL
        entry = cls(scheme, identity, rights)
        if not colon or scheme not in _SCHEMES or not identity:
            raise _form_error(text, f"it begins with one of {', '.join(f'{name}:' for name in _SCHEMES)} and a name")
        if scheme == "digest" and not _is_hashed(identity):
            raise _form_error("digest:...", "a digest is name:base64(sha1(name:password)), never with the password")
        if scheme == "world" and identity != "anyone":
            raise _form_error(text, "of the scheme world there is `anyone` alone")
        return entry


WORLD_READS: Final = AclEntry("world", "anyone", READ)
OPEN: Final = (AclEntry("world", "anyone", ALL),)
"""What a znode without a list of its own has: everybody may do everything."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Which identity does a session show, beside its certificate? A digest: `name:password`."""

    secret: Secret

    def entry(self, rights: int = ALL) -> AclEntry:
        """Return the entry of a list that means this identity."""
        text = self.secret.reveal()
        hashed = base64.b64encode(hashlib.sha1(text.encode(), usedforsecurity=False).digest()).decode()
        return AclEntry("digest", f"{text.partition(':')[0]}:{hashed}", rights)


@dataclass(frozen=True, slots=True)
class Access:
    """Which identities does a session show, and who may do what with what it creates?

    Args:
        credentials: what it shows.
        entries: the list of each znode that it creates; empty: everybody may do everything.
        needs_tls: the credentials are secrets, which must not be sent in clear text.
    """

    credentials: tuple[Credential, ...] = ()
    entries: tuple[AclEntry, ...] = ()
    needs_tls: bool = False


NO_IDENTITY: Final = Access()


def access_by_id(acl_id: str, *, restrict: bool = True) -> Access:
    """Return upstream's `zkAclId`: a digest whose name is its password. What is created is its own to change and
    everybody's to read; without `restrict`, everybody's."""
    if not acl_id:
        return NO_IDENTITY
    credential = Credential(Secret(f"{acl_id}:{acl_id}"))
    return Access((credential,), (credential.entry(), WORLD_READS) if restrict else ())


def shared_credential(path: str | os.PathLike[str]) -> Credential:
    """Read the identity that a cluster's processes share. Raises CallerError where the file is not to be read, is open
    to everybody, or is not `name:password`."""
    secret = secret_from_file(path)
    name, colon, password = secret.reveal().partition(":")
    if not (name and colon and password) or len(secret.reveal().splitlines()) != 1:
        raise CallerError("the secret for ZooKeeper is one line, name:password", path=str(path))
    return Credential(secret)


def folder_credential(folder: Path) -> Credential | None:
    """Return the shared identity of an identity folder, None where it has none. Raises CallerError as
    `shared_credential`."""
    path = folder / SECRET_FILE
    return shared_credential(path) if path.exists() else None


def named_identities(text: str) -> tuple[AclEntry, ...]:
    """Return the entries of a setting, separated by semicolons: subjects have commas. Raises CallerError."""
    return tuple(AclEntry.parse(part) for part in text.split(";") if part.strip())


def shared_entries(
    credential: Credential | None, named: Iterable[AclEntry], *, world_reads: bool
) -> tuple[AclEntry, ...]:
    """Return the list of what a cluster's processes create: the shared identity and those named, and reading for
    everybody where that is wanted. Empty where nothing is left to be named: such a list would shut everybody out."""
    entries = [] if credential is None else [credential.entry()]
    entries += [entry for entry in named if entry not in entries]
    if not any(entry.rights == ALL for entry in entries):
        return ()
    return (*entries, WORLD_READS) if world_reads and WORLD_READS not in entries else tuple(entries)


def _is_hashed(identity: str) -> bool:
    _, colon, hashed = identity.partition(":")
    try:
        return bool(colon) and len(base64.b64decode(hashed, validate=True)) == _SHA1_BYTES
    except ValueError:
        return False


def _form_error(text: str, rule: str) -> CallerError:
    return CallerError(f"{text!r} is no entry of an access control list: {rule}", advice="For example x509:CN=a,OU=b:r")
