"""Lines of a log that others can cause are bounded, and none is lost without being counted."""

from __future__ import annotations

import asyncio
import logging

import pytest
from helpers.virtual_time import virtual_time

from metadata.foundation.pacing import MessageLimit

logger = logging.getLogger("tests.log_limit")


@virtual_time
async def test_the_first_lines_pass_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    limit = MessageLimit(logger, burst=3, window_s=0.05)
    for number in range(1000):
        limit.log(logging.WARNING, "line %d", number)
    assert caplog.messages == ["line 0", "line 1", "line 2"]
    await asyncio.sleep(0.05)
    assert caplog.messages[3] == "997 more lines like these were left out within 0.05 s"
    await asyncio.sleep(0.1)
    limit.log(logging.ERROR, "afterwards", error=ValueError("why"))
    assert caplog.messages[4:] == ["afterwards"]
    assert "ValueError: why" in caplog.text


async def test_a_count_is_told_before_the_next_windows_lines_and_once(caplog: pytest.LogCaptureFixture) -> None:
    limit = MessageLimit(logger, burst=1, window_s=0.0)
    for number in range(3):
        limit.log(logging.WARNING, "line %d", number)
    assert caplog.messages == ["line 0", "line 1", "line 2"], "each in a window of its own"
    quiet = MessageLimit(logger, burst=1, window_s=3600.0)
    for _ in range(5):
        quiet.log(logging.WARNING, "again")
    quiet._began = asyncio.get_running_loop().time() - 3600
    quiet.log(logging.WARNING, "later")
    assert caplog.messages[3:] == ["again", "4 more lines like these were left out within 3600 s", "later"]
    quiet._tell()
    assert len(caplog.messages) == 6
