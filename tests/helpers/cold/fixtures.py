"""Fixtures of places for objects, for the tests of every room of cold storage."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.rounds import with_rounds

if TYPE_CHECKING:
    from helpers.cold.places import ObjectPlace, ServedPlace
    from helpers.cold.servers import HdfsServer, S3Server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run moto's S3 server for the session."""
    from helpers.cold.servers import start_moto

    server = start_moto(tmp_path_factory.mktemp("moto"))
    yield server
    server.process.stop()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run SeaweedFS for the session."""
    from helpers.cold.servers import start_seaweed

    server = start_seaweed(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.process.stop()


@pytest.fixture(scope="session")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run SeaweedFS with an Iceberg REST catalog for the session."""
    from helpers.cold.servers import start_seaweed

    server = start_seaweed(tmp_path_factory.mktemp("lake_server"), catalog=True)
    yield server
    server.process.stop()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """Run HDFS for the session; skip where its jars are out of reach."""
    from dlspark.testing.java_process import OutOfReachError
    from helpers.cold.servers import start_hdfs

    try:
        server = start_hdfs(tmp_path_factory.mktemp("hdfs"))
    except OutOfReachError as reason:
        pytest.skip(str(reason))
    yield server
    server.process.stop()


@pytest.fixture
def hdfs_place(hdfs: HdfsServer) -> ServedPlace:
    """Give a folder of HDFS with nothing in it."""
    from helpers.cold.places import ServedPlace

    return ServedPlace(f"{hdfs.root}/{uuid.uuid4().hex}", {"endpoint": hdfs.endpoint}, part_bytes=1 << 20)


@pytest.fixture
def moto_place(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedPlace]:
    """Give a prefix of moto's bucket with nothing below it, and its keys to this process."""
    yield from _prefix(moto, monkeypatch)


@pytest.fixture
def seaweed_place(seaweed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedPlace]:
    """Give a prefix of SeaweedFS's bucket with nothing below it, and its keys to this process."""
    yield from _prefix(seaweed, monkeypatch)


@pytest.fixture(params=["memory", "folder", "seaweed", "hdfs", *with_rounds("moto")])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    """Give a place for objects with nothing in it; a test that takes it runs on each kind (moto with --rounds)."""
    return place_of(request, tmp_path)


def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    """Return the place that a fixture's parameter names, for fixtures with other lists of them."""
    from helpers.cold.places import ObjectPlace, folder_place, memory_place

    if request.param == "memory":
        return memory_place()
    if request.param == "folder":
        return folder_place(tmp_path / "cold")
    given = request.getfixturevalue(f"{request.param}_place")
    assert isinstance(given, ObjectPlace)
    return given


def _prefix(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedPlace]:
    from helpers.cold.places import ServedPlace
    from helpers.cold.servers import BUCKET, KEYS

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    prefix = uuid.uuid4().hex
    yield ServedPlace(f"s3://{BUCKET}/{prefix}", {"endpoint": server.endpoint, "region": "us-east-1"}, KEYS)
    # The servers keep what they have in memory, or on a small disk.
    client = server.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
        for found in page.get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=found["Key"])
    for found in client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", ()):
        client.abort_multipart_upload(Bucket=BUCKET, Key=found["Key"], UploadId=found["UploadId"])
