"""The file of a node's SCRAM users: stored keys, from which nobody enters, in JSON.

    {"version": 1, "decoy": BASE64, "users": {NAME: {"salt": BASE64, "iterations": 4096, "stored_key": BASE64,
     "server_key": BASE64}}}

It is a file and not a znode, as certificates and revocation lists are that lie beside it: whoever may write ledgers'
metadata must not make users by that, a node must be able to refuse while ZooKeeper is away, and stored keys, against
which passwords can be tried, do not belong where every client looks. Nodes read it anew when it changes.

Changes are one writer's at a time (a lock on the file's directory) and replace the file whole, so a reader finds the
old or the new one. `decoy` is a secret from which the salts of unknown names are made: nodes that share the file answer
alike, so unknown names cannot be told by asking two.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.security.sasl.scram import DEFAULT_ITERATIONS, StoredKeys

VERSION: Final = 1
MAX_CREDENTIALS_BYTES: Final = 16 * 1024 * 1024
_DECOY_BYTES: Final = 32
_PASSWORD_BYTES: Final = 32


class CredentialsError(CallerError):
    """The file of SCRAM users cannot be used; nothing was done."""


@dataclass(frozen=True, slots=True)
class ScramUsers:
    """Who may prove what by SCRAM?"""

    decoy: bytes = field(repr=False)
    users: Mapping[str, StoredKeys]
    decoy_iterations: int = DEFAULT_ITERATIONS
    """What an unknown name is said to have: the number that most users have."""


def read_scram_users(path: str | os.PathLike[str]) -> ScramUsers:
    """Read the file. Raises CredentialsError, also where everybody may read it; it shows none of the content."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_CREDENTIALS_BYTES + 1)
    except OSError as cause:
        raise CredentialsError(f"the file of SCRAM users cannot be read: {cause.strerror}", path=str(path)) from cause
    if mode & stat.S_IRWXO:
        raise CredentialsError(
            "others may read or write the file of SCRAM users", path=str(path), advice=f"Take it away: chmod o= {path}"
        )
    if len(content) > MAX_CREDENTIALS_BYTES:
        raise CredentialsError(f"the file of SCRAM users is over {MAX_CREDENTIALS_BYTES} bytes", path=str(path))
    return _parse(content, str(path))


def write_scram_user(path: str | os.PathLike[str], name: str, keys: StoredKeys) -> bool:
    """Add a user, or give it other keys; make the file if there is none. Return whether the user is new."""
    with _changing(Path(path)) as users:
        new = name not in users
        users[name] = keys
    return new


def remove_scram_user(path: str | os.PathLike[str], name: str) -> None:
    """Take a user away. Raises CredentialsError where there is none of that name."""
    with _changing(Path(path)) as users:
        if name not in users:
            raise CredentialsError(f"there is no SCRAM user {name!r}; nothing was changed", path=str(path))
        del users[name]


def make_password_file(path: str | os.PathLike[str]) -> bool:
    """Make a file with a random password for its owner alone, unless there is a file already. Return whether it was
    made. Raises CredentialsError.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(_PASSWORD_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    except OSError as cause:
        raise CredentialsError(f"the password's file cannot be made: {cause.strerror}", path=str(path)) from cause
    return True


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, StoredKeys]]:
    """Give the users to be changed, under a lock, and replace the file with them unless an error is raised."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as cause:
        raise CredentialsError(f"the folder cannot be opened: {cause.strerror}", path=str(path.parent)) from cause
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists():
            found = read_scram_users(path)
        else:
            found = ScramUsers(secrets.token_bytes(_DECOY_BYTES), {})
        users = dict(found.users)
        yield users
        try:
            _replace(path, _text(replace(found, users=users)), folder)
        except OSError as cause:
            raise CredentialsError(
                f"the file of SCRAM users could not be written, and is as before: {cause.strerror}", path=str(path)
            ) from cause
    finally:
        os.close(folder)


def _replace(path: Path, text: str, folder: int) -> None:
    """Put a new file in the place of the old one, with its owner and mode; a new one is for its owner alone."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            if path.exists():
                was = path.stat()
                # The group before its rights: nodes under another user read the file by their group.
                if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), was.st_uid, was.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(was.st_mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        os.fsync(folder)
    finally:
        temporary.unlink(missing_ok=True)


def _text(users: ScramUsers) -> str:
    content = {
        "version": VERSION,
        "decoy": _written(users.decoy),
        "users": {
            name: {
                "salt": _written(keys.salt),
                "iterations": keys.iterations,
                "stored_key": _written(keys.stored_key),
                "server_key": _written(keys.server_key),
            }
            for name, keys in sorted(users.users.items())
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _parse(content: bytes, path: str) -> ScramUsers:
    try:
        found = json.loads(content)
        if found["version"] != VERSION:
            raise CredentialsError(f"the file of SCRAM users is of version {found['version']!r}", path=path)
        decoy = _read(found["decoy"])
        if len(decoy) != _DECOY_BYTES:
            raise ValueError("decoy")
        users = {
            str(name): StoredKeys(
                _read(keys["salt"]), int(keys["iterations"]), _read(keys["stored_key"]), _read(keys["server_key"])
            )
            for name, keys in found["users"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # Without the cause: its text may hold a piece of the file.
        raise CredentialsError(
            "the file of SCRAM users is not what `dlspark scram` writes; nobody is let in by it", path=path
        ) from None
    counts = Counter(keys.iterations for keys in users.values())
    return ScramUsers(decoy, users, counts.most_common(1)[0][0] if counts else DEFAULT_ITERATIONS)


def _written(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _read(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as cause:
        raise ValueError("base64") from cause
