"""Settings: upstream's keys, typed values, and an error for whatever would not be honoured."""

from __future__ import annotations

import pprint
import subprocess
import sys
from dataclasses import replace

import javaproperties
import pytest
from helpers import upstream_keys
from helpers.paths import CONF

from dlspark.core.settings.settings import WITHOUT_MEANING, Settings, describe_settings
from dlspark.core.writing.ledger_allocators import LedgerKind
from dlspark.errors import SettingsError
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.foundation.errors import CallerError
from storage_node.protocol.values import AddRequest, ReadRequest, WriteLacRequest
from storage_node.settings.placement import PlacementSettings

FILE = CONF / "distributedlog.conf"
_NAMES = {info.key for info in describe_settings()}


def test_the_shipped_configuration_file_gives_every_setting_its_default():
    with FILE.open("rb") as file:
        written = javaproperties.load(file)
    assert list(written) == [info.key for info in describe_settings()]
    assert Settings.from_properties(FILE) == Settings()


def test_texts_are_parsed_by_the_type_of_the_setting():
    settings = Settings.from_mapping(
        {"writerOutputBufferSize": " 0 ", "enableImmediateFlush": "True", "compressionType": "LZ4", "digestPw": "s p"}
    )
    assert settings.output_buffer_bytes == 0
    assert settings.immediate_flush is True
    assert settings.compression == "lz4"
    assert settings.password == b"s p"


