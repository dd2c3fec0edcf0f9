"""What errors of stores say, and what they never say."""

from __future__ import annotations

import pickle

import pytest

from dlspark.objects.errors import (
    MAX_SAID_CHARS,
    ObjectStoreError,
    exists_error,
    not_found_error,
    refused_error,
    scrubbed,
    short_error,
    unavailable_error,
    unknown_error,
)
from metadata.foundation.errors import CorruptDataError, NotAppliedError, OutcomeUnknownError

URL = "s3://bucket/a.parquet"


@pytest.mark.parametrize(
    "said",
    [
        "GET https://h/b/k?X-Amz-Signature=topsecret&X-Amz-Date=1 failed",
        "https://h/b?X-Amz-Security-Token=topsecret",
        "http://h/webhdfs/v1/a?op=OPEN&delegation=topsecret&offset=0",
        "Authorization: AWS4-HMAC-SHA256 Credential=topsecret/20260101, Signature=topsecret",
        "headers: {'Authorization': 'Bearer topsecret'}",
        "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>topsecret</AWSAccessKeyId></Error>",
        "<StringToSign>AWS4-HMAC-SHA256\n20260101\ntopsecret</StringToSign><Key>k</Key>",
        "<CanonicalRequest>PUT\n/b\ntopsecret",
        "aws_secret_access_key = topsecret",
        "aws_session_token: topsecret",
    ],
)
def test_credentials_are_taken_out_of_what_a_store_says(said: str) -> None:
    assert "topsecret" not in scrubbed(said)


def test_what_helps_is_kept_on_one_line_and_cut() -> None:
    assert scrubbed("503 Slow\n  Down <Key>a</Key>") == "503 Slow Down <Key>a</Key>"
    assert scrubbed("<Error><Code>SignatureDoesNotMatch</Code><StringToSign>x</StringToSign></Error>").startswith(
        "<Error><Code>SignatureDoesNotMatch</Code>"
    )
    assert len(scrubbed("x" * 5000)) == MAX_SAID_CHARS


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (not_found_error(URL), NotAppliedError),
        (exists_error(URL), NotAppliedError),
        (unavailable_error(URL, "make the object", "503"), NotAppliedError),
        (refused_error(URL, "make the object", "403", "Do this"), NotAppliedError),
        (short_error(URL, 10, 5, 2), CorruptDataError),
        (unknown_error(URL, "make the object", "reset"), OutcomeUnknownError),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_error_says_whether_it_happened_where_and_what_to_do(
    error: ObjectStoreError, outcome: type[Exception]
) -> None:
    assert isinstance(error, outcome)
    assert error.path == URL
    assert error.advice
    assert URL in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
