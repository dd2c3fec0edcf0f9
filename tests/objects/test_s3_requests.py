"""What is S3's own, without a server: how ranges are joined, options, what its answers mean."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectExistsError,
    ObjectOutcomeUnknownError,
    ObjectStoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnreachedError,
)
from dlspark.objects.opened_store import ReadPolicy
from dlspark.objects.opening import open_store
from dlspark.objects.ranges import joined_ranges
from dlspark.objects.s3 import _read_error
from dlspark.objects.s3_changes import S3Changes, _answer_error, _NoConditionsError
from dlspark.objects.s3_options import S3Options
from dlspark.tables.errors import MissingExtraError

ONCE = ReadPolicy(attempts=1)
URL = "s3://bucket/a.parquet"


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=20), st.integers(0, 30))
def test_joined_ranges_cover_what_was_asked_for_and_lie_apart(ranges: list[tuple[int, int]], gap: int) -> None:
    joined = joined_ranges(ranges, gap)
    for offset, length in ranges:
        assert any(start <= offset and offset + length <= end for start, end in joined)
    for (_, end), (start, _) in itertools.pairwise(joined):
        assert start - end > gap
    edges = {offset for offset, _ in ranges}, {offset + length for offset, length in ranges}
    assert all(start in edges[0] and end in edges[1] for start, end in joined)


def test_options_are_read_from_themselves_then_from_the_environment() -> None:
    assert S3Options.parse({}, {}) == S3Options(None, "us-east-1", False, None, None)
    given = {"endpoint": "http://h:9000/", "region": "eu-1", "encryption-key": "alias/k", "bucket-key": "true"}
    environment = {"AWS_ENDPOINT_URL": "https://other", "AWS_REGION": "us-2"}
    options = S3Options.parse(given, environment)
    assert options == S3Options("http://h:9000", "eu-1", True, "alias/k", True)
    assert options.is_plain
    options = S3Options.parse({"path-style": "false"}, environment)
    assert options == S3Options("https://other", "us-2", False)
    assert not options.is_plain


def test_what_is_said_of_encryption() -> None:
    assert S3Options().encryption_fields() == {}
    key = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k"}
    assert S3Options(encryption_key="k").encryption_fields() == key
    for bucket_key in (True, False):
        fields = S3Options(encryption_key="k", bucket_key=bucket_key).encryption_fields()
        assert fields == {**key, "BucketKeyEnabled": bucket_key}


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "ftp://h"},
        {"endpoint": "http://user:secret@h:80"},
        {"endpoint": "http://h:80/path"},
        {"endpoint": "h:80"},
        {"bucket-key": "true"},
        {"encryption-key": "k", "bucket-key": "yes"},
        {"path-style": "1"},
    ],
)
def test_options_that_make_no_sense_are_refused_without_being_repeated(options: dict[str, str]) -> None:
    with pytest.raises(ObjectAddressError) as caught:
        S3Options.parse(options, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "doing", "kind"),
    [
        (412, "PreconditionFailed", "make the object", ObjectExistsError),
        (409, "ConditionalRequestConflict", "make the object", StoreUnavailableError),
        (429, "TooManyRequests", "make the object", StoreUnavailableError),
        (400, "RequestTimeout", "make the object", StoreUnavailableError),
        (400, "BadDigest", "make the object", StoreUnavailableError),
        (403, "AccessDenied", "make the object", StoreRefusedError),
        (404, "NoSuchBucket", "make the object", StoreRefusedError),
        (301, "PermanentRedirect", "make the object", ObjectOutcomeUnknownError),
        (404, "NoSuchUpload", "make the object", ObjectOutcomeUnknownError),
        (404, "NoSuchUpload", "take a part of the object", StoreRefusedError),
        (500, "InternalError", "make the object", ObjectOutcomeUnknownError),
        (502, "", "make the object", ObjectOutcomeUnknownError),
        (503, "SlowDown", "make the object", ObjectOutcomeUnknownError),
        (504, "", "delete the object", ObjectOutcomeUnknownError),
        (0, "", "delete the object", ObjectOutcomeUnknownError),
    ],
)
def test_what_an_answer_says_of_a_change(status: int, code: str, doing: str, kind: type[ObjectStoreError]) -> None:
    error = _answer_error(status, code, URL, doing, Exception("said"), False)
    assert type(error) is kind
    assert isinstance(error, ObjectStoreError)
    assert (error.path, bool(error.advice)) == (URL, True)


def test_a_read_is_only_ever_unavailable_or_refused() -> None:
    assert type(_answer_error(503, "SlowDown", URL, "list uploads", Exception(), True)) is StoreUnavailableError
    assert type(_answer_error(403, "AccessDenied", URL, "list uploads", Exception(), True)) is StoreRefusedError


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Error performing GET http://h/b/k in 1ms - HTTP error: error sending request", StoreUnreachedError),
        (
            "Error performing GET http://h/b/k in 1ms - Server returned error response: status code: 503",
            StoreUnavailableError,
        ),
        ("HTTP error: request or response body error", StoreUnavailableError),
    ],
)
def test_only_a_read_without_an_answer_has_not_reached_the_store(said: str, kind: type[ObjectStoreError]) -> None:
    assert type(_read_error(URL, "return bytes of an object", Exception(said))) is kind


@pytest.mark.parametrize(
    ("error", "said", "of_a_read", "of_a_change"),
    [
        ("EndpointConnectionError", {"endpoint_url": URL}, StoreUnreachedError, StoreUnreachedError),
        ("ConnectTimeoutError", {"endpoint_url": URL}, StoreUnreachedError, StoreUnreachedError),
        ("ReadTimeoutError", {"endpoint_url": URL}, StoreUnreachedError, ObjectOutcomeUnknownError),
        ("SSLError", {"endpoint_url": URL, "error": "x"}, StoreUnreachedError, ObjectOutcomeUnknownError),
        (
            "IncompleteReadError",
            {"actual_bytes": 1, "expected_bytes": 2},
            StoreUnavailableError,
            ObjectOutcomeUnknownError,
        ),
    ],
)
async def test_what_no_answer_says_of_a_store(
    error: str, said: dict[str, Any], of_a_read: type[ObjectStoreError], of_a_change: type[ObjectStoreError]
) -> None:
    from botocore import exceptions

    changes = S3Changes("bucket", S3Options())

    def call() -> None:
        raise getattr(exceptions, error)(**said)

    for is_read, kind in ((True, of_a_read), (False, of_a_change)):
        with pytest.raises(ObjectStoreError) as caught:
            changes._request(call, URL, "list uploads", False, is_read)
        assert type(caught.value) is kind
    changes.close()


async def test_an_answer_that_cannot_be_read_is_no_answer() -> None:
    from botocore import parsers

    changes = S3Changes("bucket", S3Options())

    def call() -> None:
        raise parsers.ResponseParserError("Unable to parse response (not well-formed), invalid XML received")

    for is_read, kind in ((True, StoreUnavailableError), (False, ObjectOutcomeUnknownError)):
        with pytest.raises(ObjectStoreError) as caught:
            changes._request(call, URL, "list uploads", False, is_read)
        assert type(caught.value) is kind
    changes.close()


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        (403, "<Error><Code>RequestTimeTooSkewed</Code></Error>", "clock"),
        (403, "<Error><Code>InvalidAccessKeyId</Code></Error>", "does not know the access key"),
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>", "does not belong to the access key"),
        (403, "<Error><Code>ExpiredToken</Code></Error>", "expired"),
        (301, "", "coldStorageRegion"),
        (400, "<Error><Code>AuthorizationHeaderMalformed</Code></Error>", "coldStorageRegion"),
        (403, "", "credentials"),
    ],
)
def test_a_read_that_is_refused_says_what_to_do(status: int, said: str, advice: str) -> None:
    error = _read_error(URL, "return bytes of an object", Exception(f"status code: {status} Forbidden: {said}"))
    assert type(error) is StoreRefusedError
    assert advice in str(error.advice)


async def test_a_server_that_knows_no_conditions_is_asked_without() -> None:
    asked: list[dict[str, object]] = []

    class Changes(S3Changes):
        async def _send(self, method: str, key: str | None, url: str, doing: str, fields: Any, **rest: bool) -> Any:
            asked.append(dict(fields))
            if "IfNoneMatch" in fields:
                raise _NoConditionsError

    changes = Changes("bucket", S3Options())
    await changes.put("a", URL, b"x")
    assert ["IfNoneMatch" in fields for fields in asked] == [True, False]
    changes.close()


async def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"obstore.*pip install 'dlspark\[s3\]'"):
        open_store("s3://bucket/prefix")
