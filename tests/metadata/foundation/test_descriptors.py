"""The limit of file descriptors."""

from __future__ import annotations

import resource

from metadata.foundation.descriptors import HIGHEST_LIMIT, current_limit, raise_limit


def test_the_soft_limit_is_raised_to_the_hard_one(open_file_limits: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, hard))
    wanted = HIGHEST_LIMIT if hard == resource.RLIM_INFINITY else min(hard, HIGHEST_LIMIT)
    assert raise_limit() == (700, wanted)
    assert raise_limit() == (wanted, wanted)
    assert current_limit() == wanted
