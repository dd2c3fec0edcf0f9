"""Settings of cold storage: places for files, times that fit together, and slots that writers and movers agree on."""

from __future__ import annotations

import pytest

from dlspark.core.settings.cold import cold_root, slot_of, slot_start_ms
from dlspark.core.settings.settings import Settings, lookup
from dlspark.errors import SettingsError

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("", ""),
        ("/var/cold", "file:///var/cold"),
        ("/var/cold/", "file:///var/cold"),
        ("file:///var/cold", "file:///var/cold"),
        ("file://localhost/var/cold/", "file:///var/cold"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://a-bucket/some/prefix/", "s3://a-bucket/some/prefix"),
        ("hdfs://name-node:8020/cold", "hdfs://name-node:8020/cold"),
    ],
)
def test_a_place_has_one_address_however_it_is_written(path, root):
    settings = Settings.from_mapping({"coldStoragePath": path})
    assert settings.cold_root == root == cold_root(path)
    assert settings.with_values({"coldStoragePath": root}).cold_root == root


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"coldStoragePath": "cold"}, "no place"),
        ({"coldStoragePath": "gs://bucket/x"}, "no place"),
        ({"coldStoragePath": "file://host/x"}, "has no host"),
        ({"coldStoragePath": "/"}, "root of the file system"),
        ({"coldStoragePath": "hdfs:///x"}, "host with its port"),
        ({"coldStoragePath": "s3:///x"}, "bucket's name"),
        ({"coldStoragePath": "s3://B/x"}, "bucket's name"),
        ({"coldStoragePath": "/a/../b"}, "cannot be a part"),
        ({"coldStoragePath": "/a//b"}, "cannot be a part"),
        ({"coldStoragePath": "s3://bucket/a%2f"}, "cannot be a part"),
        ({"coldStoragePath": "s3://bucket/a?versionId=1"}, "cannot be a part"),
        ({"coldStoragePath": "s3://key:secret@bucket/a"}, "a user or a key"),
        ({"coldStoragePath": "s3://bucket", "coldStorageEndpoint": "server:9000"}, "is no address"),
        ({"coldStorageEndpoint": "http://key:secret@server"}, "name or password"),
        ({"coldStoragePath": "/a", "coldStorageEndpoint": "http://server:9000"}, "no server"),
        ({"coldStoragePath": "/a", "coldStorageRegion": "eu-west-1"}, "no S3 bucket"),
        ({"coldStoragePath": "hdfs://h/a", "coldStorageEncryptionKey": "k"}, "no S3 bucket"),
        ({"coldRetentionHours": 0}, "as soon as it is made"),
        ({"coldRetentionHours": 24, "coldHotRetentionSeconds": -1}, "keeps every hot copy"),
        ({"coldRetentionHours": 4}, "not longer than"),
        ({"coldRetentionHours": -2}, "outside"),
        ({"coldTargetBytes": 0}, "outside"),
        ({"coldMaxDelaySeconds": 0}, "outside"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason_and_advice(values, message):
    with pytest.raises(SettingsError, match=message) as caught:
        Settings.from_mapping(values)
    assert caught.value.advice
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"coldRetentionHours": 5},
        {"coldHotRetentionSeconds": -1},
        {"coldStorageEndpoint": "http://server:9000", "coldStorageRegion": "somewhere"},
        {"coldStoragePath": "s3://bucket", "coldStorageEncryptionKey": "k"},
    ],
)
def test_what_makes_sense_is_taken(values):
    assert Settings.from_mapping(values) != Settings()


def test_readers_are_told_where_and_writers_also_how_it_is_encrypted():
    settings = Settings.from_mapping(
        {
            "coldStoragePath": "s3://bucket/x",
            "coldStorageEndpoint": "http://server:9000",
            "coldStorageRegion": "r",
            "coldStorageEncryptionKey": "k",
        }
    )
    assert settings.cold_options == {"endpoint": "http://server:9000", "region": "r"}
    assert settings.cold_write_options == settings.cold_options | {"encryption-key": "k", "bucket-key": "true"}
    assert Settings().cold_write_options == {}


def test_each_log_has_its_own_and_takes_it_while_it_is_open():
    for key in ("coldStoragePath", "coldFreshnessSeconds", "coldHotRetentionSeconds", "coldRetentionHours"):
        assert lookup(key).per_log
        assert lookup(key).dynamic


def test_a_day_has_three_hundred_slots_at_the_default():
    slot_s = Settings(cold_path="/cold").cold_slot_s
    for log in ("flights", "trades", "x" * 200):
        slots = {slot_of(log, slot_s, 1_700_000_000_000 + at) for at in range(0, DAY_MS, 1000)}
        assert 300 <= len(slots) <= 301  # a day that begins within a slot touches one more
    assert Settings().cold_slot_s == 0
    assert Settings(cold_path="/cold", cold_freshness_s=0).cold_slot_s == 0


@pytest.mark.parametrize(("freshness_s", "slot_s"), [(300, 288), (75, 72), (60, 57), (30, 27), (10, 9)])
def test_what_a_slot_leaves_for_copying_does_not_shrink_to_nothing(freshness_s: int, slot_s: float):
    assert Settings(cold_path="/cold", cold_freshness_s=freshness_s).cold_slot_s == pytest.approx(slot_s)


def test_a_slot_begins_where_the_one_before_ends_and_not_for_all_logs_at_once():
    starts = set()
    for log in ("a", "b", "c"):
        slot = slot_of(log, 288.0, 1_700_000_000_000)
        start = slot_start_ms(log, 288.0, slot)
        assert start <= 1_700_000_000_000 < slot_start_ms(log, 288.0, slot + 1)
        assert slot_of(log, 288.0, start) == slot
        assert slot_of(log, 288.0, start - 1) == slot - 1
        starts.add(start % 288_000)
    assert len(starts) == 3