def test_an_old_key_is_an_alias():
    assert Settings.from_mapping({"ensemble-size": "5"}).ensemble_size == 5
    with pytest.raises(SettingsError, match="twice"):
        Settings.from_mapping({"ensemble-size": 5, "bkcEnsembleSize": 5})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("writerOutputBuferSize", 0, "Did you mean writerOutputBufferSize"),
        ("BKCENSEMBLESIZE", 3, "Did you mean bkcEnsembleSize"),
        ("colour", "blue", "conf/distributedlog.conf lists"),
        ("useDaemonThread", True, "has no effect here"),
        ("bkcEnsembleSize", "three", "whole number"),
        ("bkcEnsembleSize", True, "whole number"),
        ("bkcEnsembleSize", 0, "outside 1"),
        ("enableImmediateFlush", "maybe", "true or false"),
        ("enableImmediateFlush", 1, "true or false"),
        ("compressionType", "zstd", "none, lz4"),
        ("digestPw", 5, "text"),
        ("logSegmentRollingMinutes", 2**31, "outside"),
        ("bkcReadTimeoutSeconds", 1, "shorter than readLACLongPollTimeout"),
        ("bkEnsemblePlacementDnsResolverClass", "magic", "Known are DNSResolverForRacks"),
        ("dnsResolverOverrides", "host", "not a pair of a host and its region"),
        ("bkc.ensemblePlacementPolicy", "ZoneawareEnsemblePlacementPolicy", "regions are your zones"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_advice(key, value, message):
    base = Settings(long_poll_ms=2000)
    with pytest.raises(CallerError, match=message):
        base.with_values({key: value})


SECRETS = {"digestPw", "zkAclId"}


def test_secrets_are_known_in_one_place_and_shown_nowhere():
    assert {info.key for info in describe_settings() if info.secret} == SECRETS
    settings = Settings.from_mapping(dict.fromkeys(SECRETS, "hunter2"))
    assert (settings.digest_password, settings.zk_acl_id) == ("hunter2", "hunter2")
    shown = (repr(settings), str(settings), f"{settings}", pprint.pformat(settings), repr(Settings().with_values({})))
    assert not any("hunter2" in text or "digest_password" in text for text in shown)
    for key in SECRETS:
        with pytest.raises(SettingsError) as caught:
            Settings.from_mapping({key: 7031})
        assert str(caught.value).startswith(f"the value of {key} is not text")
        assert "7031" not in str(caught.value)
        with pytest.raises(SettingsError) as caught:
            Settings().for_log({key: "hunter2"})
        assert "hunter2" not in str(caught.value)


def test_what_is_made_of_a_ledgers_password_does_not_show_it():
    ensemble = Ensemble(0, ("a:1", "b:1"))
    metadata = LedgerMetadata(2, 2, 2, (ensemble,), password=b"hunter2")
    requests = (AddRequest(1, 5, 0, b"hunter2", memoryview(b"")), ReadRequest(1, 5, 0, b"hunter2", True))
    kinds = (LedgerKind(3, 3, 2, b"hunter2"), WriteLacRequest(1, 5, 0, b"hunter2", memoryview(b"")))
    assert not [value for value in (metadata, *requests, *kinds) if "hunter2" in repr(value)]


def test_the_environment_overrides_the_file(tmp_path):
    file = tmp_path / "dl.conf"
    file.write_text("bkcEnsembleSize=4\nwriterOutputBufferSize=10\n")
    environment = {"DLSPARK_CONF": str(file), "DLSPARK_SET_writerOutputBufferSize": "20", "HOME": "/nowhere"}
    settings = Settings.from_environment(environment)
    assert (settings.ensemble_size, settings.output_buffer_bytes) == (4, 20)
    assert Settings.from_environment({}) == Settings()


def test_options_of_the_interpreter_override_the_environment():
    environment = {"DLSPARK_SET_bkcEnsembleSize": "4", "DLSPARK_SET_writerOutputBufferSize": "20"}
    options = {"dlspark.ensemble-size": "5", "dlspark.enableImmediateFlush": True, "utf8": True}
    settings = Settings.from_environment(environment, options=options)
    assert (settings.ensemble_size, settings.output_buffer_bytes, settings.immediate_flush) == (5, 20, True)
    with pytest.raises(SettingsError, match="Did you mean bkcEnsembleSize"):
        Settings.from_environment({}, options={"dlspark.bkcEnsembleSizes": "5"})


def test_the_interpreter_that_was_started_with_an_option_has_the_setting():
    program = "from dlspark import Settings; print(Settings.from_environment({}).output_buffer_bytes)"
    command = [sys.executable, "-X", "dlspark.writerOutputBufferSize=7", "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "7\n"


@pytest.mark.parametrize("form", ["{path}", "file:{path}", "file://{path}", "file://localhost{path}", "FILE:{path}"])
def test_a_file_is_named_by_its_path_or_by_a_file_url(tmp_path, form):
    file = tmp_path / "with space.conf"
    file.write_text("bkcEnsembleSize=4\n")
    path = str(file) if form == "{path}" else str(file).replace(" ", "%20")
    assert Settings.from_properties(form.format(path=path)).ensemble_size == 4


@pytest.mark.parametrize("url", ["http://conf.example.com/dl.conf", "https://h/dl.conf", "file://other/dl.conf"])
def test_settings_are_not_fetched_from_other_machines(url):
    with pytest.raises(SettingsError, match="Fetch the file first"):
        Settings.from_properties(url)


def test_a_file_with_a_key_twice_is_refused_rather_than_one_of_them_believed(tmp_path):
    file = tmp_path / "dl.conf"
    file.write_text("bkcEnsembleSize=4\n# later\nbkcEnsembleSize=5\n")
    with pytest.raises(SettingsError, match="bkcEnsembleSize is given twice"):
        Settings.from_properties(file)


def test_a_file_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(tmp_path):
    itself = tmp_path / "dl.conf"
    itself.symlink_to(itself)
    with pytest.raises(SettingsError, match="cannot be read"):
        Settings.from_properties(itself)


def test_what_is_no_properties_file_is_refused_without_being_read_for_ever(tmp_path):
    with pytest.raises(SettingsError, match="is not a file"):
        Settings.from_properties(tmp_path)
    with pytest.raises(SettingsError, match="is not a file"):
        Settings.from_properties("/dev/zero")
    (tmp_path / "long").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(SettingsError, match="longer than"):
        Settings.from_properties(tmp_path / "long")


def test_keys_of_the_ledger_client_are_passed_on_and_override_what_follows_from_the_others():
    settings = Settings.from_mapping(
        {
            "bkcWriteTimeoutSeconds": 3,
            "bkc.addEntryTimeoutSec": "7",
            "bkc.delayEnsembleChange": "true",
            "bkc.minNumRacksPerWriteQuorum": 3,
        }
    )
    client = settings.client_settings()
    assert client.add_entry_timeout_ms == 7000
    assert client.delay_ensemble_change is True
    assert client.placement.min_num_racks_per_write_quorum == 3
    assert client.read_entry_timeout_ms == 10_000
    again = settings.with_values({"bkc.explicitLacInterval": 100, "bkc.addEntryTimeoutSec": 8}).client_settings()
    assert (again.add_entry_timeout_ms, again.explicit_lac_interval_ms) == (8000, 100)
    assert Settings.from_mapping(settings.as_mapping()) == settings
    assert hash(settings) != hash(Settings())


def test_the_environment_sets_keys_of_the_ledger_client_too():
    settings = Settings.from_environment({"DLSPARK_SET_bkc_numChannelsPerBookie": "2"})
    assert settings.client_settings().channels_per_bookie == 2


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bkc.addEntryTimeoutSecs", 5, "Did you mean addEntryTimeoutSec"),
        ("bkc.throttle", 5, "has no effect here: bytes in flight"),
        ("bkc.addEntryTimeoutSec", "soon", "not a whole number"),
        ("bkc.readEntryTimeoutSec", 1, "long_poll_ms"),
        ("bkc.delayEnsembleChange", 1, "not true or false"),
        ("bkc.reppDnsResolverClass", "guess", "not known here"),
    ],
)
def test_keys_of_the_ledger_client_that_cannot_be_honoured_are_refused(key, value, message):
    with pytest.raises(SettingsError, match=message):
        Settings.from_mapping({key: value})


