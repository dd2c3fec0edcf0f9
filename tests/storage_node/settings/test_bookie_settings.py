"""Configuration: every key is documented, and nothing that cannot be honoured is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.paths import CONF

from metadata.foundation.settings import settings_of
from metadata.security.audit import AuditKeys
from metadata.security.sasl.settings import ClientProofSettings, NodeProofSettings, SaslSettings
from metadata.security.settings import AdmissionSettings, SecuritySettings
from storage_node.errors import BookieConfigurationError
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import NodeFile
from storage_node.settings.http import HttpTlsSettings

FILE = CONF / "bookie.conf"
DIRECTORIES = {"journalDirectories": "/j", "ledgerDirectories": "/l1, /l2"}


def bookie(values: Mapping[str, str]) -> BookieSettings:
    return NodeFile(values).bookie()


def read(path: Path) -> BookieSettings:
    return NodeFile.read(path).bookie()


def test_the_shipped_file_names_every_key_with_its_default() -> None:
    lines = [line.lstrip("#") for line in FILE.read_text().splitlines() if "=" in line and not line.startswith("# ")]
    named = dict(line.split("=", 1) for line in lines)
    owners = (
        BookieSettings,
        HttpTlsSettings,
        SecuritySettings,
        AdmissionSettings,
        SaslSettings,
        NodeProofSettings,
        ClientProofSettings,
        AuditKeys,
        AutoRecoverySettings,
    )
    infos = [info for owner in owners for info in settings_of(owner).values()]
    assert set(named) == {info.key for info in infos}
    loaded = read(FILE)
    bare = BookieSettings(loaded.journal_directories, loaded.ledger_directories)
    assert loaded == bare


def test_values_are_read_as_their_types() -> None:
    settings = bookie(
        {**DIRECTORIES, "bookiePort": "0", "allowLoopback": "FALSE", "bookieId": "n1", "diskUsageThreshold": "0.8"}
    )
    assert settings.ledger_directories == ("/l1", "/l2")
    assert (settings.bookie_port, settings.allow_loopback, settings.bookie_id) == (0, False, "n1")
    assert settings.low_water_mark == 0.8


def test_upstreams_singular_name_of_the_journal_is_understood() -> None:
    settings = bookie({"journalDirectory": "/j", "ledgerDirectories": "/l"})
    assert settings.journal_directories == ("/j",)


def test_memory_and_logs_may_be_small_where_entries_are() -> None:
    values = {**DIRECTORIES, "skipListSizeLimit": str(1024 * 1024), "logSizeLimit": str(256 * 1024)}
    settings = bookie({**values, "nettyMaxFrameSizeBytes": "65536", "compactionRate": "7"})
    assert settings.slab_bytes == 256 * 1024
    assert settings.compaction_rate_by_entries == 7
    for frame in (200_000, 300_000, 1024 * 1024, 5 * 1024 * 1024):
        values.update(skipListSizeLimit=str(31 * 1024 * 1024), logSizeLimit=str(16 * 1024 * 1024))
        try:
            slab = bookie({**values, "nettyMaxFrameSizeBytes": str(frame)}).slab_bytes
        except BookieConfigurationError:
            assert frame > 4 * 1024 * 1024
        else:
            assert slab >= frame + 8192


BAD: dict[str, tuple[dict[str, str], str]] = {
    "unknown key": ({"bookiePrt": "1"}, "Did you mean bookiePort"),
    "unknown key of auto-recovery": ({"autoRecoveryDeamonEnabled": "1"}, "Did you mean autoRecoveryDaemonEnabled"),
    "no number": ({"bookiePort": "many"}, "bookiePort='many'"),
    "no number at all": ({"diskUsageThreshold": "nan"}, "diskUsageThreshold='nan' is not a number"),
    "an underscore": ({"flushInterval": "5_000"}, "flushInterval='5_000' is not a whole number"),
    "no boolean": ({"allowLoopback": "perhaps"}, "allowLoopback='perhaps'"),
    "out of bounds": ({"bookiePort": "65536"}, "outside 0..65535"),
    "no journal": ({"journalDirectories": ""}, "names no directory"),
    "a journal twice": ({"journalDirectories": "/a,/a"}, "twice"),
    "no ledger directory": ({"ledgerDirectories": ""}, "names no directory"),
    "a directory twice": ({"ledgerDirectories": "/l,/l"}, "twice"),
    "marks the wrong way round": ({"diskUsageThreshold": "0.5", "diskUsageLwmThreshold": "0.9"}, "does not hold"),
    "percent in place of a fraction": ({"diskUsageThreshold": "95"}, "with 95.0 and 95.0.*0.95 is 95 percent"),
    "percent of the warning": ({"diskUsageWarnThreshold": "90"}, "with 90.0.*0.9 is 90 percent"),
    "a compaction that never ends": ({"majorCompactionThreshold": "1.0"}, "not below 1"),
    "minor above major": ({"minorCompactionThreshold": "0.9"}, "above majorCompactionThreshold"),
    "compaction more often than collection": ({"minorCompactionInterval": "60"}, "shorter than gcWaitTime"),
    "a log smaller than a slab": ({"logSizeLimit": "1048576"}, "logSizeLimit is below 16777216"),
    "memory for no four entries": ({"skipListSizeLimit": "16777216"}, "skipListSizeLimit is below 33554432"),
    "frames beyond what memory is cut into": ({"nettyMaxFrameSizeBytes": "99999999"}, "outside 1024..7340032"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_configurations_are_refused_by_name(what: str) -> None:
    values, message = BAD[what]
    with pytest.raises(BookieConfigurationError, match=message):
        bookie({**DIRECTORIES, **values})


def test_missing_directories_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BookieConfigurationError, match="journalDirectories is not set"):
        bookie({"ledgerDirectories": "/l"})
    with pytest.raises(BookieConfigurationError, match=r"nowhere\.conf"):
        read(tmp_path / "nowhere.conf")
    twice = tmp_path / "twice.conf"
    twice.write_text("bookiePort=3181\nbookiePort=3182\n")
    with pytest.raises(BookieConfigurationError, match="bookiePort is given twice"):
        read(twice)
    bad = tmp_path / "bad.conf"
    bad.write_text("journalDirectories=/j\nledgerDirectories=/l\nflushIntervall=3\n")
    with pytest.raises(BookieConfigurationError, match=r"flushInterval\?.*") as caught:
        read(bad)
    assert str(bad) in str(caught.value)
