"""Auto-recovery's configuration: in a node's file, every key known to both, nothing misspelled accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.paths import CONF

from storage_node.autorecovery.__main__ import main
from storage_node.errors import BookieConfigurationError
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.files import MetadataSettings, NodeFile

FILE = CONF / "bookie.conf"


def test_the_shipped_file_has_the_defaults() -> None:
    file = NodeFile.read(FILE)
    assert file.auto_recovery() == AutoRecoverySettings()
    assert file.metadata() == MetadataSettings()


def test_values_are_read_as_their_types_and_the_clients_are_handed_on() -> None:
    settings = NodeFile(
        {
            "autoRecoveryDaemonEnabled": "True",
            "lostBookieRecoveryDelay": "60",
            "replicationRateByBytes": "-1",
            "reppDnsResolverClass": "racks",
            "nettyMaxFrameSizeBytes": "2000000",
            "journalDirectories": "/j",
        }
    ).auto_recovery()
    assert settings.auto_recovery_daemon_enabled
    assert (settings.lost_bookie_recovery_delay_s, settings.rate_by_bytes) == (60, -1)
    assert settings.client.placement.resolver == "racks"
    assert settings.client.max_frame_bytes == 2_000_000


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("lostBookieRecoveryDelay", "-1", "outside 0.."),
        ("lostBookieRecoveryDelay", "soon", "is not a whole number"),
        ("autoRecoveryDaemonEnabled", "2", "is not true or false"),
        ("auditorLedgerVerificationPercentage", "101", "outside 0..100"),
        ("rereplicationEntryBatchSize", "0", "outside 1..1000"),
        ("reppDnsResolverClass", "guess", "guess"),
    ],
)
def test_bad_values_are_refused_by_name(key: str, text: str, message: str) -> None:
    with pytest.raises(BookieConfigurationError, match=message):
        NodeFile({key: text}).auto_recovery()


def test_a_process_of_its_own_refuses_unknown_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf = tmp_path / "bad.conf"
    conf.write_text("zkServers=127.0.0.1:1\nlostBookieRecoveryDelays=3\n")
    assert main(["--conf", str(conf)]) == 1
    assert "Did you mean lostBookieRecoveryDelay?" in caplog.text
    assert main(["--conf", str(tmp_path / "nowhere.conf")]) == 1
    assert "nowhere.conf" in caplog.text
