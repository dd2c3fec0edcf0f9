"""Properties files, as Java writes them: where they may lie, and what is in them.

Files are read whole and are small. They are local: a path, or a `file:` URL as upstream's `loadConf(URL)` takes it.
Settings are not fetched over the network: a host that answered in the server's place would decide where data goes, and
nothing could be opened while that server is away. The tool that fetches the file can check it before it is used.

A key that is there twice is refused, rather than one of its values believed.
"""

from __future__ import annotations

import io
import os
import re
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from metadata.foundation.errors import DistributedLogError

MAX_FILE_BYTES: Final = 1 << 20
"""Far above any properties file; a longer one is another file by mistake."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""A scheme has two letters at least: one is a drive."""


def local_path(location: str | os.PathLike[str], error: type[DistributedLogError]) -> Path:
    """Return the path that a path or `file:` URL names. Raises `error` for other URLs."""
    written = os.fspath(location)
    if isinstance(location, os.PathLike) or not _URL.match(written):
        return Path(written)
    url = urlsplit(written)
    if url.scheme.lower() != "file" or url.netloc not in ("", "localhost"):
        raise error(
            f"{written} is not a file of this machine; nothing was read",
            advice="Fetch the file first, check it, and give its path",
        )
    return Path(url2pathname(url.path))


def read_if_exists(path: Path) -> bytes | None:
    """Return the bytes of a file, None if there is none. Raises OSError, also for a path that is not a file, and for a
    file above MAX_FILE_BYTES."""
    try:
        mode = path.stat().st_mode  # `exists` of Python 3.14 hides why it does not know.
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(mode):  # A pipe would be waited for.
        raise OSError(f"{path} is not a file")
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    return data


def parse_properties(data: bytes, path: Path, error: type[DistributedLogError]) -> dict[str, str]:
    """Return what Java's properties format says. Raises `error`, also for a key that is there twice."""
    import javaproperties  # imported late: it takes long to load, and most processes read no such file

    values: dict[str, str] = {}
    try:
        lines = [line for line in javaproperties.parse(io.BytesIO(data)) if isinstance(line, javaproperties.KeyValue)]
    except ValueError as why:
        raise error(f"the settings file {path} cannot be read: {why}", advice="Correct the file") from why
    for line in lines:
        if line.key in values:
            raise error(f"{line.key} is given twice in the settings file {path}", advice="Keep one of them")
        values[line.key] = line.value
    return values


def lines_of(data: bytes) -> dict[str, int]:
    """Return the number of the line on which each key is, from 1 on, of a text that `parse_properties` takes."""
    import javaproperties

    lines, at = {}, 1
    for element in javaproperties.parse(io.BytesIO(data)):
        if isinstance(element, javaproperties.KeyValue):
            lines[element.key] = at
        at += len(element.source.splitlines())
    return lines


def read_properties(
    location: str | os.PathLike[str], error: type[DistributedLogError], *, named_by: str
) -> dict[str, str]:
    """Return what a properties file says. Raises `error`; `named_by` says in it where the path may come from."""
    path = local_path(location, error)
    try:
        data = read_if_exists(path)
    except OSError as why:
        raise error(
            f"the settings file {path} cannot be read: {why}", advice=f"Correct the path ({named_by}) or the file"
        ) from why
    if data is None:
        raise error(f"the settings file {path} does not exist", advice=f"Correct the path ({named_by})")
    return parse_properties(data, path, error)
