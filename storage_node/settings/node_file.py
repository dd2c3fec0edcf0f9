"""A new node's configuration file: the shipped, commented one with this node's values in the places of the defaults.

The shipped file, `bookie.conf` beside this module, is the repository's conf/bookie.conf: a link there, a copy of it in
what is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TextIO

from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def shipped() -> str:
    """The text of the shipped file: every key with its default, and what it means."""
    return resources.files(__package__).joinpath("bookie.conf").read_text("utf-8")


def filled(values: Mapping[str, str]) -> str:
    """The shipped file with `values` by key; a key that stands there as a comment is no comment then.

    Raises BookieConfigurationError for a key that the file does not have, and for a value that no node would take.
    """
    text = shipped()
    for key, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise BookieConfigurationError(
                f"{key}={value!r} cannot stand in a properties file as it is",
                advice="Use printable ASCII without spaces at the ends",
            )
        # Twice escaped: a backslash for the properties file's sake, and each of those for the replacement's.
        line = f"{key}={value}".replace("\\", "\\" * 4)
        text, found = re.subn(rf"^#?{re.escape(key)}=.*$", line, text, flags=re.MULTILINE)
        if found != 1:
            raise BookieConfigurationError(f"bookie.conf has no key {key}", advice="Name one of the keys that it has")
    import javaproperties

    BookieSettings.from_mapping(javaproperties.loads(text))
    return text


def write(path: Path, values: Mapping[str, str]) -> None:
    """Write `filled(values)` to a new file, its directory made if need be.

    Raises BookieConfigurationError where something is there already: it is not touched; and where the file cannot be
    written: none is left then.
    """
    text = filled(values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="ascii") as file:
            _written(file, path, text)
    except FileExistsError as error:
        raise BookieConfigurationError(
            "there is a file already; it was not touched", path=str(path), advice="Name another place, or remove it"
        ) from error
    except OSError as error:
        raise BookieConfigurationError(
            f"the configuration cannot be written: {error.strerror or error}",
            path=str(path),
            advice="Name another place",
        ) from error


def _written(file: TextIO, path: Path, text: str) -> None:
    try:
        file.write(text)
        file.flush()
    except OSError:
        path.unlink()
        raise
