"""Requests that change something at S3, and those that obstore does not make: by botocore, each of them once.

obstore, which reads, hides the ids of uploads and repeats requests as it thinks fit; a write has to say what became of
it. So each request here is sent once, in a thread, and its outcome is one of three:

    not sent, or refused by a status that says so     StoreUnavailableError, StoreRefusedError, ObjectExistsError
    no answer, 5xx, or an answer that a repeated
    request could also have                           ObjectOutcomeUnknownError
    done                                              returns

A 503 is no certain refusal: a gateway may have sent it after the store was done. Conditions (If-None-Match) are a belt:
a server that does not know them is asked again without.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from dlspark.objects.errors import (
    ObjectStoreError,
    exists_error,
    refused_error,
    unavailable_error,
    unknown_error,
    unreached_error,
)
from dlspark.objects.s3_options import S3Options
from dlspark.tables.errors import MissingExtraError

THREADS: Final = 4
CONNECT_TIMEOUT_S: Final = 5
ANSWER_TIMEOUT_S: Final = 60
_NOT_DONE_STATUSES: Final = (408, 409, 429)
"""Of a request that the store did not do, and may do later: too slow, another conditional one under way, too many."""
_NOT_DONE_CODES: Final = ("RequestTimeout", "BadDigest", "IncompleteBody")
_NO_CONDITIONS: Final = (501,)
ADVICE_BY_CODE: Final = {
    "NoSuchBucket": "Make the bucket, or correct coldStoragePath and coldStorageEndpoint",
    "PermanentRedirect": "The bucket is in another region: set coldStorageRegion",
    "AuthorizationHeaderMalformed": "The bucket is in another region: set coldStorageRegion",
    "RequestTimeTooSkewed": "Set this machine's clock",
    "ExpiredToken": "The credentials have expired: renew them where this process has them from",
    "SignatureDoesNotMatch": "The secret key does not belong to the access key: correct the credentials",
    "InvalidAccessKeyId": "The store does not know the access key: correct the credentials",
}
_shared: Final[dict[str, Any]] = {}
_ANY_ADVICE: Final = "Look at the rights of these credentials on the bucket, its key and its policy"


def botocore_session() -> Any:
    """Return a new session of botocore, which has the standard chain of credentials. Raises MissingExtraError."""
    try:
        import botocore.session
    except ImportError as error:
        raise MissingExtraError(
            "Objects of s3:// need the library botocore, and it is not installed", advice="pip install 'dlspark[s3]'"
        ) from error
    session = botocore.session.get_session()
    # What S3's API consists of takes a tenth of a second to parse: once for the process.
    _shared.setdefault("loader", session.get_component("data_loader"))
    session.register_component("data_loader", _shared["loader"])
    return session


class S3Changes:
    """How is a bucket changed?

    Args:
        bucket: its name.
        options: where it is.
        session: a session of botocore; None: a new one is made when it is needed.
    """

    def __init__(self, bucket: str, options: S3Options, session: Any = None) -> None:
        self._bucket = bucket
        self._options = options
        self._session = session
        self._client: Any = None
        self._threads = ThreadPoolExecutor(THREADS, "cold-s3")
        self._making = asyncio.Lock()

    async def put(self, key: str, url: str, data: bytes) -> None:
        """Make a small object by one request."""
        fields = {**self._options.encryption_fields(), "Body": data, "ContentMD5": _md5(data)}
        await self._conditional("put_object", key, url, fields)

    async def begin(self, key: str, url: str) -> str:
        """Begin an upload; return its id."""
        fields = self._options.encryption_fields()
        return str((await self._send("create_multipart_upload", key, url, "begin an upload", fields))["UploadId"])

    async def put_part(self, key: str, url: str, upload_id: str, number: int, data: bytes) -> str:
        """Add part `number`, from 1; return its tag. The same part may be put again."""
        fields = {"UploadId": upload_id, "PartNumber": number, "Body": data, "ContentMD5": _md5(data)}
        answer = await self._send("upload_part", key, url, "take a part of the object", fields)
        return str(answer["ETag"])

    async def complete(self, key: str, url: str, upload_id: str, tags: list[str]) -> None:
        """Make the object of the parts of an upload."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        await self._conditional(
            "complete_multipart_upload", key, url, {"UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
        )

    async def abort(self, key: str, url: str, upload_id: str) -> None:
        """End an upload without an object; a missing one is a success."""
        await self._send(
            "abort_multipart_upload", key, url, "abort the upload", {"UploadId": upload_id}, gone_is_done=True
        )

    async def delete(self, key: str, url: str) -> None:
        """Delete an object; a missing one is a success."""
        await self._send("delete_object", key, url, "delete the object", {}, gone_is_done=True)

    async def uploads(
        self, prefix: str, url: str, after: tuple[str, str] | None
    ) -> tuple[list[Any], tuple[str, str] | None]:
        """Return a page of open uploads, and what the next page follows; None after the last one."""
        fields: dict[str, object] = {"Prefix": prefix}
        if after is not None:
            fields |= {"KeyMarker": after[0], "UploadIdMarker": after[1]}
        answer = await self._send("list_multipart_uploads", None, url, "list uploads", fields, is_read=True)
        following = (str(answer.get("NextKeyMarker", "")), str(answer.get("NextUploadIdMarker", "")))
        more = bool(answer.get("IsTruncated")) and following != ("", "") and following != after
        return list(answer.get("Uploads", ())), following if more else None

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # ------------------------------------------------------------------ one request

    async def _conditional(self, method: str, key: str, url: str, fields: dict[str, object]) -> None:
        doing = "make the object"
        try:
            await self._send(method, key, url, doing, {**fields, "IfNoneMatch": "*"})
        except _NoConditionsError:
            await self._send(method, key, url, doing, fields)

    async def _send(
        self,
        method: str,
        key: str | None,
        url: str,
        doing: str,
        fields: dict[str, object],
        *,
        gone_is_done: bool = False,
        is_read: bool = False,
    ) -> Any:
        client = await self._made()
        named = {"Bucket": self._bucket, **fields} if key is None else {"Bucket": self._bucket, "Key": key, **fields}
        work = partial(self._request, partial(getattr(client, method), **named), url, doing, gone_is_done, is_read)
        # Shielded: the thread goes on, and what it does with the answer has to be seen to the end.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, work))

    async def _made(self) -> Any:
        async with self._making:
            if self._client is None:
                work = partial(_client, self._session, self._options)
                self._client = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            return self._client

    def _request(self, call: Callable[[], Any], url: str, doing: str, gone_is_done: bool, is_read: bool) -> Any:
        from botocore import exceptions, parsers

        try:
            return call()
        except exceptions.ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(error.response.get("Error", {}).get("Code", ""))
            if gone_is_done and status == 404 and code != "NoSuchBucket":
                return {}
            raise _answer_error(status, code, url, doing, error, is_read) from error
        except (
            exceptions.EndpointConnectionError,
            exceptions.ConnectTimeoutError,
            exceptions.ProxyConnectionError,
        ) as error:
            raise unreached_error(url, doing, error) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise no_credentials_error(url, doing, error) from error
        except (exceptions.HTTPClientError, OSError) as error:
            # The way to the store, TLS included, or an answer that did not come.
            raise (unreached_error if is_read else unknown_error)(url, doing, error) from error
        except (exceptions.BotoCoreError, parsers.ResponseParserError) as error:
            raise (unavailable_error if is_read else unknown_error)(url, doing, error) from error


