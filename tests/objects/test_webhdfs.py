"""Requests to HDFS over HTTP: what answers mean, and name nodes that are on standby or gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dlspark.objects.errors import (
    ObjectAddressError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectOutcomeUnknownError,
    ObjectStoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnreachedError,
)
from dlspark.objects.webhdfs import WebHdfs, answer_error, parse_endpoints

URL = "hdfs://h:1/a.parquet"
GONE = "http://127.0.0.1:1"


def remote(kind: str) -> bytes:
    return json.dumps({"RemoteException": {"exception": kind, "message": "said"}}).encode()


def test_where_webhdfs_is() -> None:
    assert parse_endpoints(None, "namenode:8020") == ("http://namenode:9870",)
    assert parse_endpoints("http://a:1, https://b:2/", "h") == ("http://a:1", "https://b:2")
    for wrong in ("a:1", "http://a", "http://me:secret@a:1", "http://a:1/path", "http://a:1,"):
        with pytest.raises(ObjectAddressError) as caught:
            parse_endpoints(wrong, "h")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind", "is_change", "error"),
    [
        (404, "FileNotFoundException", True, ObjectNotFoundError),
        (403, "FileAlreadyExistsException", True, ObjectExistsError),
        (403, "AccessControlException", True, StoreRefusedError),
        (403, "DSQuotaExceededException", True, StoreRefusedError),
        (403, "SafeModeException", True, StoreUnavailableError),
        (403, "StandbyException", True, StoreUnavailableError),
        (403, "IOException", True, StoreUnavailableError),
        (401, "", True, StoreRefusedError),
        (500, "RuntimeException", True, ObjectOutcomeUnknownError),
        (500, "RuntimeException", False, StoreUnavailableError),
        (502, "", True, ObjectOutcomeUnknownError),
        (503, "", True, ObjectOutcomeUnknownError),
        (503, "", False, StoreUnavailableError),
    ],
)
def test_what_an_answer_of_a_name_node_says(
    status: int, kind: str, is_change: bool, error: type[ObjectStoreError]
) -> None:
    body = remote(kind) if kind else b"<html>"
    assert type(answer_error(status, body, URL, "make the object", is_change=is_change)) is error


@contextmanager
def name_node(status: int, body: bytes) -> Iterator[tuple[str, list[str]]]:
    """Run something that answers every request in one way."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_name_node_that_is_gone_or_on_standby_leaves_the_next_one_to_do_it() -> None:
    done = json.dumps({"boolean": True}).encode()
    with name_node(403, remote("StandbyException")) as (standby, asked), name_node(200, done) as (active, got):
        hdfs = WebHdfs([GONE, standby, active], "me")
        assert hdfs.ask("DELETE", "/a b", "DELETE", URL, "delete", {"recursive": "false"}, is_change=True) == {
            "boolean": True
        }
        assert got == ["/webhdfs/v1/a%20b?op=DELETE&recursive=false&user.name=me"]
        hdfs.ask("DELETE", "/b", "DELETE", URL, "delete", is_change=True)
        assert (len(asked), len(got)) == (1, 2), "the one that answered is asked first from then on"
        for names in ([GONE, standby], [standby, GONE]):
            with pytest.raises(StoreUnreachedError, match="standby"):
                WebHdfs(names).ask("GET", "/a", "GETFILESTATUS", URL, "tell")
        with pytest.raises(StoreUnavailableError, match="standby") as caught:
            WebHdfs([standby]).ask("GET", "/a", "GETFILESTATUS", URL, "tell")
        assert type(caught.value) is StoreUnavailableError, "it has answered"


def test_an_answer_that_makes_no_sense_leaves_a_change_open() -> None:
    with name_node(200, b"<html>") as (endpoint, _):
        with pytest.raises(ObjectOutcomeUnknownError):
            WebHdfs([endpoint]).ask("PUT", "/a", "RENAME", URL, "make the object", is_change=True)
        with pytest.raises(StoreUnavailableError):
            WebHdfs([endpoint]).ask("GET", "/a", "GETFILESTATUS", URL, "tell")


def test_a_connection_is_closed_whose_end_is_the_answers_end() -> None:
    """Name nodes say neither length nor chunks where a proxy before them asks for an answer by connection."""
    ended: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            served, _ = listening.accept()
            with served:
                served.settimeout(30)
                served.recv(1 << 16)
                served.sendall(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n" + remote("FileNotFoundException"))
                served.shutdown(socket.SHUT_WR)
                try:
                    ended.append(served.recv(1))
                except TimeoutError:
                    pass

        serving = threading.Thread(target=answer)
        serving.start()
        try:
            WebHdfs([f"http://127.0.0.1:{listening.getsockname()[1]}"]).ask("GET", "/a", "OPEN", "hdfs://a", "read")
        except ObjectNotFoundError as error:
            kept = error  # with its frames, and what these hold
        serving.join()
    assert kept.path == "hdfs://a"
    assert ended == [b""]
