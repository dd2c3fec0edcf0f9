"""Addresses as text: an IPv6 address stands in brackets, wherever one is written or read."""

from __future__ import annotations

import pytest

from metadata.foundation.addresses import address_text, host_text, parse_address


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("node-1", 3181, "node-1:3181"),
        ("10.0.0.1", 1, "10.0.0.1:1"),
        ("::1", 3181, "[::1]:3181"),
        ("fe80::1%eth0", 65535, "[fe80::1%eth0]:65535"),
    ],
)
def test_an_address_is_read_as_it_is_written(host: str, port: int, text: str) -> None:
    assert address_text(host, port) == text
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:8x", "host:١"),
        *("::1:80", "[::1]", "[::1:80", "::1]:80", "[]:80", "[[::1]]:80", "a:b:80"),
    ],
)
def test_what_is_no_address_is_none(text: str) -> None:
    """`::1:80` may be an address and a port, or an address: it is not guessed."""
    assert parse_address(text) is None


def test_a_host_without_colons_has_no_brackets() -> None:
    assert (host_text("a"), host_text(""), host_text("::")) == ("a", "", "[::]")
