"""Configuration: every key is documented, and nothing that cannot be honoured is accepted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from storage_node.bookie import BookieSettings
from storage_node.errors import BookieConfigurationError
from storage_node.settings.other_keys import AUTO_RECOVERY_KEYS

CONF = Path(__file__).parents[3] / "conf" / "bookie.conf"
DIRECTORIES = {"journalDirectories": "/j", "ledgerDirectories": "/l1, /l2"}


def test_the_shipped_file_names_every_key_with_its_default() -> None:
    lines = [line.lstrip("#") for line in CONF.read_text().splitlines() if "=" in line and not line.startswith("# ")]
    named = dict(line.split("=", 1) for line in lines)
    assert set(named) == {str(f.metadata["key"]) for f in fields(BookieSettings)} | AUTO_RECOVERY_KEYS
    loaded = BookieSettings.from_properties(CONF)
    bare = BookieSettings(loaded.journal_directories, loaded.ledger_directories)
    assert loaded == bare


def test_values_are_read_as_their_types() -> None:
    settings = BookieSettings.from_mapping(
        {**DIRECTORIES, "bookiePort": "0", "allowLoopback": "FALSE", "bookieId": "n1", "diskUsageThreshold": "0.8"}
    )
    assert settings.ledger_directories == ("/l1", "/l2")
    assert (settings.bookie_port, settings.allow_loopback, settings.bookie_id) == (0, False, "n1")
    assert settings.low_water_mark == 0.8


def test_upstreams_singular_name_of_the_journal_is_understood() -> None:
    settings = BookieSettings.from_mapping({"journalDirectory": "/j", "ledgerDirectories": "/l"})
    assert settings.journal_directories == ("/j",)


def test_memory_and_logs_may_be_small_where_entries_are() -> None:
    values = {**DIRECTORIES, "skipListSizeLimit": str(1024 * 1024), "logSizeLimit": str(256 * 1024)}
    settings = BookieSettings.from_mapping({**values, "nettyMaxFrameSizeBytes": "65536", "compactionRate": "7"})
    assert settings.slab_bytes == 256 * 1024
    assert settings.compaction_rate_by_entries == 7
    for frame in (200_000, 300_000, 1024 * 1024, 5 * 1024 * 1024):
        values.update(skipListSizeLimit=str(31 * 1024 * 1024), logSizeLimit=str(16 * 1024 * 1024))
        try:
            slab = BookieSettings.from_mapping({**values, "nettyMaxFrameSizeBytes": str(frame)}).slab_bytes
        except BookieConfigurationError:
            assert frame > 4 * 1024 * 1024
        else:
            assert slab >= frame + 8192


BAD: dict[str, tuple[dict[str, str], str]] = {
    "unknown key": ({"bookiePrt": "1"}, "nearest key is bookiePort"),
    "unknown key of auto-recovery": ({"autoRecoveryDeamonEnabled": "1"}, "nearest key is autoRecoveryDaemonEnabled"),
    "no number": ({"bookiePort": "many"}, "bookiePort=many"),
    "no boolean": ({"allowLoopback": "perhaps"}, "allowLoopback=perhaps"),
    "out of bounds": ({"bookiePort": "65536"}, "0 to 65535"),
    "no journal": ({"journalDirectories": ""}, "names no directory"),
    "a journal twice": ({"journalDirectories": "/a,/a"}, "twice"),
    "no ledger directory": ({"ledgerDirectories": ""}, "names no directory"),
    "a directory twice": ({"ledgerDirectories": "/l,/l"}, "twice"),
    "marks the wrong way round": ({"diskUsageThreshold": "0.5", "diskUsageLwmThreshold": "0.9"}, "does not hold"),
    "a compaction that never ends": ({"majorCompactionThreshold": "1.0"}, "not below 1"),
    "minor above major": ({"minorCompactionThreshold": "0.9"}, "above majorCompactionThreshold"),
    "compaction more often than collection": ({"minorCompactionInterval": "60"}, "shorter than gcWaitTime"),
    "a log smaller than a slab": ({"logSizeLimit": "1048576"}, "logSizeLimit is below 16777216"),
    "memory for no four entries": ({"skipListSizeLimit": "16777216"}, "skipListSizeLimit is below 33554432"),
    "frames beyond what memory is cut into": ({"nettyMaxFrameSizeBytes": "99999999"}, "out of bounds"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_configurations_are_refused_by_name(what: str) -> None:
    values, message = BAD[what]
    with pytest.raises(BookieConfigurationError, match=message):
        BookieSettings.from_mapping({**DIRECTORIES, **values})


def test_missing_directories_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BookieConfigurationError, match="journalDirectories is not set"):
        BookieSettings.from_mapping({"ledgerDirectories": "/l"})
    with pytest.raises(BookieConfigurationError, match=r"nowhere\.conf"):
        BookieSettings.from_properties(tmp_path / "nowhere.conf")
    bad = tmp_path / "bad.conf"
    bad.write_text("journalDirectories=/j\nledgerDirectories=/l\nflushIntervall=3\n")
    with pytest.raises(BookieConfigurationError, match=r"flushInterval;.*") as caught:
        BookieSettings.from_properties(bad)
    assert str(bad) in str(caught.value)
