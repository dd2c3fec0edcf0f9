"""Where readers begin, and how far a read-ahead has come: what several readers of one log share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.logs import written
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.beginnings import beginning
from dlspark.core.reading.read_ahead import LogReadAhead
from dlspark.core.reading.segment_list import SegmentList
from dlspark.core.settings.settings import Settings
from dlspark.errors import AlreadyTruncatedError, ReadCancelledError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import TruncationStatus
from metadata.store import Create, Delete

STRICT = Settings()
LENIENT = Settings(fail_on_truncated=False)
ALL = Settings(ignore_truncation=True)


async def begins(namespace, start, settings=STRICT):
    segments = SegmentList(namespace.services, "log", settings)
    try:
        return await beginning("log", segments, start, settings, namespace.counters)
    finally:
        segments.close()


async def test_a_reader_begins_where_it_asks_to_or_at_what_truncation_has_left(namespace):
    log = await written(namespace, "log", [[b"a", b"b"], [b"c", b"d"], [b"e"]])
    assert await begins(namespace, DLSN(1, 0, 0)) == DLSN(1, 0, 0)
    await log.truncate(DLSN(2, 1, 0))
    for start in (DLSN(0, 0, 0), DLSN.NON_INCLUSIVE_LOWER_BOUND, DLSN.INITIAL):
        assert await begins(namespace, start) == DLSN(2, 1, 0)
        assert await begins(namespace, start, ALL) in (DLSN(1, 0, 0), start)
    for start in (DLSN(2, 1, 0), DLSN(3, 0, 0), DLSN(9, 9, 9)):
        assert await begins(namespace, start) == start
    for start in (DLSN(1, 1, 0), DLSN(2, 0, 0)):
        with pytest.raises(AlreadyTruncatedError) as caught:
            await begins(namespace, start)
        assert "2:1:0" in (caught.value.advice or "")
        assert await begins(namespace, start, LENIENT) == DLSN(2, 1, 0)
        assert await begins(namespace, start, ALL) == start


async def test_an_empty_segment_that_was_truncated_is_no_loss(namespace):
    """Java's writers complete segments that nothing was written to."""
    await written(namespace, "log", [[b"a", b"b"], [b"c"], [b"d"]])
    logs = namespace.services.logs
    first, second, _ = await logs.segments("log")
    for one in (first, replace(second, record_count=0, last_entry=-1, last_slot=-1)):
        path = logs.paths("log").segment(one)
        hidden = replace(one, truncation=TruncationStatus.TRUNCATED)
        await logs.store.multi([Delete(path), Create(path, hidden.encode())])
    for behind in (DLSN(1, first.last_entry + 1, 0), DLSN(2, 0, 0)):
        assert await begins(namespace, behind) == DLSN(3, 0, 0)
    with pytest.raises(AlreadyTruncatedError):
        await begins(namespace, DLSN(1, 1, 0))


async def test_a_log_without_segments_begins_at_its_first_position(namespace):
    await namespace.create_log("log")
    assert await begins(namespace, DLSN(0, -1, -1)) == DLSN.INITIAL
    assert await begins(namespace, DLSN(4, 0, 0)) == DLSN(4, 0, 0)


async def test_a_log_that_does_not_exist_begins_nowhere(namespace):
    with pytest.raises(LogNotFoundError):
        await begins(namespace, DLSN.INITIAL)


async def test_a_read_ahead_says_when_it_has_passed_the_end_of_a_segment(namespace):
    await written(namespace, "log", [[b"a", b"b"], [b"c"]])
    ahead = LogReadAhead(namespace.services, "log", namespace.settings, DLSN(1, 1, 0))
    assert ahead.passed == DLSN(1, 1, 0)
    await until(lambda: ahead.caught_up)
    found = []
    while (fetched := ahead.take()) is not None:
        found.append(DLSN(fetched.segment.lssn, fetched.entry_id, 0))
    assert all(place < DLSN(3, 0, 0) for place in found)
    assert ahead.passed == DLSN(3, 0, 0)
    await ahead.close(ReadCancelledError("the test ends"))
