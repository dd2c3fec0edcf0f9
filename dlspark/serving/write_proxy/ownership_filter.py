"""Which streams a client wants to hear of: a regular expression from a client, matched in linear time. No I/O.

Python's own expressions may take exponential time on a short text; here they are RE2's, which Arrow has: no back
references, no looking around, and time that grows with the text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from metadata.foundation.errors import CallerError

MAX_REGEX_CHARS: Final = 1024
_EVERYTHING: Final = ".*"


def matching(streams: Sequence[str], regex: str | None) -> list[str]:
    """The streams that match as a whole, in their order; all of them without an expression.

    Raises CallerError for an expression that is too long, or that RE2 does not understand.
    """
    if regex is None or regex == _EVERYTHING:
        return list(streams)
    if len(regex) > MAX_REGEX_CHARS:
        raise CallerError(
            f"a regular expression of {len(regex)} characters is longer than {MAX_REGEX_CHARS}",
            advice="Ask for all streams, and choose among them",
        )
    try:
        # Alone first: what is put around it must not make a whole of it.
        pc.match_substring_regex(pa.array([""]), regex)
        matched = pc.match_substring_regex(pa.array(streams, pa.string()), rf"\A(?:{regex})\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise CallerError(
            f"not a regular expression: {error}", advice="RE2's are understood: no references, no looking around"
        ) from error
    return [stream for stream, found in zip(streams, matched.to_pylist(), strict=True) if found]