def test_keys_of_the_ledger_client_hold_for_a_whole_namespace():
    with pytest.raises(SettingsError, match="whole namespace"):
        Settings().for_log({"bkc.addEntryTimeoutSec": 5})


def test_a_missing_file_is_an_error_that_names_the_variable(tmp_path):
    with pytest.raises(SettingsError, match="DLSPARK_CONF"):
        Settings.from_environment({"DLSPARK_CONF": str(tmp_path / "none.conf")})


def test_quorums_are_capped_at_each_other_as_upstream():
    assert Settings(ensemble_size=2).quorums == (2, 2, 2)
    assert Settings(ensemble_size=5, write_quorum=1).quorums == (5, 1, 1)


def test_one_log_may_override_its_own_settings_but_not_those_of_the_namespace():
    assert Settings().for_log({"logSegmentRollingMinutes": 5}).rolling_minutes == 5
    with pytest.raises(SettingsError, match="whole namespace"):
        Settings().for_log({"zkSessionTimeoutSeconds": 5})


_OTHERS = {
    "coldStoragePath": "/x",
    "coldStorageEndpoint": "http://x",
    "coldRetentionHours": 24,
    "coldStorageMirrors": "us=/us",
}
"""Values of those whose neighbours are none."""
_WITH = {"coldStorageMirrors": {"coldStoragePath": "/x"}}
"""What has to be set beside some."""


@pytest.mark.parametrize("info", list(describe_settings()), ids=lambda info: info.key)
def test_each_setting_is_overridden_for_one_log_or_says_that_it_holds_for_all(info):
    named = {"ledgerAllocatorPoolName": "pool"} if "ledgerAllocatorPoolName" in _NAMES else {}
    base = Settings.from_mapping(named | _WITH.get(info.key, {}))
    now = base.as_mapping()[info.key]
    if info.key in _OTHERS:
        other = _OTHERS[info.key]
    elif isinstance(now, bool):
        other = not now
    elif info.choices:
        other = next(choice for choice in info.choices if choice != now)
    elif isinstance(now, str):
        other = now + "x"
    else:
        other = now + 1 if now + 1 <= info.maximum else now - 1
    if info.per_log:
        assert base.for_log({info.key: other}).as_mapping() == {**base.as_mapping(), info.key: other}
    else:
        with pytest.raises(SettingsError, match="holds for a whole namespace"):
            base.for_log({info.key: other})


