"""Settings of a write proxy: each of upstream's keys is honoured or refused with its reason; which are the proxy's and
which the log library's, wherever they come from.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dlspark.core.settings.operations import StreamPartition
from dlspark.core.settings.settings import dynamic_values
from dlspark.errors import SettingsError
from dlspark.serving.write_proxy.settings import (
    GROUPS,
    REGISTRY,
    WITHOUT_MEANING,
    WriteProxySettings,
    read_configuration,
    with_stream_files,
)
from metadata.foundation.settings import settings_of

UPSTREAM = [
    "server_dlsn_version",
    "server_region_id",
    "server_port",
    "server_shard",
    "server_threads",
    "server_enable_perstream_stat",
    "server_graceful_shutdown_period_ms",
    "server_service_timeout_ms",
    "server_stream_probation_timeout_ms",
    "stream_partition_converter_class",
    "bpsSoftServiceLimit",
    "bpsHardServiceLimit",
    "rpsSoftServiceLimit",
    "rpsHardServiceLimit",
    "rpsStreamAcquireServiceLimit",
    "bpsStreamAcquireServiceLimit",
    "maxAcquiredPartitionsPerProxy",
    "maxCachedPartitionsPerProxy",
    "server_writer_close_timeout_ms",
    "bpsSoftWriteLimit",
    "bpsHardWriteLimit",
    "rpsSoftWriteLimit",
    "rpsHardWriteLimit",
]
"""The keys of upstream's page on write proxies, the time-out of its writers, and the limits of streams."""


@pytest.mark.parametrize("key", UPSTREAM)
def test_a_key_of_upstreams_is_honoured_or_refused_with_its_reason(key: str) -> None:
    if key in REGISTRY:
        assert not REGISTRY.find(key)[2].own
        return
    with pytest.raises(SettingsError, match=f"{key} has no effect here: ") as caught:
        WriteProxySettings.from_mapping({key: "1"})
    assert WITHOUT_MEANING[key] in str(caught.value)


def test_every_key_that_upstream_does_not_have_is_marked_as_own() -> None:
    others = {info.key for group in GROUPS for info in settings_of(group).values() if not info.own}
    assert others <= set(UPSTREAM)


def test_the_groups_are_all_there_is() -> None:
    grouped = [info.key for group in GROUPS for info in settings_of(group).values()]
    assert sorted(grouped) == sorted(info.key for info in settings_of(WriteProxySettings).values())


def test_values_come_from_files_and_mappings(tmp_path) -> None:
    path = tmp_path / "proxy.conf"
    path.write_text("server_port=8000\nrpsHardServiceLimit = 10\n")
    settings = WriteProxySettings.from_properties(path)
    assert (settings.port, settings.rps_hard_service) == (8000, 10)
    assert settings.with_values({"server_port": 0, "server_shard": "3"}).shard == 3


def test_what_is_unknown_or_out_of_bounds_is_an_error_that_helps() -> None:
    with pytest.raises(SettingsError) as caught:
        WriteProxySettings.from_mapping({"server_prot": "1"})
    assert (caught.value.advice or "").startswith("Did you mean server_port? docs/settings/write-proxy.md")
    for key, value in (("server_port", "65536"), ("server_append_window_bytes", str(32 << 20))):
        with pytest.raises(SettingsError):
            WriteProxySettings.from_mapping({key: value})


@pytest.mark.parametrize(("region", "number"), [("LOCAL", None), ("local", None), ("0", 0), ("15", 15)])
def test_a_region_is_a_number_or_local(region: str, number: int | None) -> None:
    assert WriteProxySettings.from_mapping({"server_region_id": region}).region_number() == number


@pytest.mark.parametrize("region", ["16", "-1", "us-east", ""])
def test_a_region_that_segments_cannot_carry_is_refused(region: str) -> None:
    with pytest.raises(SettingsError, match="server_region_id"):
        WriteProxySettings.from_mapping({"server_region_id": region})


def test_converters_have_upstreams_names() -> None:
    by_delimiter = {"stream_partition_converter_class": "com.twitter.DelimiterStreamPartitionConverter"}
    assert WriteProxySettings.from_mapping(by_delimiter).converter()("flights_7") == StreamPartition("flights", 7)
    assert WriteProxySettings().converter()("flights_7") == StreamPartition("flights_7", 0)
    with pytest.raises(SettingsError, match="stream_partition_converter_class=Mine"):
        WriteProxySettings.from_mapping({"stream_partition_converter_class": "Mine"})


