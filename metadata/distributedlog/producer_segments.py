"""Which of a log's segments say something of its idempotent producers: docs/reference/znodes.md#producer-segments.

`P/producers` has `{"v":1,"newest":7,"whole":5}`: no segment above 7 was begun by a writer with producers, and the
newest whole snapshot of them lies in segment 5 or above. So a new owner looks for it in these segments alone, however
many others (upstream's, a Spark sink's, those of writers without producers) lie above them, between them and below.

It is set in the transaction that begins such a segment, so it is never behind the log: an owner that was deposed does
not set it (I7), and a request lies in no segment that is not in it (I19).

So it also says when something was lost: a snapshot was there, and the segments that could have it are gone. How often
that was found is in `losses`, in version 2, `{"v":2,"newest":9,"whole":9,"losses":1}`: an older dlspark, which takes
what was lost for what was never written, refuses it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from metadata.foundation.errors import CorruptDataError

VERSION: Final = 1
LOSSES_VERSION: Final = 2
"""Of one that says that something was lost."""


@dataclass(frozen=True, slots=True)
class ProducerSegments:
    """From which segment on must a writer read to know all producers? Numbers (LSSN): the newest that a writer with
    producers began, and the one from which on a whole snapshot is found.
    """

    newest: int
    whole: int
    losses: int = 0
    """How often what was known of the log's producers was found to be gone."""

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields = {"v": LOSSES_VERSION if self.losses else VERSION, "newest": self.newest, "whole": self.whole}
        if self.losses:
            fields["losses"] = self.losses
        return json.dumps(fields, separators=(",", ":")).encode()

    def is_lost(self, first: int | None, assigned: int) -> bool:
        """Return whether a segment may be gone that had the newest whole snapshot, where no segment of the log has one.

        `first`: the number of the log's first segment, None for none. `assigned`: the highest number given so far.
        """
        if first is not None:
            return self.whole < first  # segments leave a log from its head
        # Recovery removes an empty segment and gives its number again; any other was taken away. Where the newest was
        # empty, that shows by no number: but a snapshot may be stored below it, and is gone as well (I19).
        return assigned > self.newest or self.whole < self.newest

    @classmethod
    def decode(cls, data: bytes, path: str) -> ProducerSegments:
        """Read what `encode` makes. Raises CorruptDataError for anything else."""
        try:
            found = json.loads(data)
        except ValueError as error:
            raise _corrupt_error(path, "it is no JSON") from error
        version = found.get("v") if isinstance(found, dict) else None
        if version not in (VERSION, LOSSES_VERSION):
            raise _corrupt_error(path, f"it is not of version {VERSION} or {LOSSES_VERSION}")
        numbers = found.get("newest"), found.get("whole")
        newest, whole = numbers
        if type(newest) is not int or type(whole) is not int or not 0 <= whole <= newest:
            raise _corrupt_error(path, f"newest and whole are {numbers}")
        losses = found.get("losses") if version == LOSSES_VERSION else 0
        if type(losses) is not int or losses < (version == LOSSES_VERSION):
            raise _corrupt_error(path, f"losses are {losses!r}")
        return cls(newest, whole, losses)


def _corrupt_error(path: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"what says where a log's producers are cannot be used: {what}",
        path=path,
        advice="Write the log without producers, or set this znode to "
        '{"v":2,"newest":0,"whole":0,"losses":1000}: every producer of the log counts as forgotten then, and begins a '
        "new epoch. Do not delete it: requests that come again would be written again",
    )
