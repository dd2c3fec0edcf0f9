"""Auto-recovery's configuration: in a node's file, every key known to both, nothing misspelled accepted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from storage_node.autorecovery.__main__ import main
from storage_node.errors import BookieConfigurationError
from storage_node.settings.autorecovery import AutoRecoverySettings, MetadataSettings
from storage_node.settings.bookie import read_properties
from storage_node.settings.other_keys import AUTO_RECOVERY_KEYS, PLACEMENT_KEYS
from storage_node.settings.placement import PlacementSettings

CONF = Path(__file__).parents[3] / "conf" / "bookie.conf"


def test_a_node_knows_whose_keys_the_others_are() -> None:
    own = {str(item.metadata["key"]) for item in fields(AutoRecoverySettings) if item.metadata}
    assert own == AUTO_RECOVERY_KEYS
    assert {str(item.metadata["key"]) for item in fields(PlacementSettings)} == PLACEMENT_KEYS


def test_the_shipped_file_has_the_defaults() -> None:
    values = read_properties(CONF)
    assert AutoRecoverySettings.from_mapping(values) == AutoRecoverySettings()
    assert MetadataSettings.from_mapping(values) == MetadataSettings()


def test_values_are_read_as_their_types_and_the_clients_are_handed_on() -> None:
    settings = AutoRecoverySettings.from_mapping(
        {
            "autoRecoveryDaemonEnabled": "True",
            "lostBookieRecoveryDelay": "60",
            "replicationRateByBytes": "-1",
            "reppDnsResolverClass": "racks",
            "nettyMaxFrameSizeBytes": "2000000",
            "journalDirectories": "/j",
        }
    )
    assert settings.auto_recovery_daemon_enabled
    assert (settings.lost_bookie_recovery_delay_s, settings.rate_by_bytes) == (60, -1)
    assert settings.client.placement.resolver == "racks"
    assert settings.client.max_frame_bytes == 2_000_000


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("lostBookieRecoveryDelay", "-1", "out of bounds"),
        ("lostBookieRecoveryDelay", "soon", "is no int"),
        ("autoRecoveryDaemonEnabled", "1", "is no bool"),
        ("auditorLedgerVerificationPercentage", "101", "0 to 100"),
        ("rereplicationEntryBatchSize", "0", "out of bounds"),
        ("reppDnsResolverClass", "guess", "guess"),
    ],
)
def test_bad_values_are_refused_by_name(key: str, text: str, message: str) -> None:
    with pytest.raises(BookieConfigurationError, match=message):
        AutoRecoverySettings.from_mapping({key: text})


def test_a_process_of_its_own_refuses_unknown_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf = tmp_path / "bad.conf"
    conf.write_text("zkServers=127.0.0.1:1\nlostBookieRecoveryDelays=3\n")
    assert main(["--conf", str(conf)]) == 1
    assert "nearest key is lostBookieRecoveryDelay;" in caplog.text
    assert main(["--conf", str(tmp_path / "nowhere.conf")]) == 1
    assert "nowhere.conf" in caplog.text
