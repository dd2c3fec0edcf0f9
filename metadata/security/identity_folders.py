"""Identity folders: how a certificate, its key and what goes with them take another one's place at once.

    DIR/node                     a symbolic link to the version that counts
    DIR/.versions/node-3f9c1a/   certificate.pem, key.pem, authorities.pem, revoked.pem, zookeeper.secret

A reader that goes by the link sees one version or the other; one that reads while the link is exchanged notices
(`identity`), and reads again. All of a version is on disk before the link names it, so that a crash leaves the old one
or the new one, whole. Old versions are deleted: a key that is replaced has no use. Copied with links followed
(`cp -rL`, `scp -r`), a folder is plain files.

Fault model: any write may fail or be the last one; what is half there is never what the link names.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from metadata.foundation.private_files import DIRECTORY_MODE, FILE_MODE
from metadata.security.errors import IdentityError

VERSIONS: Final = ".versions"


def write_private(place: Path, content: bytes) -> None:
    """Put a file, which its owner alone may read, in the place of what is there, at once and for good.

    Raises IdentityError where it cannot be written; the old one is there then.
    """
    new = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        try:
            _write_new(new, content)
            os.replace(new, place)
        except OSError:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _write_error(place, error) from error
    _confirm(place)


def check_place(place: Path) -> None:
    """Raise IdentityError where something is that no authority has put there: it is not touched."""
    if os.path.lexists(place) and not place.is_symlink():
        raise IdentityError(
            "there is something that no authority of dlspark has made; it was not touched",
            path=str(place),
            advice="Name another place, or move it away",
        )


def put_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """Put an identity folder with these files in the place of the one that is there, if any, at once.

    Raises IdentityError where it cannot be written; the old one is there then, whole.
    """
    try:
        check_place(place)
        old = place.resolve() if place.is_symlink() else None
        versions = place.parent / VERSIONS
        versions.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        version = versions / f"{place.name}-{secrets.token_hex(4)}"
        try:
            version.mkdir(mode=DIRECTORY_MODE)
            for name, content in files.items():
                _write_new(version / name, content)
            _sync_directory(version)
            _sync_directory(versions)
            _link(place, version)
        except OSError:
            shutil.rmtree(version, ignore_errors=True)
            raise
    except OSError as error:
        raise _write_error(place, error) from error
    # Only now: until the link is on disk, a crash may bring the old one back.
    _confirm(place)
    if old is not None and old.parent == versions.resolve():
        shutil.rmtree(old, ignore_errors=True)


def _link(place: Path, version: Path) -> None:
    link = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    os.symlink(os.path.join(VERSIONS, version.name), link)
    try:
        os.replace(link, place)
    except OSError:
        link.unlink(missing_ok=True)
        raise


def _write_new(place: Path, content: bytes) -> None:
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _confirm(place: Path) -> None:
    """Wait until the disk has the name. Raises IdentityError: what is new is there, and may be gone after a crash."""
    try:
        _sync_directory(place.parent)
    except OSError as error:
        raise IdentityError(
            f"it is written and in use, but the disk does not confirm it: {error.strerror or error}",
            path=str(place),
            advice="See to the disk, and give the command again",
        ) from error


def _sync_directory(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(place: Path, error: OSError) -> IdentityError:
    return IdentityError(
        f"it cannot be written: {error.strerror or error}; what was there before is still there",
        path=str(place),
        advice="See to the folder's rights and the disk's space, and give the command again",
    )
