"""The files of an identity, one by one: read whole, checked for what they are, and handed to OpenSSL from memory.

`identity` decides what is read when, and what a failure means. Errors name the file, and nothing of its content.
"""

from __future__ import annotations

import os
import ssl
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from metadata.security.certificates import (
    CERTIFICATE,
    KEY_LABELS,
    CertificateFacts,
    PemBlock,
    pem_blocks,
    read_certificate,
)
from metadata.security.errors import IdentityError

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_PASSWORD_BYTES: Final = 1024
BY_VARIABLE: Final = "env:"
"""Before the name of an environment variable that has a password, in the place of a file's path."""


@contextmanager
def in_memory(content: bytes) -> Iterator[str]:
    """Yield a path by which OpenSSL can read `content` once, while it is on no disk."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("dlspark", os.MFD_CLOEXEC)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(number, view) :]
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    reading, writing = os.pipe()
    # A pipe holds less than a file may have, so a thread of its own fills it while OpenSSL reads.
    filler = threading.Thread(target=_fill, args=(writing, content), daemon=True)
    filler.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        filler.join()


def _fill(writing: int, content: bytes) -> None:
    try:
        with open(writing, "wb") as pipe:
            pipe.write(content)
    except BrokenPipeError:
        pass  # the reader has seen enough, or refused it; it says so itself


def load_pair(
    context: ssl.SSLContext, chain: bytes, key: bytes, password: bytes | None, *, key_place: str, chain_place: str
) -> None:
    """Give a context its certificate and key, PEM. Raises IdentityError, which names the key's place."""
    # Without a password OpenSSL would ask for one at the terminal.
    asked: list[bool] = []

    def give_password() -> bytes:
        asked.append(True)
        return password if password is not None else b""

    try:
        with in_memory(chain) as chain_path, in_memory(key) as key_path:
            context.load_cert_chain(chain_path, key_path, password=give_password)
    except (OSError, ValueError) as error:  # an ssl.SSLError, or no descriptor is left
        if asked and password is None:
            reason = "the key is encrypted, and no password is named"
        elif asked:
            reason = "the key does not open with the password of the file that is named for it"
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            where = chain_place or "the same store"
            raise file_error(
                key_place,
                f"the key is not the one of the certificate in {where}",
                "Copy both from one folder of dlspark tls, or renew it: dlspark tls renew",
            ) from None
        else:
            reason = f"certificate and key cannot be used: {openssl_reason(error)}"
        # Without the cause: nothing of what it was tried with belongs in a trace.
        raise file_error(key_place, reason) from None


def open_to_all(path: str) -> bool:
    """Return whether every user of this host may read, or change, a file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IRWXO)
    except OSError:
        return False  # who needs it will say so


def read_file(path: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return a file. Raises IdentityError."""
    try:
        with open(path, "rb") as file:
            content = file.read(limit + 1)
    except FileNotFoundError as error:
        raise file_error(
            path,
            "security is on, and this file is not there",
            "Name the identity folder that dlspark tls has made, by securityDirectory, the variable DLSPARK_SECURITY "
            "or Spark's option tls.directory, or by its own key each file that lies elsewhere. A client with a token "
            "alone: tlsClientAuthentication=false",
        ) from error
    except OSError as error:
        raise file_error(path, f"it cannot be read: {error.strerror or error}") from error
    if len(content) > limit:
        raise file_error(path, f"it has more than {limit} bytes")
    return content


def blocks_of(path: str) -> Sequence[PemBlock]:
    """Return the blocks of a PEM file. Raises IdentityError."""
    try:
        return pem_blocks(read_file(path))
    except ValueError as error:
        raise file_error(path, str(error)) from error


def password_of(place: str) -> bytes | None:
    """Return the password in a file, or in the environment variable that `env:NAME` names; None: neither is named.
    Raises IdentityError."""
    if not is_variable(place):
        return read_file(place, MAX_PASSWORD_BYTES).strip() if place else None
    name = place.removeprefix(BY_VARIABLE)
    found = os.environ.get(name)
    if not found:
        raise IdentityError(
            f"the environment variable {name}, which is to hold a password, is not set, or empty",
            advice="Set it for this process (a task has the environment of its executor), or name a file",
        )
    return os.fsencode(found.strip())  # any bytes, as they were given


def is_variable(place: str) -> bool:
    """Return whether the place of a password is an environment variable, and not a file."""
    return place.startswith(BY_VARIABLE)


def certificates_of(path: str) -> list[PemBlock]:
    """Return the certificates of a PEM file. Raises IdentityError where it has none."""
    found = [one for one in blocks_of(path) if one.label == CERTIFICATE]
    if not found:
        raise file_error(path, "it holds no certificate (a PEM block of CERTIFICATE)")
    return found


def key_of(path: str) -> bytes:
    """Return the one private key of a PEM file. Raises IdentityError."""
    found = [one for one in blocks_of(path) if one.label in KEY_LABELS]
    if len(found) != 1:
        raise file_error(path, f"it holds {len(found)} private keys where one is needed")
    return found[0].text


def facts_of(der: bytes, path: str) -> CertificateFacts:
    """Return what a certificate of a file says. Raises IdentityError."""
    try:
        return read_certificate(der)
    except ValueError as error:
        raise file_error(path, f"a certificate in it cannot be read: {error}") from error


def file_error(path: str, reason: str, advice: str | None = None) -> IdentityError:
    """Return the error for a file of an identity."""
    return IdentityError(reason, path=path, advice=advice)


def openssl_reason(error: Exception) -> str:
    """Return OpenSSL's words, which name no content."""
    reason = getattr(error, "reason", None)
    if reason:
        return str(reason).replace("_", " ").lower()
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return type(error).__name__


def moment_text(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as people read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
