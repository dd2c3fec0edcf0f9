"""Requests to HDFS over HTTP (WebHDFS): to a name node, and to the data node that it names. Blocking; for threads.

Source of the format: Hadoop's page "WebHDFS REST API", of 3.4. It is spoken to with the standard library alone: the
native client of HDFS (libhdfs) is in no package of Python, Maven or Debian, and needs Java and Hadoop's class path.

Each request is sent once. Its outcome is one of: done; an answer of the name node that says that it was not done; not
sent; or unknown, where the connection was lost or the answer is a 5xx. Several name nodes may be given: one that is out
of reach or on standby has done nothing, so the next one is asked.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectStoreError,
    exists_error,
    not_found_error,
    refused_error,
    unavailable_error,
    unknown_error,
    unreached_error,
)

HTTP_PORT: Final = 9870
"""Of a name node of Hadoop 3, where none is given."""
TIMEOUT_S: Final = 60
NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
MAX_ANSWER_BYTES: Final = 64 << 20
_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}")
_PATH: Final = "/webhdfs/v1"
_STANDBY: Final = ("StandbyException",)
_LATER: Final = ("StandbyException", "RetriableException", "SafeModeException", "ObserverRetryOnActiveException")
_QUOTA: Final = ("DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException")
_RIGHTS: Final = ("AccessControlException", "SecurityException", "AuthorizationException")
_EXISTS: Final = ("FileAlreadyExistsException",)


def parse_endpoints(endpoint: str | None, authority: str) -> tuple[str, ...]:
    """Return where WebHDFS is: what is given (`http://host:port`, several with commas between them), or Hadoop's usual
    port on the name node of the address. Raises ObjectAddressError."""
    if not endpoint:
        return (f"http://{authority.partition(':')[0]}:{HTTP_PORT}",)
    endpoints = tuple(one.strip().rstrip("/") for one in endpoint.split(","))
    if any(_ENDPOINT.fullmatch(one) is None for one in endpoints):
        # Not repeated in the message: where it is wrong, it may hold a password.
        raise ObjectAddressError(
            "The endpoint of HDFS is not http://host:port, or several of them; nothing was opened",
            advice="Set coldStorageEndpoint to where the name nodes serve WebHDFS (dfs.namenode.http-address)",
        )
    return endpoints


class WebHdfs:
    """How is HDFS asked over HTTP?

    Args:
        endpoints: of the name nodes.
        user: who asks, where the cluster believes it (Hadoop's simple authentication); None: HADOOP_USER_NAME, or the
            user of this process.
    """

    def __init__(self, endpoints: Sequence[str], user: str | None = None) -> None:
        self._endpoints = list(endpoints)
        self._user = user or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()

    def ask(
        self,
        method: str,
        path: str,
        operation: str,
        url: str,
        doing: str,
        fields: Mapping[str, str] = NO_FIELDS,
        *,
        is_change: bool = False,
    ) -> dict[str, Any]:
        """Ask a name node; return what it says, {} for nothing. Raises ObjectStoreError."""
        _, body, _ = self._name_node(method, path, operation, url, doing, is_change, fields)
        if not body:
            return {}
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise (unknown_error if is_change else unavailable_error)(url, doing, body[:200])
        return answer

    def place(self, method: str, path: str, operation: str, url: str, doing: str, fields: Mapping[str, str]) -> str:
        """Return where a data node takes or gives a file's bytes."""
        status, body, location = self._name_node(
            method, path, operation, url, doing, False, {**fields, "noredirect": "true"}
        )
        if status == 307 and location:
            return location
        try:
            found = json.loads(body)["Location"]
        except (ValueError, KeyError, TypeError):
            raise unavailable_error(url, doing, body[:200]) from None
        return str(found)

    def fetch(self, place: str, url: str, doing: str) -> bytes:
        """Return the bytes that a data node gives."""
        connection, target = _connection(place)
        try:
            connection.request("GET", target)
            with connection.getresponse() as answer:
                data = answer.read()
        except (OSError, HTTPException) as error:
            raise unavailable_error(url, doing, repr(error)) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise answer_error(answer.status, data, url, doing, is_change=False)
        return data

    def _name_node(
        self, method: str, path: str, operation: str, url: str, doing: str, is_change: bool, fields: Mapping[str, str]
    ) -> tuple[int, bytes, str | None]:
        query = urlencode({"op": operation, **fields, "user.name": self._user})
        target = f"{_PATH}{quote(path)}?{query}"
        said: list[str] = []
        # One that cannot be reached says more than others on standby: it may be the active one.
        made: Callable[[str, str, object], ObjectStoreError] = unavailable_error
        for endpoint in list(self._endpoints):
            connection, _ = _connection(endpoint)
            try:
                connection.connect()
            except (OSError, HTTPException) as error:
                said.append(f"{endpoint}: {error}")
                made = unreached_error
                continue  # nothing was sent
            try:
                connection.request(method, target, headers={"Content-Length": "0"} if method in ("PUT", "POST") else {})
                # Closed by itself: one that ends with its connection has taken that over, and a read up to a limit does
                # not see its end, so that its socket would stay open for as long as an error's frames are kept.
                with connection.getresponse() as answer:
                    body = answer.read(MAX_ANSWER_BYTES)
            except (OSError, HTTPException) as error:
                raise (unknown_error if is_change else unreached_error)(url, doing, repr(error)) from error
            finally:
                connection.close()
            if answer.status in (200, 201, 307):
                self._prefer(endpoint)
                return answer.status, body, answer.headers.get("Location")
            if _exception(body) not in _STANDBY:
                raise answer_error(answer.status, body, url, doing, is_change=is_change)
            said.append(f"{endpoint} is on standby")
        raise made(url, doing, "; ".join(said) or "there is no name node")

    def _prefer(self, endpoint: str) -> None:
        """Ask the one that answered first from now on."""
        if self._endpoints[0] != endpoint:
            self._endpoints = [endpoint, *(one for one in self._endpoints if one != endpoint)]


class UploadStream:
    """The bytes of a file on their way to a data node, as one request whose body grows.

    Args:
        place: what `WebHdfs.place` returned.
        url: the object's address, for errors.
    """

    def __init__(self, place: str, url: str) -> None:
        self._url = url
        self._is_ended = False
        self._connection, target = _connection(place)
        try:
            self._connection.putrequest("PUT", target)
            self._connection.putheader("Content-Type", "application/octet-stream")
            self._connection.putheader("Transfer-Encoding", "chunked")
            self._connection.endheaders()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise self._lost(error) from error

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes, of which there is at least one."""
        piece = memoryview(data).cast("B")
        try:
            self._connection.send(b"%x\r\n" % len(piece))
            self._connection.send(piece)
            self._connection.send(b"\r\n")
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error

    def end(self) -> None:
        """Have the file closed; its blocks are on disk then. Once it was tried, it does nothing."""
        if self._is_ended:
            return
        self._is_ended = True
        try:
            self._connection.send(b"0\r\n\r\n")
            with self._connection.getresponse() as answer:
                body = answer.read(MAX_ANSWER_BYTES)
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error
        if answer.status != 201:
            raise answer_error(answer.status, body, self._url, "take the object's bytes", is_change=False)

    def close(self) -> None:
        """Break the request off, unless it has ended."""
        self._connection.close()

    def _lost(self, error: Exception) -> ObjectStoreError:
        # Of a temporary name: whatever is there is no object.
        return unavailable_error(self._url, "take the object's bytes", repr(error))


def _connection(address: str) -> tuple[HTTPConnection, str]:
    """Return a connection, which is not made yet, and what is asked for on it."""
    parts = urlsplit(address)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return HTTPSConnection(parts.hostname or "", parts.port or 443, timeout=TIMEOUT_S, context=context), target
    return HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_S), target


def _remote(body: bytes) -> dict[str, Any]:
    try:
        remote = json.loads(body)["RemoteException"]
    except (ValueError, KeyError, TypeError):
        return {}
    return remote if isinstance(remote, dict) else {}


def _exception(body: bytes) -> str:
    return str(_remote(body).get("exception", ""))


def answer_error(status: int, body: bytes, url: str, doing: str, *, is_change: bool) -> ObjectStoreError:
    """Return what an answer means that is no success."""
    kind = _exception(body)
    said = f"{status} {kind}: {_remote(body).get('message', '')}" if kind else f"{status}: {body[:300]!r}"
    if kind == "FileNotFoundException":
        return not_found_error(url)
    if kind in _EXISTS:
        return exists_error(url)
    if kind in _QUOTA:
        return refused_error(url, doing, said, "Raise the quota of the folder, or make room in it")
    if status == 401:
        return refused_error(
            url,
            doing,
            said,
            "The cluster asks for Kerberos, which is not spoken here: offer WebHDFS with simple "
            "authentication to this machine, by a gateway for instance",
        )
    if kind in _RIGHTS:
        return refused_error(url, doing, said, "Give the user (HADOOP_USER_NAME) the right to the folder")
    if kind in _LATER or (kind and status < 500) or not is_change:
        return unavailable_error(url, doing, said)
    return unknown_error(url, doing, said)
