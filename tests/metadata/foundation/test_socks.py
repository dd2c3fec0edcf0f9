"""SOCKS version 4: the bytes, and what the environment may say."""

from __future__ import annotations

import pytest

from metadata.foundation.errors import CallerError
from metadata.foundation.socks import SocksProxy, connect_request, socks_proxy, what_to_check


def test_requests_are_those_of_the_protocol() -> None:
    assert connect_request("127.0.2.1", 3181) == b"\x04\x01\x0c\x6d\x7f\x00\x02\x01\x00"
    assert connect_request("node-1", 80) == b"\x04\x01\x00\x50\x00\x00\x00\x01\x00node-1\x00"
    with pytest.raises(OSError, match="does not reach the IPv6 address ::1"):
        connect_request("::1", 80)


def test_an_answer_says_whether_there_is_a_connection() -> None:
    proxy = SocksProxy("gate", 1080)
    assert proxy.failure_error(b"\0\x5a" + bytes(6), "node", 1) is None
    assert "gate:1080 answered 0x5b for node:1" in str(proxy.failure_error(b"\0\x5b" + bytes(6), "node", 1))
    assert "ended the connection" in str(proxy.failure_error(b"\0\x5a", "node", 1))


def test_the_environment_names_a_proxy_and_who_is_dialled_without_it() -> None:
    assert socks_proxy({}) is None
    assert socks_proxy({"DLSPARK_SOCKS": " "}) is None
    proxy = socks_proxy({"DLSPARK_SOCKS": "socks4://127.0.0.1:1080", "DLSPARK_SOCKS_DIRECT": "a, b,"})
    assert proxy == SocksProxy("127.0.0.1", 1080, frozenset({"a", "b"}))
    assert (proxy.leads_to("a"), proxy.leads_to("c")) == (False, True)


def test_who_reaches_no_server_is_told_by_which_way_it_goes() -> None:
    assert what_to_check({}) == what_to_check({"DLSPARK_REGION": "eu"}) == ""
    assert "SOCKS proxy 127.0.0.1:1080 (DLSPARK_SOCKS)" in what_to_check({"DLSPARK_SOCKS": "127.0.0.1:1080"})
    in_region = what_to_check({"DLSPARK_SOCKS": "127.0.2.1:1080", "DLSPARK_REGION": "r2"})
    assert "in region r2 (DLSPARK_REGION)" in in_region
    assert "gateway 127.0.2.1:1080 (DLSPARK_SOCKS)" in in_region
    assert "dlspark sandbox region heal r2" in in_region


@pytest.mark.parametrize("text", ["1080", "machine", "socks5://me:password@host:1080", "host:99999"])
def test_a_text_that_is_no_proxy_is_refused_rather_than_ignored(text: str) -> None:
    with pytest.raises(CallerError, match="what DLSPARK_SOCKS says is not the address") as refused:
        socks_proxy({"DLSPARK_SOCKS": text})
    assert text not in str(refused.value), "it may hold a password"
