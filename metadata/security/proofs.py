"""What a proof that is missing, or is not good (any more), ends in."""

from __future__ import annotations

from typing import ClassVar

from metadata.foundation.errors import CallerError


class NotAuthenticatedError(CallerError):
    """One side has not proved to the other who it is, or the proof is not good (any more); nothing was done."""

    code: ClassVar[int] = 403