def test_a_stream_has_limits_of_its_own_and_nothing_else() -> None:
    settings = WriteProxySettings().for_stream({"rpsHardWriteLimit": "5"})
    assert settings.rps_hard_write == 5
    with pytest.raises(SettingsError, match="holds for the whole proxy"):
        settings.for_stream({"server_port": 1})
    with pytest.raises(SettingsError):
        settings.for_stream({"rpsHardWriteLimits": 1})


def test_one_file_has_the_keys_of_both(tmp_path: Path) -> None:
    file = tmp_path / "proxy.conf"
    file.write_text("server_shard=3\nrpsHardServiceLimit=5\nbkcEnsembleSize=4\nbkc.delayEnsembleChange=true\n")
    found = read_configuration(file, environment={})
    assert (found.proxy.shard, found.proxy.rps_hard_service) == (3, 5)
    assert found.logs.ensemble_size == 4
    assert dict(found.logs.ledger_client) == {"delayEnsembleChange": "true"}


def test_variables_go_over_the_file_and_options_over_both(tmp_path: Path) -> None:
    file = tmp_path / "proxy.conf"
    file.write_text("server_shard=3\nserver_port=1\nwriterOutputBufferSize=5\nreadAheadMaxRecords=6\n")
    environment = {
        "DLSPARK_CONF": str(file),
        "DLSPARK_SET_server_shard": "4",
        "DLSPARK_SET_server_port": "2",
        "DLSPARK_SET_writerOutputBufferSize": "7",
        "OTHER": "x",
    }
    found = read_configuration(None, {"server_port": 9, "readAheadMaxRecords": 8}, environment)
    assert (found.proxy.shard, found.proxy.port) == (4, 9)
    assert found.logs.as_mapping()["writerOutputBufferSize"] == 7
    assert found.logs.as_mapping()["readAheadMaxRecords"] == 8
    other = tmp_path / "other.conf"
    other.write_text("server_shard=1\n")
    assert read_configuration(other, environment={"DLSPARK_CONF": str(file)}).proxy.port == 0


def test_a_foreign_owner_is_answered_at_once_whatever_is_set() -> None:
    assert read_configuration(None, {"lockTimeoutSeconds": 30}, {}).logs.lock_timeout_s == 0


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("server_prot", "server_port"),
        ("server_threads", "event loop"),
        ("bkcEnsemblSize", "bkcEnsembleSize"),
        ("numWorkerThreads", "no effect"),
    ],
)
def test_a_key_that_cannot_be_honoured_is_refused_by_whose_it_is(key: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_configuration(None, {key: "1"}, {})


def test_a_file_of_upstreams_starts_a_proxy_and_what_it_says_in_vain_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "upstream.conf"
    path.write_text(
        "# a proxy\nserver_port = 8000\n\nserver_threads=\\\n  16\nserver_dlsn_version: 1\nnumWorkerThreads=4\n"
        "bkcEnsembleSize=5\n"
    )
    found = read_configuration(path, {}, {})
    assert (found.proxy.port, found.logs.ensemble_size) == (8000, 5)
    said = [record.getMessage() for record in caplog.records]
    assert [message.partition(" is ignored")[0] for message in said] == [
        f"{path}, line 4: the setting server_threads has no effect here and",
        f"{path}, line 6: the setting server_dlsn_version has no effect here and",
        f"{path}, line 7: the setting numWorkerThreads has no effect here and",
    ]
    assert all("event loop" in said[at] for at in (0, 2))


def test_what_nobody_knows_is_an_error_in_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "proxy.conf"
    path.write_text("server_thread=16\n")
    with pytest.raises(SettingsError, match="there is no setting 'server_thread'"):
        read_configuration(path, {}, {})


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        read_configuration("/nowhere/proxy.conf", environment={})


def test_the_files_of_streams_are_the_log_librarys_too(tmp_path: Path) -> None:
    found = with_stream_files(read_configuration(None, {}, {}), tmp_path)
    assert found.logs.stream_config_directory == str(tmp_path)
    assert dynamic_values({"rpsHardWriteLimit": "5", "periodicFlushFrequencyMilliSeconds": "7"}) == {
        "periodicFlushFrequencyMilliSeconds": 7
    }
