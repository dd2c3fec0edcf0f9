"""Objects in a bucket of S3, or of anything that speaks its protocol: read by obstore, written by `S3Changes`.

A small object is put by one request, on the condition that its name is new; a bigger one is a multi-part upload, whose
parts go several at a time while the next one is filled, so at most `PARTS_UNDER_WAY` + 1 of them are in memory. A part
that the store did not take is sent again, as often as a read is tried: it makes no object, and its repetition replaces
it. What makes or takes away an object is sent once.

obstore has threads of its own, one set for the whole process, which no fork has: a request in a child of a process
that had a store waits for ever. So no store can be opened there.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Final

from dlspark.objects.addresses import StoreRoot
from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectNotFoundError,
    ObjectOutcomeUnknownError,
    ObjectStoreError,
    not_found_error,
    refused_error,
    short_error,
    unavailable_error,
    unreached_error,
)
from dlspark.objects.opened_store import READ_POLICY, OpenedStore, ReadPolicy, check_process, check_ranges
from dlspark.objects.ranges import cut_range, joined_ranges
from dlspark.objects.s3_changes import ADVICE_BY_CODE, S3Changes, botocore_session, no_credentials_error
from dlspark.objects.s3_options import S3Options
from dlspark.objects.store import ObjectInfo, OpenUpload
from dlspark.tables.errors import MissingExtraError
from metadata.foundation.errors import check

PART_BYTES: Final = 8 << 20
PARTS_UNDER_WAY: Final = 3
MAX_PARTS: Final = 10_000
"""S3's own limit; with parts of 8 MiB it is 78 GiB."""
PAGE: Final = 1000
READ_TIMEOUT_S: Final = 60
"""For one request, with its body."""
CREDENTIALS_FOR: Final = timedelta(minutes=5)
"""They are asked for again then; the chain renews them at least ten minutes before they expire."""
_STATUS: Final = re.compile(r"status code: (\d{3})")
_NO_ANSWER: Final = "HTTP error: error sending request"
_BUSY_STATUSES: Final = (408, 429)

_runtime_pid: int | None = None
"""The process in which obstore's threads run; None before there are any."""


