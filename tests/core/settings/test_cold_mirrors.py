"""Mirrors of cold storage: places for other regions' readers, as settings name them."""

from __future__ import annotations

import pytest

from dlspark.core.settings.settings import Settings, lookup
from dlspark.errors import SettingsError
from metadata.distributedlog.cold_places import ColdMirror

PATH = {"coldStoragePath": "s3://bucket/dl"}


def mirrors(text, **more):
    return Settings.from_mapping({**PATH, "coldStorageMirrors": text, **more}).cold_mirrors


def test_each_region_has_its_place_and_what_its_store_needs():
    us, asia, here = mirrors(
        "us=s3://bucket-us/dl/ region=us-east-2 encryption-key=k bucket-key=true; "
        "asia=hdfs://nn:9000/dl endpoint=http://nn:9870;here=/mnt/cold;"
    )
    assert us.noted == ColdMirror("us", "s3://bucket-us/dl", {"region": "us-east-2"})
    assert us.write_options == {"region": "us-east-2", "encryption-key": "k", "bucket-key": "true"}
    assert asia.noted == ColdMirror("asia", "hdfs://nn:9000/dl", {"endpoint": "http://nn:9870"})
    assert here.noted == ColdMirror("here", "file:///mnt/cold")
    assert Settings().cold_mirrors == ()
    assert lookup("coldStorageMirrors").per_log
    assert lookup("coldStorageMirrors").dynamic


def test_one_address_on_two_servers_is_two_places():
    found = mirrors("us=s3://bucket/dl endpoint=http://us:9000;asia=s3://bucket/dl endpoint=http://asia:9000")
    assert [one.region for one in found] == ["us", "asia"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("us", "no region with its address"),
        ("=s3://b-us/x", "no region with its address"),
        ("us=", "no region with its address"),
        ("u/s=s3://b-us/x", "not the name of a region"),
        ("us=gs://bucket/x", "no place"),
        ("us=relative/path", "no place"),
        ("us=s3://key:secret@bucket/x", "a user or a key"),
        ("us=s3://b-us/x endpoint=http://key:secret@server", "name or password"),
        ("us=s3://b-us/x endpoint=server:9000", "is no address"),
        ("us=s3://b-us/x color=red", "'color' is no option"),
        ("us=s3://b-us/x region", "'region' is no option"),
        ("us=s3://b-us/x region=a region=b", "given twice"),
        ("us=s3://b-us/x bucket-key=true", "without encryption-key"),
        ("us=/mnt/us endpoint=http://server:9000", "'endpoint' is no option of file"),
        ("us=hdfs://nn:9000/x region=us-east-2", "'region' is no option of hdfs"),
        ("us=s3://b-us/x;us=s3://c-us/x", "two mirrors of region us"),
        ("us=s3://b-us/x;asia=s3://b-us/x region=r", "have the same place"),
        ("us=s3://bucket/dl/", "the place of the files themselves"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason_and_advice(text, message):
    with pytest.raises(SettingsError, match=message) as caught:
        mirrors(text)
    assert caught.value.advice
    assert "secret" not in str(caught.value)


def test_a_mirror_that_is_the_place_of_the_files_by_a_link_is_refused(tmp_path):
    (tmp_path / "cold").mkdir()
    for name in ("us", "asia"):
        (tmp_path / name).symlink_to(tmp_path / "cold")
    place = {"coldStoragePath": str(tmp_path / "cold")}
    with pytest.raises(SettingsError, match="the place of the files themselves"):
        mirrors(f"us={tmp_path / 'us'}", **place)
    with pytest.raises(SettingsError, match="have the same place"):
        mirrors(f"us={tmp_path / 'us'};asia={tmp_path / 'asia'}")
    (tmp_path / "other").mkdir()
    assert len(mirrors(f"us={tmp_path / 'other'}", **place)) == 1


def test_mirrors_of_nothing_are_refused():
    with pytest.raises(SettingsError, match="coldStoragePath is not"):
        Settings.from_mapping({"coldStorageMirrors": "us=s3://b-us/x"})
