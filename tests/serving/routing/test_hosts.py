"""The hash: upstream's vectors, and Java's texts of socket addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.serving.routing.hosts import hash_int, hash_long, java_address_text

VECTORS = {
    "a ring point": ("shard-3-0-/127.0.0.1:8000", -739197673517503940, -483284420),
    "a stream": ("test-stream", -2384949686381118064, 1880292752),
    "a stream with a letter beyond ASCII": ("stream-é", 6827283368502257294, 411199118),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_hash_is_upstreams(name: str) -> None:
    text, as_long, as_int = VECTORS[name]
    assert hash_long(text) == as_long
    assert hash_int(text) == as_int


@pytest.mark.parametrize(
    ("host", "resolved", "text"),
    [
        ("127.0.0.1", None, "/127.0.0.1:8000"),
        ("proxy-1.example", None, "proxy-1.example/<unresolved>:8000"),
        ("proxy-1.example", "10.0.0.5", "proxy-1.example/10.0.0.5:8000"),
        ("::1", None, "/[0:0:0:0:0:0:0:1]:8000"),
        ("2001:db8::ff00:42:8329", None, "/[2001:db8:0:0:0:ff00:42:8329]:8000"),
        ("fe80::1%eth0", None, "/[fe80:0:0:0:0:0:0:1]:8000"),
        ("proxy-6", "::2", "proxy-6/[0:0:0:0:0:0:0:2]:8000"),
    ],
)
def test_addresses_are_written_as_java_writes_them(host: str, resolved: str | None, text: str) -> None:
    assert java_address_text(host, 8000, resolved) == text


@given(st.text())
def test_any_name_has_a_hash_within_its_bits(text: str) -> None:
    assert -(2**63) <= hash_long(text) < 2**63
    assert hash_int(text) & 0xFFFFFFFF == hash_long(text) & 0xFFFFFFFF, "both begin with the same bytes"


def test_half_a_surrogate_pair_is_hashed_as_java_hashes_it() -> None:
    assert hash_long("\ud83d") != hash_long("\ude00")
    assert hash_long("\U0001f600") == hash_long("\ud83d\ude00")
