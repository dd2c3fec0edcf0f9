"""Settings of the ledger client: BookKeeper's keys, and bounds."""

from __future__ import annotations

import pytest

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import defaults_of
from storage_node.settings.client import WITHOUT_MEANING, ClientSettings


def test_every_key_with_its_default_gives_the_defaults() -> None:
    defaults = defaults_of(ClientSettings)
    assert ClientSettings.from_mapping(defaults) == ClientSettings()
    assert ClientSettings.from_mapping({key: str(value) for key, value in defaults.items()}) == ClientSettings()
    assert not defaults.keys() & WITHOUT_MEANING.keys()


def test_texts_and_values_are_taken_in_the_unit_of_the_key() -> None:
    settings = ClientSettings.from_mapping(
        {
            "addEntryTimeoutSec": " 7 ",
            "firstSpeculativeReadTimeout": 300,
            "speculativeReadTimeoutBackoffMultiplier": "1.5",
            "stickyReadsEnabled": "TRUE",
            "minNumRacksPerWriteQuorum": 3,
            "addEntryQuorumTimeoutSec": -1,
        }
    )
    assert settings.add_entry_timeout_ms == 7000
    assert settings.speculative_read_ms == 300
    assert settings.speculative_read_factor == 1.5
    assert settings.sticky_reads is True
    assert settings.placement.min_num_racks_per_write_quorum == 3
    assert settings.add_entry_quorum_timeout_ms < 0


def test_the_older_timeout_sets_what_the_newer_keys_do_not_whatever_the_order() -> None:
    for values in ({"readTimeout": 9, "addEntryTimeoutSec": 3}, {"addEntryTimeoutSec": 3, "readTimeout": 9}):
        settings = ClientSettings.from_mapping(values)
        assert (settings.add_entry_timeout_ms, settings.read_entry_timeout_ms) == (3000, 9000)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"numChannelsPerBooky": 2}, "Did you mean numChannelsPerBookie"),
        ({"NUMCHANNELSPERBOOKIE": 2}, "Did you mean numChannelsPerBookie"),
        ({"useV2WireProtocol": True}, "has no effect here: version 3 is spoken"),
        ({"numChannelsPerBookie": 0}, "outside 1.."),
        ({"numChannelsPerBookie": True}, "not a whole number"),
        ({"numChannelsPerBookie": "2.5"}, "not a whole number"),
        ({"speculativeReadTimeoutBackoffMultiplier": "nan"}, "is not a number"),
        ({"speculativeReadTimeoutBackoffMultiplier": 0.5}, "0.5 is outside 1.."),
        ({"delayEnsembleChange": "maybe"}, "not true or false"),
        ({"stickyReadSEnabled": True, "stickyReadsEnabled": True}, "given twice"),
        ({"longPollMillis": 5000}, "would end as a timeout"),
        ({"ensemblePlacementPolicy": "best"}, "not known here"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_says_why(
    values: dict[str, bool | int | float | str], message: str
) -> None:
    with pytest.raises(CallerError, match=message):
        ClientSettings.from_mapping(values)
