"""Names of streams have a length that clients do not choose."""

from __future__ import annotations

import pytest

from dlspark.serving.protocol.request_checks import MAX_STREAM_BYTES, check_stream_length
from metadata.distributedlog.log_names import InvalidLogNameError


def test_a_name_of_the_greatest_length_is_taken() -> None:
    for name in ("", "a" * MAX_STREAM_BYTES, "ö" * (MAX_STREAM_BYTES // 2), "\ud800"):
        check_stream_length(name)


@pytest.mark.parametrize("name", ["a" * (MAX_STREAM_BYTES + 1), "ö" * MAX_STREAM_BYTES, "a/" * 32_000])
def test_a_longer_one_is_refused_in_few_words(name: str) -> None:
    with pytest.raises(InvalidLogNameError, match="bytes") as refused:
        check_stream_length(name)
    assert len(str(refused.value)) < 400
