"""All registries of settings read the same texts alike: nodes', auto-recovery's, clients', the core's, Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from dlspark.core.settings.settings import Settings
from dlspark.core.settings.settings import describe_settings as core_settings
from dlspark.spark.options.column_choice import CHOICES
from dlspark.spark.options.proxies import PROXIES
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import DURATION, INSTANT, OPTIONS
from dlspark.spark.options.tls import SECRET_PLACE
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import EXACT, FLAG, REAL, TEXT, WHOLE, WORDS, Setting, settings_of
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.client import ClientSettings
from storage_node.settings.files import NodeFile
from storage_node.settings.placement import PlacementSettings

NODE = {"journalDirectories": "/j", "ledgerDirectories": "/l"}


def option(name: str, text: str) -> object:
    (info,) = [one for one in OPTIONS if one.key == name]
    options = Options({name: text}, info.scope)
    return options.flag(name) if info.kind is FLAG else options.integer(name)


FLAGS: dict[str, Callable[[str], object]] = {
    "bookie": lambda text: NodeFile({**NODE, "allowStorageExpansion": text}).bookie().allow_storage_expansion,
    "autorecovery": lambda text: (
        NodeFile({"autoRecoveryDaemonEnabled": text}).auto_recovery().auto_recovery_daemon_enabled
    ),
    "client": lambda text: ClientSettings.from_mapping({"stickyReadSEnabled": text}).sticky_reads,
    "placement": lambda text: (
        ClientSettings.from_mapping({"bookieHealthCheckEnabled": text}).placement.bookie_health_check_enabled
    ),
    "core": lambda text: Settings.from_mapping({"enableImmediateFlush": text}).immediate_flush,
    "options": lambda text: option("failOnDataLoss", text),
}
WHOLES: dict[str, Callable[[str], object]] = {
    "bookie": lambda text: NodeFile({**NODE, "gcMetadataOpRateLimit": text}).bookie().gc_metadata_op_rate_limit,
    "autorecovery": lambda text: NodeFile({"rwRereplicateBackoffMs": text}).auto_recovery().rereplicate_backoff_ms,
    "client": lambda text: ClientSettings.from_mapping({"maxOutstandingBytes": text}).max_outstanding_bytes,
    "placement": lambda text: (
        (
            ClientSettings.from_mapping({"bookieErrorThresholdPerInterval": text})
        ).placement.bookie_error_threshold_per_interval
    ),
    "core": lambda text: Settings.from_mapping({"readAheadMaxRecords": text}).read_ahead_entries,
    "options": lambda text: option("minPartitions", text),
}
REALS: dict[str, Callable[[str], object]] = {
    "bookie": lambda text: NodeFile({**NODE, "diskUsageWarnThreshold": text}).bookie().disk_usage_warn_threshold,
    "placement": lambda text: (
        ClientSettings.from_mapping({"bookieQuarantineRatio": text}).placement.bookie_quarantine_ratio
    ),
    "core": lambda text: Settings.from_mapping({"zkRequestRateLimit": text}).zk_request_rate,
}


@pytest.mark.parametrize("room", FLAGS)
@pytest.mark.parametrize(("text", "value"), [(one, True) for one in ("true", "YES", " on ", "1")])
def test_true_is_written_in_the_same_words(room: str, text: str, value: bool) -> None:
    assert FLAGS[room](text) is value


@pytest.mark.parametrize("room", FLAGS)
@pytest.mark.parametrize("text", ["false", "No", "off", "0 "])
def test_false_is_written_in_the_same_words(room: str, text: str) -> None:
    assert FLAGS[room](text) is False


@pytest.mark.parametrize("room", WHOLES)
@pytest.mark.parametrize(("text", "value"), [("7", 7), (" 12 ", 12), ("+3", 3), ("007", 7)])
def test_whole_numbers_are_written_alike(room: str, text: str, value: int) -> None:
    assert WHOLES[room](text) == value


@pytest.mark.parametrize("room", REALS)
@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), (" 1 ", 1.0), (".25", 0.25), ("5e-1", 0.5)])
def test_numbers_are_written_alike(room: str, text: str, value: float) -> None:
    assert REALS[room](text) == value


@pytest.mark.parametrize("text", ["maybe", "2", "", "truee", "yes!", "None"])
def test_what_is_no_flag_is_one_nowhere(text: str) -> None:
    refused_by_all(FLAGS.values(), text)


@pytest.mark.parametrize("text", ["5_000", "5.0", "1e3", "٥", "0x10", "many", "", "nan", "9" * 5000, "-"])
def test_what_is_no_whole_number_is_one_nowhere(text: str) -> None:
    refused_by_all(WHOLES.values(), text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "0_1", "1,5", "", "."])
def test_what_is_no_number_is_one_nowhere(text: str) -> None:
    refused_by_all(REALS.values(), text)


def refused_by_all(readers: Iterable[Callable[[str], object]], text: str) -> None:
    for read in readers:
        with pytest.raises(CallerError) as caught:
            read(text)
        assert caught.value.advice
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("read", "nearest"),
    [
        (lambda: NodeFile({"BOOKIEPORT": "1"}), "bookiePort"),
        (lambda: NodeFile({"lostBookieRecoveryDelays": "1"}), "lostBookieRecoveryDelay"),
        (lambda: ClientSettings.from_mapping({"ADDENTRYTIMEOUTSEC": 1}), "addEntryTimeoutSec"),
        (lambda: ClientSettings.from_mapping({"bookieQuarantineRation": 1}), "bookieQuarantineRatio"),
        (lambda: Settings.from_mapping({"READAHEADMAXRECORD": 1}), "readAheadMaxRecords"),
        (lambda: option("minPartitions", "1") and Options({"minpartition": "1"}, OPTIONS[0].scope), "minPartitions"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_in_the_same_words(
    read: Callable[[], object], nearest: str
) -> None:
    with pytest.raises(CallerError) as caught:
        read()
    assert (caught.value.advice or "").startswith(f"Did you mean {nearest}? ")
    assert "lists all settings" in (caught.value.advice or "")


def test_every_setting_of_the_house_is_of_a_kind_that_is_defined_once() -> None:
    owners = (BookieSettings, AutoRecoverySettings, ClientSettings, PlacementSettings)
    infos: list[Setting] = [info for owner in owners for info in settings_of(owner).values()]
    infos += [*core_settings(), *OPTIONS]
    kinds = (FLAG, WHOLE, REAL, TEXT, EXACT, WORDS, DURATION, INSTANT, PROXIES, CHOICES, SECRET_PLACE)
    assert not [info.key for info in infos if not any(info.kind is kind for kind in kinds)]
    assert not [info.key for info in infos if not info.meaning or info.meaning.endswith(".")]