class S3Store(OpenedStore):
    """How does a bucket hold objects?

    Args:
        root: the bucket and the prefix.
        options: where it is, how it encrypts.
        policy: of reads.
        part_bytes: bigger objects go in parts of this size; S3 takes none below 5 MiB, but the last.
    """

    def __init__(
        self, root: StoreRoot, options: S3Options, policy: ReadPolicy = READ_POLICY, part_bytes: int = PART_BYTES
    ) -> None:
        super().__init__(root, policy)
        self._prefix = f"{root.path[1:]}/" if root.path else ""
        self._part_bytes = part_bytes
        self._obstore, self._reads = _open_reads(root, options)
        self._changes = S3Changes(root.authority, options)

    def _key(self, url: str) -> str:
        self._check_usable()
        return self._prefix + self._place.name_of(url)

    async def create(self, url: str) -> S3ObjectWriter:
        """Begin to write an object; nothing is asked of the store yet."""
        return S3ObjectWriter(self, self._changes, self._key(url), url, self._part_bytes)

    async def persist_part(self, key: str, url: str, upload_id: str, number: int, data: bytes) -> str:
        """Put a part, again where the store did not take it; return its tag."""

        async def put() -> str:
            try:
                return await self._changes.put_part(key, url, upload_id, number, data)
            except ObjectOutcomeUnknownError as error:
                # A part is no object: whether it is there or not, it may be put again.
                raise unavailable_error(url, "take a part of the object", error.message) from error

        return await self._persist(put)

    async def head(self, url: str) -> ObjectInfo:
        """Return the size and time of an object."""
        key = self._key(url)

        async def ask() -> ObjectInfo:
            try:
                found = await self._obstore.head_async(self._reads, key)
            except Exception as error:
                raise _read_error(url, "tell of an object", error) from error
            return _info(url, found)

        try:
            return await self._persist(ask)
        except ObjectNotFoundError:
            # The answer to HEAD has no body, so it does not say what is missing: the object or its bucket.
            await self._persist(partial(self._ranges, key, url, [(0, 1)]))
            raise

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of (offset, length) ranges."""
        key = self._key(url)
        check_ranges(ranges, url)
        asked = [one for one in ranges if one[1]]
        if not asked:
            return [memoryview(b"")] * len(ranges)
        found = iter(await self._persist(partial(self._ranges, key, url, asked)))
        return [next(found) if length else memoryview(b"") for _, length in ranges]

    async def _ranges(self, key: str, url: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        # Not left to obstore, which panics where ranges that it joined lie behind the end.
        joined = joined_ranges(ranges)
        starts, ends = [start for start, _ in joined], [end for _, end in joined]
        try:
            got = await self._obstore.get_ranges_async(self._reads, key, starts=starts, ends=ends, coalesce=0)
        except Exception as error:
            if _status(error) == 416:
                last = max(ranges)
                raise short_error(url, *last, 0) from error
            raise _read_error(url, "return bytes of an object", error) from error
        pieces = [memoryview(one) for one in got]
        return [cut_range(url, offset, length, joined, pieces) for offset, length in ranges]

    async def delete(self, url: str) -> None:
        """Delete an object."""
        await self._changes.delete(self._key(url), url)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield all objects below a folder, in the order of their names."""
        self._check_usable()
        folder = self._prefix + self._place.folder_of(prefix)
        after: str | None = None
        while page := await self._persist(partial(self._page, folder, prefix, after)):
            for found in page:
                url = self._url(str(found["path"]))
                if url is not None:
                    yield _info(url, found)
            after = str(page[-1]["path"])

    async def _page(self, folder: str, url: str, after: str | None) -> Sequence[Mapping[str, Any]]:
        """Return the next names that follow `after`; a listing that broke off goes on there."""
        # A prefix without its slash means the same to obstore: whole parts of names.
        stream = self._obstore.list(self._reads, folder.rstrip("/") or None, offset=after, chunk_size=PAGE)
        try:
            page: Sequence[Mapping[str, Any]] | None = await anext(aiter(stream), None)
        except Exception as error:
            raise _read_error(url, "list objects", error) from error
        return page or ()

    def _url(self, key: str) -> str | None:
        """Return the address of what has this key; None where no object of ours can have it."""
        url = self._place.url_of(key[len(self._prefix) :])
        try:
            self._place.name_of(url)
        except ObjectAddressError:
            return None
        return url

    async def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """Yield the multi-part uploads below a folder that are open."""
        self._check_usable()
        folder = self._prefix + self._place.folder_of(prefix)
        after: tuple[str, str] | None = None
        while True:
            page, after = await self._persist(partial(self._changes.uploads, folder, prefix, after))
            for one in page:
                url = self._url(one["Key"])
                if url is not None:
                    yield OpenUpload(url, one["UploadId"], int(one["Initiated"].timestamp() * 1000))
            if after is None:
                return

    async def abort_upload(self, upload: OpenUpload) -> None:
        """End an upload without an object."""
        await self._changes.abort(self._key(upload.url), upload.url, upload.upload_id)

    async def close(self) -> None:
        """Give back connections and threads."""
        if not self._closed:
            self._closed = True
            self._changes.close()


class S3ObjectWriter:
    """An object that is being put into a bucket."""

    def __init__(self, store: S3Store, changes: S3Changes, key: str, url: str, part_bytes: int) -> None:
        self._store = store
        self._changes = changes
        self._key = key
        self._url = url
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._begun: asyncio.Task[str] | None = None
        self._parts: list[asyncio.Task[str]] = []
        self._ended = False

    async def write(self, data: bytes | memoryview) -> None:
        """Add bytes; whole parts go at once."""
        check(not self._ended, "An object was written to after its end", path=self._url)
        left = memoryview(data).cast("B")
        while left:
            room = self._part_bytes - len(self._waiting)
            self._waiting += left[:room]
            left = left[room:]
            # A full part waits until more comes: an object of exactly one part is put by one request.
            if left:
                await self._send_part()

    async def _send_part(self) -> None:
        upload_id = await self._upload_id()
        number = len(self._parts) + 1
        if number > MAX_PARTS:
            raise refused_error(
                self._url,
                "take more parts",
                f"an object has {MAX_PARTS} of them at most",
                "Lower coldTargetBytes: the object would be too big",
            )
        data = bytes(self._waiting)
        self._waiting.clear()
        put = self._store.persist_part(self._key, self._url, upload_id, number, data)
        self._parts.append(asyncio.get_running_loop().create_task(put))
        under_way = [task for task in self._parts if not task.done()]
        if len(under_way) >= PARTS_UNDER_WAY:
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        self._check_parts()

    async def _upload_id(self) -> str:
        if self._begun is None:
            # A task of its own: where this call is cancelled, `abort` still learns the upload's id.
            self._begun = asyncio.get_running_loop().create_task(self._changes.begin(self._key, self._url))
        try:
            return await asyncio.shield(self._begun)
        except ObjectOutcomeUnknownError as error:
            raise unavailable_error(self._url, "begin an upload", error.message) from error

    def _check_parts(self) -> None:
        """Raise the error of a part that could not be put."""
        for task in self._parts:
            if task.done():
                task.result()

    async def commit(self) -> None:
        """Make the object."""
        check(not self._ended, "An object was committed after its end", path=self._url)
        self._ended = True
        if self._begun is None:
            await self._changes.put(self._key, self._url, bytes(self._waiting))
            return
        if self._waiting:
            await self._send_part()
        tags = await asyncio.gather(*self._parts)
        await self._changes.complete(self._key, self._url, await self._upload_id(), tags)
        self._begun = None

    async def abort(self) -> None:
        """End the upload, if there is one, after what is under way of it."""
        self._ended = True
        self._waiting.clear()
        begun, self._begun = self._begun, None
        if begun is None:
            return
        for task in self._parts:
            task.cancel()
        # A part that arrives behind the abortion would stay, and be paid for: what was sent is waited for.
        await asyncio.gather(begun, *self._parts, return_exceptions=True)
        if begun.cancelled() or begun.exception() is not None:
            return
        try:
            await self._changes.abort(self._key, self._url, begun.result())
        except ObjectStoreError:
            pass  # the sweep will find it


