"""Which of a log's segments say something of its idempotent producers: docs/reference/znodes.md#producer-segments.

`P/producers` has `{"v":1,"newest":7,"whole":5}`: no segment above 7 was begun by a writer with producers, and the
newest whole snapshot of them lies in segment 5 or above. So a new owner looks for it in these segments alone, however
many others (upstream's, a Spark sink's, those of writers without producers) lie above them, between them and below.

It is set in the transaction that begins such a segment, so it is never behind the log: an owner that was deposed does
not set it (I7), and a request lies in no segment that is not in it (I19).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from metadata.foundation.errors import CorruptDataError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ProducerSegments:
    """Numbers (LSSN) of segments: the newest that a writer with producers began, and the one from which on a whole
    snapshot is found."""

    newest: int
    whole: int

    def encode(self) -> bytes:
        """The znode's data."""
        return json.dumps({"v": VERSION, "newest": self.newest, "whole": self.whole}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> ProducerSegments:
        """Raises CorruptDataError for anything but what `encode` makes."""
        try:
            found = json.loads(data)
        except ValueError as error:
            raise _bad(path, "it is no JSON") from error
        if not isinstance(found, dict) or found.get("v") != VERSION:
            raise _bad(path, f"it is not of version {VERSION}")
        numbers = found.get("newest"), found.get("whole")
        newest, whole = numbers
        if type(newest) is not int or type(whole) is not int or not 0 <= whole <= newest:
            raise _bad(path, f"newest and whole are {numbers}")
        return cls(newest, whole)


def _bad(path: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"what says where a log's producers are cannot be used: {what}",
        path=path,
        advice="Write the log without producers, or delete this znode: every producer of the log is forgotten then, "
        "and a request that comes again is written again",
    )
