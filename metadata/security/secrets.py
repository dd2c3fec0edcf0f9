"""`Secret`: a text that shows itself nowhere: not in `repr`, messages, logs, pickles or copies of settings.

Who needs the text asks for it by name (`reveal`), at the place where it is used, so that a search for that name finds
every such place.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from metadata.foundation.errors import CallerError

MAX_SECRET_BYTES = 64 * 1024


class Secret:
    """Which text must nobody see? Equal to another one of the same text, compared in constant time."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, to be used and not kept."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    __hash__ = None  # type: ignore[assignment]  # a hash table would show by its timing which texts are equal

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: hand over the name of its file or variable")


def secret_from_file(path: str | os.PathLike[str], error: Callable[..., CallerError] = CallerError) -> Secret:
    """Read a secret from a file, without the line's end.

    Raises `error` where the file cannot be read, is empty or too long, or where others than its owner and group may
    read it.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as cause:
        raise error(f"the secret's file cannot be read: {cause.strerror or cause}", path=str(place)) from cause
    if mode & stat.S_IRWXO:
        raise error(
            "everybody may read the secret's file", path=str(place), advice=f"Take the right away: chmod o= {place}"
        )
    return _checked(content, error, path=str(place))


def secret_from_environment(
    name: str, error: Callable[..., CallerError] = CallerError, environment: Mapping[str, str] | None = None
) -> Secret:
    """Read a secret from an environment variable. Raises `error` where it is not set, or empty."""
    text = (os.environ if environment is None else environment).get(name)
    if text is None:
        raise error(f"the environment variable {name}, which is to hold a secret, is not set")
    return _checked(text.encode(), error)


def _checked(content: bytes, error: Callable[..., CallerError], path: str | None = None) -> Secret:
    if len(content) > MAX_SECRET_BYTES:
        raise error(f"the secret is longer than {MAX_SECRET_BYTES} bytes", path=path)
    try:
        text = content.decode()
    except UnicodeDecodeError as cause:
        raise error("the secret is not a text in UTF-8", path=path) from cause
    text = text.rstrip("\r\n")
    if not text:
        raise error("the secret is empty", path=path)
    return Secret(text)
