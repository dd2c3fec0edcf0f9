"""Addresses of objects and of their roots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.objects.addresses import name_of_temporary, parse_root, root_of, temporary_name
from dlspark.objects.errors import ObjectAddressError


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("/data/cold", "file:///data/cold"),
        ("/data/cold/", "file:///data/cold"),
        ("file:///data/cold", "file:///data/cold"),
        ("file://localhost/data/cold", "file:///data/cold"),
        ("/home/me/.dlspark/cold", "file:///home/me/.dlspark/cold"),
        ("s3://bucket", "s3://bucket"),
        ("s3://my.bucket-1/a/b=c/", "s3://my.bucket-1/a/b=c"),
        ("hdfs://namenode:8020/cold", "hdfs://namenode:8020/cold"),
        ("hdfs://nameservice/cold", "hdfs://nameservice/cold"),
    ],
)
def test_a_root_has_one_address(address: str, url: str) -> None:
    assert parse_root(address).url == url
    assert parse_root(url).url == url


@pytest.mark.parametrize(
    "address",
    [
        "",
        "data/cold",
        "./cold",
        "~/cold",
        "file://host/data",
        "file:///",
        "/",
        "/data/../cold",
        "/data/./cold",
        "/data//cold",
        "/d\u00e4ta",
        "/my data",
        "/a%20b",
        "s3:///a",
        "s3://B/a",
        "s3://bucket/../a",
        "s3://bucket/.a",
        "s3://bucket//a",
        "s3a://bucket/a",
        "gs://bucket/a",
        "http://host/a",
        "hdfs:///a",
        "hdfs://host:port/a",
        "/data/a.parquet",
        "s3://bucket/a\n",
        "memory://a/b",
    ],
)
def test_what_is_no_root_is_refused(address: str) -> None:
    with pytest.raises(ObjectAddressError):
        parse_root(address)


@pytest.mark.parametrize("address", ["s3://key:secret@bucket/a", "hdfs://me:secret@host:1/a", "file://me:secret@h/a"])
def test_a_password_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ObjectAddressError) as caught:
        parse_root(address)
    assert "secret" not in str(caught.value)


def test_the_root_of_an_object() -> None:
    assert root_of("file:///data/cold/ns/log/1-2-a.parquet").url == "file:///data/cold/ns/log"
    assert root_of("/data/cold/ns/log/1-2-a.parquet").url == "file:///data/cold/ns/log"
    assert root_of("s3://bucket/p/ns/1-2-a.parquet").url == "s3://bucket"
    assert root_of("s3://bucket/a.parquet").url == "s3://bucket"
    assert root_of("hdfs://h:1/p/a.parquet").url == "hdfs://h:1"
    assert root_of("s3://bucket/p").url == "s3://bucket/p"


def test_names_and_folders_lie_below_the_root() -> None:
    root = parse_root("s3://bucket/p")
    assert root.name_of("s3://bucket/p/a/b.parquet") == "a/b.parquet"
    assert root.url_of("a/b.parquet") == "s3://bucket/p/a/b.parquet"
    assert root.folder_of("s3://bucket/p/a/") == "a/"
    assert root.folder_of("s3://bucket/p/") == root.folder_of("s3://bucket/p") == ""
    for url in ("s3://bucket/p2/a", "s3://bucket/a", "s3://other/p/a", "s3://bucket/p", "s3://bucket/p/"):
        with pytest.raises(ObjectAddressError):
            root.name_of(url)
    for prefix in ("s3://bucket/p/a", "s3://bucket/", "s3://bucket/p/../q/", "s3://bucket/p//"):
        with pytest.raises(ObjectAddressError):
            root.folder_of(prefix)


@given(st.text(max_size=40))
def test_no_text_leads_out_of_the_root(text: str) -> None:
    root = parse_root("/data/cold")
    try:
        name = root.name_of(f"{root.url}/{text}")
    except ObjectAddressError:
        return
    assert name == text
    assert all(part and not part.startswith(".") for part in name.split("/"))
    assert name.isascii()
    assert name.isprintable()


def test_a_temporary_name_says_what_it_is_for_and_is_no_objects() -> None:
    name = temporary_name("1-2-a.parquet")
    assert name_of_temporary(name) == "1-2-a.parquet"
    assert temporary_name("1-2-a.parquet") != name
    for other in ("1-2-a.parquet", ".hidden", ".0123.a", ".0123456789abcdeX.a"):
        assert name_of_temporary(other) is None
    with pytest.raises(ObjectAddressError):
        parse_root("/data").name_of(f"file:///data/{name}")
