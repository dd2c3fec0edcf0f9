"""The search for secrets in what a run has left: files of all kinds, in the ways in which a text may stand in them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

TOKEN_HEADER = "eyJhbGciOiJFUzI1NiIs"
"""How every token begins that a key of ES256 has signed: the first claim of its header, in base64."""


def forms(secret: str) -> Iterator[bytes]:
    """Yield the ways in which a text may stand in a file."""
    plain = secret.encode()
    yield plain
    yield plain.hex().encode()
    yield secret.encode("utf-16-le")
    for shift in range(3):  # base64 of it within a longer text
        whole = base64.b64encode(b"x" * shift + plain)
        yield whole[4 if shift else 0 : -4]


def found_in(folder: Path, secrets: Mapping[str, str], known_places: Iterable[str] = ()) -> list[str]:
    """Return where a secret stands in the files of a folder, those of known places left out."""
    wanted = [(name, form) for name, secret in secrets.items() for form in forms(secret)]
    known = tuple(known_places)
    found = []
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or (known and place.startswith(known)):
            continue
        content = path.read_bytes()
        found += [f"{name} in {place}" for name, form in wanted if form in content]
    return found


def secrets_of_folders(place: Path) -> dict[str, str]:
    """Return what is secret in identity folders: a line of each private key, and the secret of ZooKeeper."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        if path.name == "key.pem":
            found[f"key of {path.parent}"] = path.read_text().splitlines()[2]
        elif path.name == "zookeeper.secret":
            found[f"secret of {path.parent}"] = path.read_text().strip().partition(":")[2]
    return found


def secret_of_signing_key(path: Path) -> str:
    """Return the private number of a signing key."""
    return str(json.loads(path.read_text())["d"])
