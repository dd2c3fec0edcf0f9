"""Which streams a client wants to hear of: a regular expression from a client, matched in bounded steps. No I/O.

Python's own expressions may take exponential time on a short text; here they are RE2's, which Arrow has: no back
references, no looking around, and time that grows with the text alone. But it grows with the expression, too, and three
counted repetitions are a billion of what they repeat. So an expression is bounded as if its repetitions were written
out, and names are matched a slice at a time: between two slices the proxy does other things.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from metadata.foundation.errors import CallerError

MAX_REGEX_CHARS: Final = 2048
"""Of an expression, each counted repetition taken as so many times the whole. Any name fits, each character escaped."""
SLICE_CHARS: Final = 2048
"""Of the names that are matched in one step, which takes some 50 ms with the worst expression."""
_COUNTED: Final = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_EVERYTHING: Final = (None, ".*")


def takes_all(regex: str | None) -> bool:
    """Return whether every stream matches, so that nothing has to be tried."""
    return regex in _EVERYTHING


def matching(streams: Sequence[str], regex: str | None) -> Iterator[list[str]]:
    """Yield the streams that match as a whole, in their order; all of them without an expression. Each step matches a
    slice.

    The first step raises CallerError for an expression that is too long, or that RE2 does not understand.
    """
    if regex in _EVERYTHING or regex is None:
        yield list(streams)
        return
    _check_length(regex)
    try:
        # Alone first: what is put around it must not make a whole of it.
        pc.match_substring_regex(pa.array([""]), regex)
        for part in _slices(streams):
            matched = pc.match_substring_regex(pa.array(part, pa.string()), rf"\A(?:{regex})\z")
            yield [stream for stream, found in zip(part, matched.to_pylist(), strict=True) if found]
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise CallerError(
            f"not a regular expression: {error}", advice="RE2's are understood: no references, no looking around"
        ) from error


def _check_length(regex: str) -> None:
    length = len(regex)
    if length <= MAX_REGEX_CHARS:  # else not even looked at
        counts = [max(int(number[:9] or 0) for number in found) for found in _COUNTED.findall(regex)]
        length *= prod(max(count, 1) for count in counts)
    if length > MAX_REGEX_CHARS:
        raise CallerError(
            f"the regular expression is longer than {MAX_REGEX_CHARS} characters, its repetitions written out",
            advice="Ask for all streams, and choose among them",
        )


def _slices(streams: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    chars = 0
    for stream in streams:
        part.append(stream)
        chars += len(stream)
        if chars >= SLICE_CHARS:
            yield part
            part, chars = [], 0
    if part:
        yield part
