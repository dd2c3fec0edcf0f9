"""The search for secrets in what a run has left: files of all kinds, in the ways in which a secret may stand in them.

What Spark has compressed is searched as it was before. A file whose compression is not known here is an error: nobody
could say what is in it.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

TOKEN_HEADER = "eyJhbGciOiJFUzI1NiIs"
"""How every token begins that a key of ES256 has signed: the first claim of its header, in base64."""

_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_GZIP: Final = b"\x1f\x8b\x08"
_UNREADABLE: Final = {".lz4", ".lzf", ".snappy", ".bz2", ".xz"}
_CHUNK: Final = 1 << 20


def forms(secret: str | bytes) -> Iterator[bytes]:
    """Yield the ways in which a text, or bytes, may stand in a file."""
    plain = secret.encode() if isinstance(secret, str) else secret
    yield plain
    yield plain.hex().encode()
    if isinstance(secret, str):
        yield secret.encode("utf-16-le")
    for shift in range(3):  # base64 of it within a longer text
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"x" * shift + plain)[4 if shift else 0 : -4]


def found_in(folder: Path, secrets: Mapping[str, str | bytes], known_places: Iterable[str] = ()) -> list[str]:
    """Return where a secret stands in the files of a folder, those of known places left out."""
    wanted = [(name, form) for name, secret in secrets.items() for form in dict.fromkeys(forms(secret))]
    known = tuple(known_places)
    found: dict[str, None] = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or (known and place.startswith(known)):
            continue
        for content in _contents(path):
            found |= {f"{name} in {place}": None for name, form in wanted if form in content}
    return list(found)


def empty_places(folder: Path, places: Iterable[str]) -> list[str]:
    """Return the patterns of places for which there is no file with anything in it: a search there proves nothing."""
    return [place for place in places if not any(path.is_file() and path.stat().st_size for path in folder.glob(place))]


def _contents(path: Path) -> Iterator[bytes]:
    """Yield what is in a file: as it is, and where it is compressed as it was before."""
    if path.suffix in _UNREADABLE:
        raise ValueError(f"{path} is compressed in a way that the search does not know")
    content = path.read_bytes()
    yield content
    if content.startswith(_ZSTD):
        yield _read_on(pa.CompressedInputStream(pa.BufferReader(content), "zstd"))
    elif content.startswith(_GZIP):
        yield _read_on(gzip.GzipFile(fileobj=io.BytesIO(content)))


def _read_on(stream: pa.NativeFile | gzip.GzipFile) -> bytes:
    """Return all that can be read of a stream: the end of a file that is being written is missing."""
    found = b""
    with contextlib.suppress(OSError, EOFError):
        while more := stream.read(_CHUNK):
            found += more
    return found


def secrets_of_folders(place: Path) -> dict[str, str | bytes]:
    """Return what is secret in identity folders: of each private key a line and its number, and the secret of
    ZooKeeper."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    found: dict[str, str | bytes] = {}
    for path in sorted(place.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        if path.name == "key.pem":
            found[f"key of {path.parent}"] = path.read_text().splitlines()[2]
            key = load_pem_private_key(path.read_bytes(), None)
            assert isinstance(key, EllipticCurvePrivateKey)
            found[f"number of {path.parent}"] = key.private_numbers().private_value.to_bytes(32, "big")
        elif path.name == "zookeeper.secret":
            found[f"secret of {path.parent}"] = path.read_text().strip().partition(":")[2]
    return found


def secret_of_signing_key(path: Path) -> str:
    """Return the private number of a signing key."""
    return str(json.loads(path.read_text())["d"])
