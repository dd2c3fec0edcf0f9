"""Feature switches: what operators turn on and off while logs are open."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from helpers.paths import CONF

from dlspark.core.dynamic.features import KNOWN_FEATURES, NO_FEATURES, FeatureProvider, SettableFeatures
from dlspark.core.dynamic.operator_files import OperatorFiles
from dlspark.core.dynamic.watched_file import REJECTED
from dlspark.core.settings.settings import Settings
from dlspark.errors import OverCapacityError, SettingsError

UPSTREAM_FILES = "org.apache.distributedlog.feature.DynamicConfigurationFeatureProvider"


def test_every_feature_of_the_default_provider_is_off():
    feature = NO_FEATURES.scope("dl").feature("disable_write_limit")
    assert (feature.name, feature.availability, feature.is_available()) == ("dl.disable_write_limit", 0, False)
    assert not NO_FEATURES.feature("anything").is_available()


def test_a_feature_is_on_from_the_moment_it_is_set_for_those_who_hold_it_already():
    features = SettableFeatures({"dl.disable_write_limit": 0})
    provider: FeatureProvider = features
    feature = provider.scope("dl").feature("disable_write_limit")
    assert not feature.is_available()
    features.set("dl.disable_write_limit", 100)
    assert (feature.is_available(), feature.availability) == (True, 100)
    features.replace({"dl.disable_logsegment_rolling": 1})
    assert not feature.is_available()


def test_scopes_nest_and_do_not_mix():
    features = SettableFeatures({"bkc.west.disallow": 1})
    assert features.scope("bkc").scope("west").feature("disallow").is_available()
    assert features.feature("bkc.west.disallow").is_available()
    assert not features.scope("bkc").feature("disallow").is_available()
    assert not features.scope("dl").scope("west").feature("disallow").is_available()


# ------------------------------------------------------------------ files


class _Files:
    """A base file and an overlay, and what the provider makes of them."""

    def __init__(self, directory, **settings):
        self.base = directory / "decider.conf"
        self.overlay = directory / "overlay.conf"
        self.counters = Counter()
        self.settings = Settings(
            feature_provider=UPSTREAM_FILES,
            feature_base_path=str(self.base),
            feature_overlay_path=str(self.overlay),
            **settings,
        )

    async def load(self):
        self.files = await OperatorFiles.load(self.settings, self.counters)
        self.features = self.files.features
        return self.features

    def on(self):
        return [name for name in KNOWN_FEATURES if self.features.feature(name).is_available()]


@pytest.fixture
def files(tmp_path):
    return _Files(tmp_path)


async def test_features_are_those_of_the_base_file_under_the_overlay(files):
    files.base.write_text("dl.disable_write_limit=100\ndl.disable_logsegment_rolling = 1\napp.mine=3\n")
    files.overlay.write_text("dl.disable_write_limit=0\nbkc.disable_ensemble_change=50\n")
    features = await files.load()
    assert files.on() == ["dl.disable_logsegment_rolling", "bkc.disable_ensemble_change"]
    assert features.scope("app").feature("mine").availability == 3


async def test_the_shipped_example_names_every_feature_and_switches_none_on(files):
    files.base.write_bytes((CONF / "decider.conf").read_bytes())
    features = await files.load()
    assert list(features.switched()) == [name for name in KNOWN_FEATURES if "<region>" not in name]
    assert "# bkc.eu.disallow_bookie_placement=" in files.base.read_text()
    assert files.on() == []


async def test_files_switch_features_for_those_who_hold_them(files):
    files.base.write_text("")
    held = (await files.load()).scope("dl").feature("disable_write_limit")
    seen = []
    for change in (
        lambda: files.overlay.write_text("dl.disable_write_limit=1"),
        lambda: files.overlay.write_text("dl.disable_write_limit=0"),
        lambda: files.base.write_text("dl.disable_write_limit=5"),
        files.overlay.unlink,
    ):
        change()
        await files.files.reload()
        seen.append(held.is_available())
    assert seen == [True, False, False, True]


async def test_a_base_file_that_is_missing_or_nonsense_fails_the_opening(files):
    with pytest.raises(SettingsError, match="fileFeatureProviderBaseConfigPath"):
        await files.load()
    files.base.write_text("dl.disable_write_limit=yes")
    with pytest.raises(SettingsError, match=r"dl\.disable_write_limit='yes' is not a whole number"):
        await files.load()


async def test_a_file_that_becomes_nonsense_leaves_the_features_as_they_were(files, caplog):
    files.base.write_text("dl.disable_write_limit=1")
    await files.load()
    files.base.write_text("dl.disable_write_limit=0\nbkc.disable_ensemble_change=maybe")
    with caplog.at_level(logging.WARNING, "dlspark"):
        await files.files.reload()
        await files.files.reload()
    assert (files.on(), files.counters[REJECTED]) == (["dl.disable_write_limit"], 1)
    assert [("decider.conf" in r.message, "bkc.disable_ensemble_change" in r.message) for r in caplog.records] == [
        (True, True)
    ]


async def test_a_switch_that_nothing_looks_at_is_warned_of(files, caplog):
    known = "bkc.west.disallow_bookie_placement=1\nbkc.repp_disable_durability_enforcement=0\napp.mine=1\n"
    files.base.write_text(f"dl.disable_write_limits=1\nbkc.west.disallow=1\n{known}")
    with caplog.at_level(logging.WARNING, "dlspark"):
        await files.load()
    warned = [record.message for record in caplog.records]
    assert len(warned) == 2
    assert "did you mean dl.disable_write_limit?" in warned[0]
    assert "bkc.west.disallow " in warned[1]


def test_a_provider_class_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(SettingsError, match="DefaultFeatureProvider, DynamicConfigurationFeatureProvider"):
        Settings(feature_provider="com.example.Features")


# ------------------------------------------------------------------ in a namespace


async def test_a_namespace_has_the_features_of_its_files_until_it_is_given_a_provider(memory_cluster, files):
    files.base.write_text("dl.disable_write_limit=1")
    values = {
        "feature_provider": UPSTREAM_FILES,
        "feature_base_path": str(files.base),
        "feature_overlay_path": str(files.overlay),
    }
    namespace = await memory_cluster.namespace(**values)
    held = namespace.services.features.scope("dl").feature("disable_write_limit")
    assert held.is_available()
    files.overlay.write_text("dl.disable_write_limit=0")
    await namespace.reload_settings()
    assert not held.is_available()
    own = SettableFeatures({"dl.disable_write_limit": 1})
    namespace = await memory_cluster.namespace(features=own, **values)
    assert namespace.services.features is own
    assert not (await memory_cluster.namespace()).services.features.feature("dl.disable_write_limit").is_available()


async def test_with_ensemble_changes_disabled_a_log_is_written_by_the_nodes_that_are_left(memory_cluster):
    features = SettableFeatures({"bkc.disable_ensemble_change": 1})
    namespace = await memory_cluster.namespace(features=features)
    log = await namespace.open_log("flights", {"writerOutputBufferSize": 0})
    async with await log.open_writer() as writer:
        await writer.write(0, b"before")
        (segment,) = await log.segments()
        ledgers = namespace.services.ledger_store
        before = (await ledgers.read(segment.ledger_id)).value
        memory_cluster.bookie(before.ensembles[-1].bookies[0]).stop()
        for txid in range(1, 20):
            await writer.write(txid, b"after")
        assert (await ledgers.read(segment.ledger_id)).value == before


async def test_while_rolling_is_switched_off_a_writer_goes_on_with_its_segment(memory_cluster):
    features = SettableFeatures({"dl.disable_logsegment_rolling": 1})
    namespace = await memory_cluster.namespace(features=features)
    small = {"logSegmentRollingMinutes": 0, "maxLogSegmentBytes": 1, "writerOutputBufferSize": 0}
    log = await namespace.open_log("flights", small)
    async with await log.open_writer() as writer:
        for txid in range(5):
            await writer.write(txid, b"over the size")
        assert len(await log.segments()) == 1
        features.set("dl.disable_logsegment_rolling", 0)
        await writer.write(5, b"rolls after this one")
        await writer.write(6, b"in the next segment")
        assert len(await log.segments()) == 2


async def test_while_write_limits_are_switched_off_they_only_count(memory_cluster):
    features = SettableFeatures({"dl.disable_write_limit": 1})
    namespace = await memory_cluster.namespace(features=features)
    log = await namespace.open_log(
        "flights", {"perWriterOutstandingWriteLimit": 1, "outstandingWriteLimitDarkmode": False}
    )
    async with await log.open_writer() as writer:
        buffered = [writer.write(txid, b"in the buffer") for txid in range(3)]
        features.set("dl.disable_write_limit", 0)
        with pytest.raises(OverCapacityError):
            await writer.write(3, b"refused")
        await writer.flush()
        assert [future.exception() for future in buffered] == [None] * 3
