"""Which segments say something of producers: the znode's data, and when what it points to is gone."""

from __future__ import annotations

import pytest

from metadata.distributedlog.producer_segments import ProducerSegments
from metadata.foundation.errors import CorruptDataError

PATH = "/dl/events/<default>/producers"


@pytest.mark.parametrize(
    ("segments", "data"),
    [
        (ProducerSegments(7, 5), b'{"v":1,"newest":7,"whole":5}'),
        (ProducerSegments(9, 9, 1), b'{"v":2,"newest":9,"whole":9,"losses":1}'),
    ],
)
def test_the_bytes_are_those_of_the_reference(segments: ProducerSegments, data: bytes) -> None:
    assert segments.encode() == data
    assert ProducerSegments.decode(data, PATH) == segments


@pytest.mark.parametrize(
    "data",
    [
        b'{"v":2,"newest":1,"whole":1}',
        b'{"v":2,"newest":1,"whole":1,"losses":0}',
        b'{"v":2,"newest":1,"whole":1,"losses":true}',
        b'{"v":3,"newest":1,"whole":1}',
        b'{"v":1,"newest":1,"whole":2}',
        b"[]",
    ],
)
def test_what_was_not_written_by_anyone_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="producers"):
        ProducerSegments.decode(data, PATH)


@pytest.mark.parametrize(
    ("first", "assigned", "lost"),
    [
        (5, 9, False),  # all that may have it is there, and has none: none was stored
        (1, 9, False),
        (6, 9, True),  # segment 5 was deleted
        (None, 7, True),  # segment 7 was empty, and removed; then 5 was deleted
        (None, 8, True),  # all were deleted
    ],
)
def test_a_snapshot_is_lost_where_a_segment_that_may_have_it_is_gone(
    first: int | None, assigned: int, lost: bool
) -> None:
    assert ProducerSegments(newest=7, whole=5).is_lost(first, assigned) is lost


def test_nothing_is_lost_with_an_empty_segment_whose_number_comes_again() -> None:
    assert not ProducerSegments(newest=7, whole=7).is_lost(None, 7)
    assert ProducerSegments(newest=7, whole=7).is_lost(None, 8)