def test_every_key_of_upstreams_is_either_honoured_or_refused_with_a_reason_and_no_other_key_is():
    honoured = {info.key for info in describe_settings() if not info.own}
    assert not WITHOUT_MEANING.keys() & honoured
    assert honoured | WITHOUT_MEANING.keys() == upstream_keys.KEYS
    assert not {info.key for info in describe_settings() if info.own} & upstream_keys.KEYS


def test_every_old_key_of_upstreams_is_an_alias_or_refused_as_the_new_one_is():
    assert {old: info.key for info in describe_settings() for old in info.other_keys}.items() <= (
        upstream_keys.OLD_KEYS.items()
    )
    for old, new in upstream_keys.OLD_KEYS.items():
        if new in WITHOUT_MEANING:
            with pytest.raises(SettingsError, match=f"{old} .*has no effect here"):
                Settings.from_mapping({old: "1"})
        else:
            assert old in {old for info in describe_settings() for old in info.other_keys}


def test_every_key_that_is_dynamic_upstream_is_dynamic_here_or_refused():
    dynamic = {info.key for info in describe_settings() if info.dynamic}
    assert upstream_keys.DYNAMIC_KEYS - WITHOUT_MEANING.keys() - dynamic == set()


def test_all_settings_survive_the_way_through_a_mapping():
    assert Settings.from_mapping(Settings().as_mapping()) == Settings()


def test_racks_are_told_by_host_names_unless_rows_or_a_script_are_asked_for():
    assert Settings().client_settings().placement.resolver == "racks"
    rows = Settings.from_mapping({"row-aware-ensemble-placement": "true", "dnsResolverOverrides": "h:west"})
    assert rows.client_settings().placement.resolver == "rows"
    assert rows.client_settings().placement.dns_resolver_overrides == "h:west"
    script = {"bkEnsemblePlacementDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping"}
    assert Settings.from_mapping(script).client_settings().placement.resolver == "script"
    with pytest.raises(SettingsError, match="racks come from a script"):
        Settings.from_mapping({**script, "dnsResolverOverrides": "h:west"})


def test_what_refuses_a_placement_names_keys_as_its_user_writes_them():
    of_logs = Settings.from_mapping({"bkc.ensemblePlacementPolicy": "regionaware"}).client_settings().placement
    of_nodes = PlacementSettings(ensemble_placement_policy="regionaware")
    for settings, resolver, minimum in (
        (of_logs, "bkEnsemblePlacementDnsResolverClass", "bkc.reppMinimumRegionsForDurability"),
        (of_nodes, "reppDnsResolverClass", "reppMinimumRegionsForDurability"),
    ):
        assert (settings.named("reppDnsResolverClass"), settings.named("reppMinimumRegionsForDurability")) == (
            resolver,
            minimum,
        )
    assert of_logs != of_nodes  # by what they say; not by whose they are
    assert replace(of_nodes, of_logs=True) == of_nodes
    with pytest.raises(SettingsError, match=r"Set bkc\.networkTopologyScriptFileName, or bkEnsemblePlacementDns"):
        Settings.from_mapping(
            {
                "bkEnsemblePlacementDnsResolverClass": "script",
                "bkc.enforceMinNumRacksPerWriteQuorum": "true",
            }
        )


def test_a_namespaces_quorums_hold_where_nothing_is_said_of_them():
    bound = (1, 1, 1)
    assert Settings().in_namespace(bound).quorums == bound
    assert Settings().in_namespace(None).quorums == (3, 3, 2)
    assert Settings.from_mapping({"lockTimeoutSeconds": 0}).in_namespace(bound).quorums == bound
    # Also what is the default, by whatever key or way, is something that was said.
    for said in ({"bkcEnsembleSize": 3}, {"ack-quorum-size": 2}, {"bkcWriteQuorumSize": 2}):
        settings = Settings.from_mapping(said)
        assert settings.in_namespace(bound).quorums == settings.quorums
    assert Settings.from_mapping({"lockTimeoutSeconds": 0}, settings).in_namespace(bound).quorums == settings.quorums
    assert Settings(ensemble_size=5).in_namespace(bound).ensemble_size == 5