class _NoConditionsError(Exception):
    """The server does not know conditional requests."""


def no_credentials_error(url: str, doing: str, said: object) -> ObjectStoreError:
    """Return the error of a process without credentials."""
    return refused_error(
        url,
        doing,
        said,
        "Give this process credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
    )


def _answer_error(
    status: int, code: str, url: str, doing: str, error: Exception, is_read: bool
) -> ObjectStoreError | _NoConditionsError:
    if status == 412:
        return exists_error(url)
    if status in _NO_CONDITIONS:
        return _NoConditionsError()
    if status in _NOT_DONE_STATUSES or code in _NOT_DONE_CODES:
        return unavailable_error(url, doing, error)
    if code == "NoSuchUpload" and doing == "make the object":
        # It was aborted; or completed, by this very request, which something on the way has sent twice.
        return unknown_error(url, doing, error)
    if 400 <= status < 500:
        return refused_error(url, doing, error, ADVICE_BY_CODE.get(code, _ANY_ADVICE))
    return (unavailable_error if is_read else unknown_error)(url, doing, error)


def _client(session: Any, options: S3Options) -> Any:
    session = session or botocore_session()
    from botocore.config import Config

    config = Config(
        region_name=options.region,
        signature_version="s3v4",
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=ANSWER_TIMEOUT_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=THREADS,
        tcp_keepalive=True,
        # Many servers do not know the newer checksums; each body has its MD5 instead, which all of them check.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if options.path_style else "virtual"},
    )
    return session.create_client("s3", endpoint_url=options.endpoint, config=config)


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
