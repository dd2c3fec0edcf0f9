"""How many file descriptors this process may have."""

from __future__ import annotations

import resource
from typing import Final

HIGHEST_LIMIT: Final = 1 << 20
"""More than this is not asked for, whatever the hard limit is."""


def raise_limit() -> tuple[int, int]:
    """Raise this process's soft limit to the hard one: (before, now)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HIGHEST_LIMIT if hard == resource.RLIM_INFINITY else min(hard, HIGHEST_LIMIT)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft, soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft, wanted


def current_limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HIGHEST_LIMIT if soft == resource.RLIM_INFINITY else min(soft, HIGHEST_LIMIT)
