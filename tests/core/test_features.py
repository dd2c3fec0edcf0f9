"""Feature switches: what operators turn on and off while logs are open."""

from __future__ import annotations

from dlspark.core.features import NO_FEATURES, FeatureProvider, SettableFeatures


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