def _open_reads(root: StoreRoot, options: S3Options) -> tuple[Any, Any]:
    """Return obstore, and its view of a bucket."""
    global _runtime_pid
    if _runtime_pid is not None:
        check_process(_runtime_pid, "the library obstore")
    try:
        import obstore
        from obstore import store as stores
    except ImportError as error:
        raise MissingExtraError(
            "Objects of s3:// need the library obstore, and it is not installed", advice="pip install 'dlspark[s3]'"
        ) from error
    config: dict[str, object] = {"region": options.region, "virtual_hosted_style_request": not options.path_style}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    known = _keys_of_environment()
    _runtime_pid = os.getpid()
    make: Any = stores.S3Store  # its types name each key of `config`
    return obstore, make(
        root.authority,
        config={**config, **known},
        client_options={
            "allow_http": options.is_plain,
            "connect_timeout": "5s",
            "timeout": f"{READ_TIMEOUT_S}s",
        },
        retry_config={"max_retries": 0},  # `ReadPolicy` is the one that repeats
        credential_provider=None if known else _CredentialChain(root.url),
    )


def _keys_of_environment() -> dict[str, object]:
    """Return the keys that the environment holds, which come first in the standard chain; empty without."""
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        return {}
    known: dict[str, object] = {"access_key_id": key, "secret_access_key": secret}
    if os.environ.get("AWS_SESSION_TOKEN"):
        known["session_token"] = os.environ["AWS_SESSION_TOKEN"]
    return known


class _CredentialChain:
    """What obstore asks for credentials: botocore's chain, which knows profiles, roles and their renewal."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._credentials: Any = None

    async def __call__(self) -> dict[str, object]:
        # In a thread: a role is asked for over the network.
        return await asyncio.to_thread(self._ask)

    def _ask(self) -> dict[str, object]:
        if self._credentials is None:
            self._credentials = botocore_session().get_credentials()
        if self._credentials is None:
            raise no_credentials_error(self._url, "know who asks", "no credentials were found")
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + CREDENTIALS_FOR,
        }


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found is not None else None


def _read_error(url: str, doing: str, error: Exception) -> ObjectStoreError:
    """Return what an error of obstore is here."""
    said = str(error).partition("\n\nDebug source")[0]
    status = _status(error)
    if isinstance(error, FileNotFoundError):
        if "NoSuchBucket" in said:
            return refused_error(url, doing, said, "Make the bucket, or correct coldStoragePath and the endpoint")
        return not_found_error(url)
    if "no credentials were found" in said:
        return no_credentials_error(url, doing, "no credentials were found")
    if status is not None and 300 <= status < 500 and status not in _BUSY_STATUSES:
        return refused_error(url, doing, said, _advice(status, said))
    # So obstore says that no answer came: no address, connection or TLS, a time-out. One that broke off is another.
    made = unreached_error if status is None and _NO_ANSWER in said else unavailable_error
    return made(url, doing, said)


def _advice(status: int, said: str) -> str:
    """Return what to do about a refusal: by the code that the answer's body has; the one to HEAD has none."""
    for code, advice in ADVICE_BY_CODE.items():
        if f"<Code>{code}</Code>" in said:
            return advice
    if status < 400 or "region" in said.lower():
        return "The bucket is in another region: set coldStorageRegion"
    return "Look at the credentials of this process, and their rights on the bucket and its key; and at its clock"


def _info(url: str, found: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(url, int(found["size"]), int(found["last_modified"].timestamp() * 1000))
