"""Addresses of objects: what may be a root, and what may be a name below it. Pure.

    file:///folder/...         (or an absolute path, which is turned into this form)
    s3://bucket/prefix/...
    hdfs://host:port/folder/...

Addresses are kept in znodes, in tables of other engines and in their logs, and each of those escapes odd characters in
its own way. So only characters that none of them escapes are taken, in roots and in names; an address is its own
text everywhere. A name never leads out of its root: no part of it is empty, "." or "..", or begins with a dot, which is
how temporary names begin.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from typing import Final

from dlspark.objects.errors import ObjectAddressError

FILE: Final = "file"
_FILE_URL: Final = f"{FILE}://"
S3: Final = "s3"
HDFS: Final = "hdfs"
SCHEMES: Final = (FILE, S3, HDFS)
OBJECT_SUFFIX: Final = ".parquet"
"""Of the names of cold files: an address that ends so is an object's, and none that ends so is a root."""
MAX_ADDRESS_CHARS: Final = 1000
"""S3 takes keys of 1,024 bytes."""
MAX_PART_CHARS: Final = 200
"""File systems take 255 bytes a part; temporary names are longer than the object's."""

_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/]*)(?P<path>(?:/.*)?)", re.DOTALL)
_PART: Final = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]*")
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.(.+)")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST_AND_PORT: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """Below which address are all objects of a store?

    Args:
        scheme: file, s3 or hdfs.
        authority: the bucket, or host and port; empty for files.
        path: begins with a slash and ends with none; empty for the whole bucket or file system.
    """

    scheme: str
    authority: str
    path: str

    @property
    def url(self) -> str:
        """The address, without a slash at the end."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def name_of(self, url: str) -> str:
        """Return an object's address as its name below the root, `a/b/c`. Raises ObjectAddressError."""
        name = self._below(url)
        _check_parts(name.split("/"), url)
        return name

    def folder_of(self, prefix: str) -> str:
        """Return a folder's address, with a slash at its end, as its name below the root: "" or `a/b/`. Raises
        ObjectAddressError."""
        if prefix in (self.url, f"{self.url}/"):
            return ""
        if not prefix.endswith("/"):
            raise ObjectAddressError(
                "What is listed is a folder, whose address ends with a slash; nothing was asked of the store",
                path=prefix,
            )
        name = self._below(prefix)
        _check_parts(name[:-1].split("/"), prefix)
        return name

    def url_of(self, name: str) -> str:
        """Return the address of a name below the root."""
        return f"{self.url}/{name}"

    def _below(self, url: str) -> str:
        if not url.startswith(f"{self.url}/"):
            raise ObjectAddressError(
                f"The address does not lie below {self.url}; nothing was asked of the store", path=url
            )
        if len(url) > MAX_ADDRESS_CHARS:
            raise ObjectAddressError(
                f"The address is longer than {MAX_ADDRESS_CHARS} characters; nothing was asked of the store",
                path=f"{url[:80]}...",
            )
        return url[len(self.url) + 1 :]


def parse_root(address: str) -> StoreRoot:
    """Return a root by its address, or by the absolute path of a folder. Raises ObjectAddressError."""
    whole = f"file://{address}" if address.startswith("/") else address
    found = _ADDRESS.fullmatch(whole)
    if found is None or found["scheme"] not in SCHEMES:
        raise ObjectAddressError(
            f"{address!r} is no place for objects",
            advice="Give an absolute path, or an address that begins with file:///, s3:// or hdfs://",
        )
    scheme, authority, path = found["scheme"], found["authority"], found["path"].rstrip("/")
    _check_authority(scheme, authority, address)
    if scheme == FILE:
        authority = ""  # one address for each place: file://localhost/a is file:///a
    if path:
        _check_parts(path[1:].split("/"), address, dots=scheme == FILE)
    elif scheme == FILE:
        raise ObjectAddressError("The root of the file system is no place for objects", path=address)
    if path.endswith(OBJECT_SUFFIX):
        raise ObjectAddressError(f"A folder for objects may not be called *{OBJECT_SUFFIX}", path=address)
    return StoreRoot(scheme, authority, path)


def root_of(address: str) -> StoreRoot:
    """Return the root by which an object is read, whose whole address (it ends with `.parquet`) is all that is known:
    the bucket, the file system of HDFS, or the folder of a file. Any other address is a root itself.

    Raises ObjectAddressError.
    """
    if not address.endswith(OBJECT_SUFFIX):
        return parse_root(address)
    root = parse_root(address.rpartition("/")[0])
    return root if root.scheme == FILE else StoreRoot(root.scheme, root.authority, "")


def same_folder(one: str, other: str) -> bool:
    """Return whether two addresses of files or folders are one thing on this host: by links, or mounted twice. Those of
    other stores are told apart by their text alone."""
    if not (one.startswith(_FILE_URL) and other.startswith(_FILE_URL)):
        return one == other
    first, second = one[len(_FILE_URL) :], other[len(_FILE_URL) :]
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False  # one of them is not there, so nothing of the other's is in it


def is_part(text: str) -> bool:
    """Return whether a text may be a part of an object's name."""
    return _PART.fullmatch(text) is not None and len(text) <= MAX_PART_CHARS


def temporary_name(last: str) -> str:
    """Return a new name for the file that an object is written into, by the last part of the object's name."""
    return f".{secrets.token_hex(8)}.{last}"


def name_of_temporary(last: str) -> str | None:
    """Return the last part of the object's name that a temporary file is for; None for any other file."""
    found = _TEMPORARY.fullmatch(last)
    return found[1] if found is not None else None


def _check_authority(scheme: str, authority: str, address: str) -> None:
    if "@" in authority:
        # The address is not repeated: it holds a password, perhaps.
        raise ObjectAddressError(
            f"An address of {scheme} may not name a user or a key",
            advice="Credentials come from the environment, and are never part of an address",
        )
    if scheme == FILE and authority not in ("", "localhost"):
        raise ObjectAddressError("A file's address has no host: three slashes follow the colon", path=address)
    if scheme == S3 and _BUCKET.fullmatch(authority) is None:
        raise ObjectAddressError("What stands behind the two slashes is not a bucket's name", path=address)
    if scheme == HDFS and _HOST_AND_PORT.fullmatch(authority) is None:
        raise ObjectAddressError("What stands behind the two slashes is not a host with its port", path=address)


def _check_parts(parts: list[str], address: str, *, dots: bool = False) -> None:
    """Raise ObjectAddressError unless each part may be one of an address; `dots` lets parts begin with a dot."""
    for part in parts:
        plain = part.lstrip(".") if dots and part not in (".", "..") else part
        if not is_part(plain):
            raise ObjectAddressError(
                f"{part!r} cannot be a part of an object's address; nothing was asked of the store",
                path=ascii(address)[1:-1],
                advice="Parts consist of A-Z a-z 0-9 . _ = + @ , - and begin with no dot: an address is kept in "
                "znodes and in tables of other engines, which would escape other characters each in its own way",
            )
