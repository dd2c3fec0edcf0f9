"""A list of versions or ciphers is honoured exactly, or refused."""

from __future__ import annotations

import ssl

import pytest

from metadata.security.ciphers import apply_ciphers, apply_protocols
from metadata.security.errors import IdentityError

ALL_OF_13 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")


def context(protocols: tuple[str, ...] = (), ciphers: tuple[str, ...] = ()) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    apply_protocols(made, protocols)
    apply_ciphers(made, ciphers)
    return made


def older(made: ssl.SSLContext) -> set[str]:
    return {one["name"] for one in made.get_ciphers()} - set(ALL_OF_13)


def test_without_a_list_only_good_ciphers_are_used() -> None:
    names = older(context())
    assert names
    assert all("DHE" in name and ("GCM" in name or "CHACHA20" in name) for name in names)


@pytest.mark.parametrize("name", ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"])
def test_ciphers_have_javas_names_and_openssls(name: str) -> None:
    made = context(ciphers=(name,))
    assert older(made) == {"ECDHE-RSA-AES128-GCM-SHA256"}
    assert made.maximum_version == ssl.TLSVersion.TLSv1_2, "no cipher of TLS 1.3 is listed"


def test_ciphers_of_tls_13_alone_leave_no_other_version() -> None:
    assert context(ciphers=ALL_OF_13).minimum_version == ssl.TLSVersion.TLSv1_3
    both = context(ciphers=(*ALL_OF_13, "ECDHE-ECDSA-AES256-GCM-SHA384"))
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.mark.parametrize(
    ("protocols", "ciphers", "reason"),
    [
        (("TLSv1.1",), (), "TLSv1.1"),
        (("SSLv3",), (), "SSLv3"),
        ((), ("TLS_RSA_WITH_AES_128_CBC_SHA",), "not good enough"),
        ((), ("ECDHE-RSA-AES128-GCM-SHA256:aNULL",), "not good enough"),
        ((), ALL_OF_13[:1], "one by one"),
        (("TLSv1.2",), ALL_OF_13, "nothing"),
        (("TLSv1.3",), ("ECDHE-RSA-AES128-GCM-SHA256",), "nothing"),
    ],
)
def test_what_cannot_be_honoured_is_refused(protocols: tuple[str, ...], ciphers: tuple[str, ...], reason: str) -> None:
    with pytest.raises(IdentityError, match=reason):
        context(protocols, ciphers)
