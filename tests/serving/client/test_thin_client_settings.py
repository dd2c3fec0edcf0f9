"""Settings of the thin client: upstream's keys, typed values, and an error for what would not be honoured."""

from __future__ import annotations

import re

import pytest

from dlspark.errors import SettingsError
from dlspark.serving.client.settings import REGISTRY, WITHOUT_MEANING, ThinClientSettings
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.other_routes import ServerOrder, SingleHost
from dlspark.serving.routing.ring import HostRing
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import settings_of

UPSTREAM = [
    "name",
    "clientId",
    "requestTimeoutMs",
    "thriftmux",
    "streamFailfast",
    "finagleNameStr",
    "finagleNameStrs",
    "redirectBackoffStartMs",
    "redirectBackoffMaxMs",
    "maxRedirects",
    "clientBuilder",
    "handshakeWithClientInfo",
    "periodicHandshakeIntervalMs",
    "periodicOwnershipSyncIntervalMs",
    "streamNameRegex",
    "checksum",
    "statsReceiver",
    "streamStatsReceiver",
]
"""Every setting of upstream's client builder."""


@pytest.mark.parametrize("key", UPSTREAM)
def test_every_key_of_upstreams_builder_is_honoured_or_refused_with_its_reason(key: str) -> None:
    assert (key in REGISTRY) is not (key in WITHOUT_MEANING)
    if key in WITHOUT_MEANING:
        with pytest.raises(SettingsError, match=re.escape(WITHOUT_MEANING[key])):
            ThinClientSettings.from_mapping({key: "1"})


def test_keys_of_our_own_are_marked_and_those_of_upstream_are_not() -> None:
    infos = settings_of(ThinClientSettings).values()
    assert {info.key for info in infos if not info.own} | WITHOUT_MEANING.keys() == set(UPSTREAM)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"requestTimeoutMS": 1}, "Did you mean requestTimeoutMs"),
        ({"requestTimeoutMs": "soon"}, "whole number"),
        ({"requestTimeoutMs": -2}, "outside -1"),
        ({"checksum": "maybe"}, "true or false"),
        ({"redirectBackoffStartMs": 200}, "redirectBackoffMaxMs=100 is below"),
        ({"streamNameRegex": "("}, "not a regular expression"),
        ({"routing": "random"}, "ring, server-order, single-host"),
        ({"maxInFlightRequests": 6}, "outside 1..5"),
        ({"maxInFlightRequests": 0}, "outside 1..5"),
        ({"batchMaxBytes": 1_100_000}, "outside"),
        ({"readBalance": "0.5"}, "outside 1"),
        ({"finagleNameStr": "/s/messaging/proxy"}, "resolved by Finagle"),
        ({"finagleNameStr": "flag!proxies"}, "resolved by Finagle"),
        ({"finagleNameStr": "a:1", "finagleNameStrs": "b:1"}, "both given"),
        ({"clientId": "x" * 200}, "clientId has more than"),
        ({"producerName": "é" * 100}, "producerName has more than"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_advice(values: dict[str, object], message: str) -> None:
    with pytest.raises(CallerError, match=message) as caught:
        ThinClientSettings.from_mapping(values)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("values", "regions"),
    [
        ({}, ()),
        ({"finagleNameStr": "inet!localhost:8080"}, ("localhost:8080",)),
        ({"finagleNameStr": "a:1,b:1"}, ("a:1,b:1",)),
        ({"finagleNameStr": "zk!zk1:2181,zk2:2181!/dl/ns/.write_proxy"}, ("distributedlog://zk1:2181,zk2:2181/dl/ns",)),
        ({"finagleNameStr": "distributedlog://zk:2181/ns"}, ("distributedlog://zk:2181/ns",)),
        ({"finagleNameStrs": "inet!a:1,b:1  inet!c:1"}, ("a:1,b:1", "c:1")),
    ],
)
def test_names_of_proxies_are_read(values: dict[str, object], regions: tuple[str, ...]) -> None:
    assert ThinClientSettings.from_mapping(values).regions() == regions


def test_values_come_from_a_file_and_over_others(tmp_path) -> None:
    file = tmp_path / "client.conf"
    file.write_text("requestTimeoutMs=5000\nstreamFailfast=true\nmaxRedirects=3\n")
    settings = ThinClientSettings.from_properties(file).with_values({"maxRedirects": 4})
    limits = settings.limits()
    assert (limits.request_timeout_ms, limits.fail_fast, limits.max_redirects) == (5_000, True, 4)
    with pytest.raises(SettingsError, match="does not exist"):
        ThinClientSettings.from_properties(tmp_path / "none.conf")


def test_what_is_made_of_the_settings_obeys_them() -> None:
    settings = ThinClientSettings.from_mapping(
        {
            "redirectBackoffStartMs": 1,
            "redirectBackoffMaxMs": 2,
            "attemptTimeoutMs": 3,
            "resendUnknownWrites": "yes",
            "streamNameRegex": "f.*",
            "ownershipCacheStreams": 1,
            "periodicHandshakeIntervalMs": 7_000,
            "handshakeWithClientInfo": False,
            "blackoutMs": 9_000,
        }
    )
    limits = settings.limits()
    assert (limits.backoff_start_ms, limits.backoff_max_ms, limits.attempt_timeout_ms) == (1, 2, 3)
    assert limits.resend_writes
    owners = settings.ownerships()
    assert owners.learn_all({"f": "a:1", "g": "a:1"}) == 1
    plan = settings.handshakes()
    assert not plan.connected("a:1", 0.0).ownerships
    assert plan.next_due() == 7.0
    ring = settings.route((ProxyHost("a:1"), ProxyHost("b:1")))
    first = ring.pick("s", 0.0)
    assert first is not None
    ring.failed(first, 0.0)
    assert ring.pick("s", 8.9) != first
    assert ring.pick("s", 9.0) == first
    bounded = settings.with_values({"readBalance": 1}).read_route((ProxyHost("a:1"), ProxyHost("b:1")))
    assert {bounded.pick(f"s{number}", 0.0) for number in range(2)} == {"a:1", "b:1"}


@pytest.mark.parametrize(
    ("word", "kind"), [("ring", HostRing), ("server-order", ServerOrder), ("single-host", SingleHost)]
)
def test_the_route_is_the_one_that_is_set(word: str, kind: type) -> None:
    assert type(ThinClientSettings.from_mapping({"routing": word}).route((ProxyHost("a:1"),))) is kind
