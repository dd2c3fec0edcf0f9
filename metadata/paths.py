"""Znode paths and request sizes: the checks that both stores make before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.store import Create, Op, SetData

MAX_REQUEST_BYTES: Final = 1_000_000
"""Largest request sent, counted generously. ZooKeeper's own default limit is 1,048,575 bytes, and it answers a larger
one by closing the connection, which would look like an unknown outcome."""

_OVERHEAD_BYTES: Final = 80  # a request's or operation's own fields, rounded up
_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
# What lies beyond U+FFFF is a pair of surrogates to Java, and refused as such.


def check_path(path: str) -> None:
    """Raise CallerError unless ZooKeeper accepts `path`."""
    fault = None
    if not path.startswith("/"):
        fault = "does not begin with '/'"
    elif path != "/" and path.endswith("/"):
        fault = "ends with '/'"
    elif "//" in path:
        fault = "has an empty component"
    elif _REFUSED.search(path):
        fault = "has a character that ZooKeeper refuses"
    elif any(part in (".", "..") for part in path.split("/")):
        fault = "has a relative component"
    if fault is not None:
        raise CallerError(f"invalid znode path {path!r}: {fault}", path=path)


def check_request(ops: Sequence[Op]) -> None:
    """Raise CallerError for a bad path, an operation on the root, or a request above MAX_REQUEST_BYTES."""
    for op in ops:
        check_path(op.path)
        if op.path == "/" and not isinstance(op, SetData):
            raise CallerError("the root znode can be neither created, deleted nor checked", path=op.path)
    size = request_bytes(ops)
    if size > MAX_REQUEST_BYTES:
        raise CallerError(
            f"a metadata request of {len(ops)} operations and {size} bytes exceeds {MAX_REQUEST_BYTES}",
            path=ops[0].path if ops else None,
            advice="Nothing was sent. Split the request, or store less in one znode",
        )


def request_bytes(ops: Sequence[Op]) -> int:
    """Bytes of a request of these operations, counted generously."""
    data = sum(len(op.data) for op in ops if isinstance(op, Create | SetData))
    return _OVERHEAD_BYTES + data + sum(_OVERHEAD_BYTES + len(op.path.encode("utf-8")) for op in ops)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def join(parent: str, *names: str) -> str:
    """`parent` with `names` below it; the root does not get a second slash."""
    base = "" if parent == "/" else parent
    return "/".join((base, *names))


def ancestors(path: str) -> list[str]:
    """Every proper ancestor except the root, outermost first."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
