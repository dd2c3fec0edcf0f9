"""What is read of certificates and lists is what a library of others has written; what is damaged is an error."""

from __future__ import annotations

import random
from datetime import datetime, timezone

import pytest
from helpers.security.minting import DAY, MintedAuthority, now

from metadata.security.certificates import CERTIFICATE, pem_blocks, pem_text, read_certificate, read_revocations
from metadata.security.der import DerError, Element, only_element


def test_a_certificate_is_read_as_it_was_written() -> None:
    authority = MintedAuthority("Über, all")
    pair = authority.issue("n", roles=["node"], hosts=["a.example.org", "::1", "10.0.0.1"], uris=["urn:x"])
    facts = read_certificate(pair.der)
    theirs = pair.certificate
    assert facts.serial == theirs.serial_number
    assert facts.not_before_s == theirs.not_valid_before_utc.timestamp()
    assert facts.not_after_s == theirs.not_valid_after_utc.timestamp()
    assert facts.subject_text == theirs.subject.rfc4514_string() == "CN=n,OU=node"
    assert facts.issuer_text == theirs.issuer.rfc4514_string() == r"CN=Über\, all"
    assert (facts.dns_names, facts.addresses, facts.uris) == (("a.example.org",), ("::1", "10.0.0.1"), ("urn:x",))
    assert not facts.is_authority
    above = read_certificate(pem_blocks(authority.pem)[0].body)
    assert above.is_authority
    assert above.subject == facts.issuer


def test_a_list_is_read_as_it_was_written() -> None:
    authority = MintedAuthority()
    pairs = [authority.issue(f"n{number}") for number in range(3)]
    begins, ends = now() - DAY, now() + DAY
    found = read_revocations(pem_blocks(authority.revoke(*pairs, begins=begins, ends=ends))[0].body)
    assert found.serials == {pair.certificate.serial_number for pair in pairs}
    assert (found.this_update_s, found.next_update_s) == (begins.timestamp(), ends.timestamp())
    assert found.issuer == read_certificate(pairs[0].der).issuer
    assert read_revocations(pem_blocks(authority.revoke())[0].body).serials == frozenset()


def test_damaged_bytes_are_errors_and_nothing_else() -> None:
    """Whatever a peer or a file gives: ValueError or facts, never another exception, never an endless loop."""
    authority = MintedAuthority()
    chance = random.Random(7)
    pair = authority.issue("n", hosts=["a.example.org"])
    for whole, read in ((pair.der, read_certificate), (pem_blocks(authority.revoke(pair))[0].body, read_revocations)):
        for _ in range(400):
            damaged = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            try:
                read(bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])]))
            except ValueError:
                pass


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x30",
        b"\x30\x80\x00\x00",
        b"\x30\x85\x01\x01\x01\x01\x01",
        b"\x30\x02\x00",
        b"\x1f\x01\x00",
        b"\x30\x00\x30\x00",
    ],
)
def test_what_is_not_one_whole_element_is_an_error(content: bytes) -> None:
    with pytest.raises(DerError):
        only_element(content)


@pytest.mark.parametrize(
    ("tag", "content", "expected"),
    [
        (0x17, b"491231235959Z", "2049-12-31T23:59:59+00:00"),
        (0x17, b"500101000000Z", "1950-01-01T00:00:00+00:00"),
        (0x18, b"20500101000000Z", "2050-01-01T00:00:00+00:00"),
    ],
)
def test_times_have_two_forms(tag: int, content: bytes, expected: str) -> None:
    assert datetime.fromtimestamp(Element(tag, content, b"").time_s(), timezone.utc).isoformat() == expected


def test_a_block_of_pem_is_what_openssl_would_read() -> None:
    authority = MintedAuthority()
    (block,) = pem_blocks(b"Subject: somebody\r\n" + authority.pem.replace(b"\n", b"\r\n") + b"\nmore\n")
    assert pem_text(CERTIFICATE, block.body) == authority.pem
    for half in (authority.pem[:-20], authority.pem[:80], authority.pem + authority.pem[:100]):
        with pytest.raises(ValueError, match="no end"):
            pem_blocks(half)
    with pytest.raises(ValueError, match="not base64"):
        pem_blocks(authority.pem.replace(b"MII", b"M*I", 1))
