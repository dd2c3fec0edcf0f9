"""What is S3's own, on servers: encryption, credentials, missing buckets, keys that are not ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.cold.places import ServedPlace, get, names, put
from helpers.cold.servers import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

from dlspark.objects.addresses import parse_root
from dlspark.objects.errors import (
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dlspark.objects.opened_store import ReadPolicy
from dlspark.objects.opening import open_store

ONCE = ReadPolicy(attempts=1)
URL = "s3://bucket/a.parquet"


async def test_encryption_by_a_key_is_asked_for_of_small_and_big_objects(
    moto: S3Server, moto_place: ServedPlace
) -> None:
    moto_place.options = {**moto_place.options, "encryption-key": "alias/cold", "bucket-key": "true"}
    store = moto_place.open()
    for name, size in (("small", 10), ("big", moto_place.part_bytes + 10)):
        url = f"{store.root}/{name}.parquet"
        await put(store, url, bytes(size))
        key = url.removeprefix(f"s3://{BUCKET}/")
        found = await asyncio.to_thread(moto.client().head_object, Bucket=BUCKET, Key=key)
        assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", "alias/cold")
    await store.close()


async def test_credentials_come_from_a_profile_where_the_environment_has_none(
    seaweed_place: ServedPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"[tests]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "tests")
    store = seaweed_place.open(ONCE)
    url = f"{store.root}/by-profile.parquet"
    await put(store, url, b"profile")
    assert await get(store, url) == b"profile"
    await store.close()


async def test_no_credentials_are_told_as_that(
    seaweed_place: ServedPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    store = seaweed_place.open(ONCE)
    url = f"{store.root}/nobody.parquet"
    with pytest.raises(StoreRefusedError, match="AWS_ACCESS_KEY_ID"):
        await store.head(url)
    with pytest.raises(StoreRefusedError, match="AWS_ACCESS_KEY_ID"):
        await store.delete(url)
    await store.close()


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_wrong_keys_are_refused_and_appear_in_no_message(
    seaweed_place: ServedPlace, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(wrong, "wrong-and-secret")
    store = seaweed_place.open()
    url = f"{store.root}/a.parquet"
    for call in (store.head(url), store.read(url, [(0, 1)]), store.delete(url), put(store, url, b"x"), names(store)):
        with pytest.raises(StoreRefusedError) as caught:
            await call
        for secret in ("wrong-and-secret", SECRET_KEY, ACCESS_KEY):
            assert secret not in str(caught.value)
    await store.close()


async def test_a_missing_bucket_is_no_missing_object(moto_place: ServedPlace) -> None:
    store = open_store("s3://no-such-bucket/prefix", moto_place.options)
    url = f"{store.root}/a.parquet"
    for call in (store.head(url), store.read(url, [(0, 1)]), put(store, url, b"x"), store.delete(url)):
        with pytest.raises(StoreRefusedError):
            await call
    await store.close()


async def test_an_object_is_found_by_its_whole_address(moto_place: ServedPlace) -> None:
    store = moto_place.open()
    url = f"{store.root}/ns/log/1-2-abc.parquet"
    await put(store, url, b"here")
    await store.close()
    reader = open_store(url, moto_place.options)
    assert reader.root == f"s3://{BUCKET}"
    assert await get(reader, url) == b"here"
    await reader.close()


async def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_sent(moto_place: ServedPlace) -> None:
    store = open_store(moto_place.root, {"endpoint": "http://127.0.0.1:1"}, policy=ONCE)
    url = f"{store.root}/a.parquet"
    for call in (store.head(url), store.delete(url), put(store, url, b"x"), names(store)):
        with pytest.raises(StoreUnavailableError):
            await call
    await store.close()


async def test_a_key_that_no_object_of_ours_can_have_is_passed_over(moto: S3Server, moto_place: ServedPlace) -> None:
    store = moto_place.open()
    prefix = moto_place.root.removeprefix(f"s3://{BUCKET}/")
    for name in ("b\u00fccher", "a b", ".hidden", "a%2Fb"):
        await asyncio.to_thread(moto.client().put_object, Bucket=BUCKET, Key=f"{prefix}/{name}", Body=b"x")
    await put(store, f"{store.root}/ours.parquet", b"x")
    assert await names(store) == {f"{store.root}/ours.parquet"}
    with pytest.raises(ObjectNotFoundError):
        await store.head(f"{store.root}/theirs.parquet")
    await store.close()


def test_a_root_of_s3() -> None:
    assert parse_root("s3://bucket/a/b/").url == "s3://bucket/a/b"
    assert parse_root("s3://bucket").path == ""
