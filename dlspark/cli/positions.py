"""A position as the command line takes it: a word, a DLSN, a transaction id, or a time."""

from __future__ import annotations

import difflib
import re
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import MAX_LONG, UnreadableValue
from metadata.foundation.times import read_first_ms

_WORDS: Final = ("earliest", "latest")
_DLSN: Final = re.compile(r"-?\d+:-?\d+:-?\d+", re.ASCII)
_FORMS: Final = "Give earliest, latest, a DLSN such as 3:1200:0, epoch milliseconds or a time (2013-07-01T00:00Z)"


def parse_start(text: str) -> DLSN | int | str:
    """Return a position as `open_reader` takes it: a time becomes the first transaction id that is not before it.

    Raises CallerError.
    """
    if text in _WORDS:
        return text
    if _DLSN.fullmatch(text):
        return DLSN.parse(text)
    near = difflib.get_close_matches(text.strip().lower(), _WORDS, n=1)
    if near:
        raise CallerError(f"{text!r} is not a position", advice=f"Did you mean {near[0]}?")
    try:
        first = read_first_ms(text)
    except UnreadableValue as error:
        raise CallerError(f"{text!r} is not a position; {error}", advice=_FORMS) from None
    if not 0 <= first <= MAX_LONG:
        raise CallerError(f"{text} is outside 0..{MAX_LONG}, where transaction ids are", advice=_FORMS)
    return first
