"""Settings of a write proxy: each of upstream's keys is honoured or refused with its reason."""

from __future__ import annotations

import pytest

from dlspark.core.settings.operations import StreamPartition
from dlspark.errors import SettingsError
from dlspark.serving.write_proxy.settings import GROUPS, REGISTRY, WITHOUT_MEANING, WriteProxySettings
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


@pytest.mark.parametrize(("region", "number"), [("LOCAL", 0), ("local", 0), ("0", 0), ("15", 15)])
def test_a_region_is_a_number_or_local(region: str, number: int) -> None:
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
