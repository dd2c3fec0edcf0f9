"""The cache of owners, and when proxies are asked what they own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.errors import SettingsError
from dlspark.serving.client.ownership import Handshakes, OwnershipCache
from dlspark.serving.protocol.operations import Handshake

ADDRESSES = ("a:1", "b:1", "c:1")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("learn", "forget", "forget_host", "owner", "learn_all")),
        st.integers(0, 9),
        st.sampled_from(ADDRESSES),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_cache_is_bounded_and_both_its_sides_say_the_same(steps: list[tuple[str, int, str]]) -> None:
    owners, model = OwnershipCache(max_streams=5), dict[str, str]()
    for step, number, address in steps:
        stream = f"s{number}"
        if step == "learn":
            owners.learn(stream, address)
            model.pop(stream, None)
            model[stream] = address
            if len(model) > 5:
                del model[next(iter(model))]
        elif step == "forget":
            owners.forget(stream, address)
            if model.get(stream) == address:
                del model[stream]
        elif step == "forget_host":
            assert owners.forget_host(address) == sum(one == address for one in model.values())
            model = {one: where for one, where in model.items() if where != address}
        elif step == "owner":
            assert owners.owner(stream) == model.get(stream)
            if stream in model:
                model[stream] = model.pop(stream)
        else:
            owners.learn_all({stream: address})
            if stream in model or len(model) < 5:
                model.pop(stream, None)
                model[stream] = address
        assert list(owners) == list(model.items())
        for one in ADDRESSES:
            assert owners.streams_of(one) == {name for name, where in model.items() if where == one}


def test_a_location_is_kept_as_the_address_that_is_dialled() -> None:
    owners = OwnershipCache()
    assert owners.learn("s", "1;3;10.0.0.5:4181")
    assert owners.owner("s") == "10.0.0.5:4181"
    assert not owners.learn("s", "10.0.0.5:4181")


def test_of_a_handshake_only_streams_are_taken_that_match_as_a_whole() -> None:
    owners = OwnershipCache("flights.*")
    said = {"flights-1": "a:1", "myflights": "a:1", "flights": "1;0;b:1", "other": "a:1"}
    assert owners.learn_all(said) == 2
    assert dict(owners) == {"flights-1": "a:1", "flights": "b:1"}
    owners.learn("other", "c:1")
    assert owners.owner("other") == "c:1", "the client asked about it"


def test_a_handshake_pushes_nothing_out_and_is_not_read_for_ever() -> None:
    owners = OwnershipCache(max_streams=3)
    owners.learn("mine", "a:1")
    assert owners.learn_all({f"s{number}": "b:1" for number in range(1_000)}) == 2
    assert len(owners) == 3
    assert owners.owner("mine") == "a:1"


def test_what_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(SettingsError, match="streamNameRegex"):
        OwnershipCache("(")


def test_a_proxy_is_asked_on_connecting_and_then_periodically() -> None:
    plan = Handshakes("f.*", ownerships=True, interval_ms=300_000, sync_interval_ms=300_000)
    assert plan.connected("a:1", 0.0) == Handshake("f.*", True)
    assert plan.next_due() == 300.0
    assert plan.due(299.0) == []
    assert plan.due(300.0) == [("a:1", Handshake("f.*", True))]
    assert plan.due(300.0) == []
    plan.closed("a:1")
    assert plan.next_due() is None
    assert plan.due(10_000.0) == []


def test_ownerships_are_asked_for_when_they_are_old_enough() -> None:
    plan = Handshakes(".*", ownerships=True, interval_ms=1_000, sync_interval_ms=3_000)
    plan.connected("a:1", 0.0)
    asked = [plan.due(float(second))[0][1].ownerships for second in range(1, 8)]
    assert asked == [False, False, True, False, False, True, False]
    assert plan.connected("a:1", 7.5).ownerships, "a new connection asks anew"


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_without_an_interval_a_proxy_is_asked_on_connecting_only(interval_ms: int) -> None:
    plan = Handshakes(".*", ownerships=False, interval_ms=interval_ms, sync_interval_ms=0)
    assert plan.connected("a:1", 0.0) == Handshake(None, False)
    assert plan.next_due() is None
    assert plan.due(1e9) == []
