"""A principal's proof ends when it says; a certificate is one principal's, or is refused."""

from __future__ import annotations

import pytest
from cryptography.x509.oid import NameOID
from helpers.security.minting import MintedAuthority

from metadata.foundation.errors import CallerError
from metadata.security.certificates import CertificateFacts, read_certificate
from metadata.security.errors import PeerRefusedError
from metadata.security.principals import Principal, PrincipalMapping, Scheme, roles_of_units

SPIFFE = "spiffe://example.org/ns/prod/sa/ingest"


@pytest.fixture(scope="module")
def authority() -> MintedAuthority:
    return MintedAuthority()


@pytest.fixture(scope="module")
def facts(authority: MintedAuthority) -> CertificateFacts:
    pair = authority.issue("writer", roles=["client", "operator"], hosts=["w.example.org", "10.0.0.7"], uris=[SPIFFE])
    return read_certificate(pair.der)


def mapped(facts: CertificateFacts, text: str) -> tuple[str, set[str]]:
    found = PrincipalMapping(text).principal(facts)
    return found.name, set(found.roles)


def test_a_proof_is_over_at_its_very_end() -> None:
    principal = Principal("writer", Scheme.TOKEN, expires_at_s=100.0)
    assert not principal.expired(99.9)
    assert principal.expired(100.0)


def test_a_proof_without_an_end_does_not_expire() -> None:
    assert not Principal("writer", Scheme.TLS).expired(1e12)


def test_a_principal_reads_as_its_name() -> None:
    assert f"{Principal('writer', Scheme.TLS)}" == "writer"


def test_the_common_name_is_the_name_and_the_units_are_the_roles(facts: CertificateFacts) -> None:
    found = PrincipalMapping().principal(facts)
    assert found == Principal("writer", Scheme.TLS, frozenset({"client", "operator"}), facts.not_after_s)
    assert facts.subject_text == "CN=writer,OU=operator,OU=client"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (r"uri#spiffe://example\.org/ns/(\w+)/sa/(\w+)#$2#$1#", ("ingest", {"prod"})),
        (r"uri#spiffe://example\.org/ns/(\w+)/sa/(\w+)#$2@$1#a, b-$2,#", ("ingest@prod", {"a", "b-ingest"})),
        (r"uri|spiffe://[^/]+/.*|any||", ("any", {"client", "operator"})),
        (r"uri#.+#any#-#", ("any", set())),
        (r"dns#(\w+)\.example\.org#$1#host#", ("w", {"host"})),
        (r"address#10\.0\.0\.\d+#inside##", ("inside", {"client", "operator"})),
        (r"subject#CN=(\w+),.*#$1##", ("writer", {"client", "operator"})),
        (r"email#.*#x## uri#spiffe:(.*)#y##", ("y", {"client", "operator"})),
        (r"dns#example\.org#part##  default", ("writer", {"client", "operator"})),
        ("default", ("writer", {"client", "operator"})),
    ],
)
def test_rules_are_tried_in_order(facts: CertificateFacts, rules: str, expected: tuple[str, set[str]]) -> None:
    assert mapped(facts, rules) == expected


@pytest.mark.parametrize("rules", [r"dns#example\.org#part##", r"uri#spiffe://example#part##", "email#.*#x##"])
def test_a_pattern_that_matches_a_part_only_matches_not(facts: CertificateFacts, rules: str) -> None:
    with pytest.raises(PeerRefusedError, match="no rule"):
        PrincipalMapping(rules).principal(facts)


def test_a_certificate_cannot_make_two_roles_of_one(authority: MintedAuthority) -> None:
    facts = read_certificate(authority.issue("a", uris=["urn:role:client,operator"]).der)
    assert mapped(facts, "uri#urn:role:(.*)#n#$1#") == ("n", {"client,operator"})


def test_what_separates_parts_of_a_name_is_escaped_in_it(authority: MintedAuthority) -> None:
    """Else a name could be chosen that looks like another subject."""
    facts = read_certificate(authority.issue("writer,OU=operator", roles=["client"]).der)
    assert facts.subject_text == r"CN=writer\,OU\=operator,OU=client"
    with pytest.raises(PeerRefusedError):
        PrincipalMapping(r"subject#CN=(\w+),OU=operator.*#$1##").principal(facts)


@pytest.mark.parametrize(
    "name",
    [None, " writer", "writer\n", "wri\x00ter"]
    + [f"wri{sign}ter" for sign in "\u202e\u00ad\u2060\u061c\u180e\u3164\u115f\ufe0f\U000e0041\u00a0\u2003\ue000"]
    + ["cafe\u0301", "\u212bngstrom"],  # e and an accent, the sign of a unit: each has another form that looks alike
)
def test_a_certificate_without_a_usable_name_is_refused(authority: MintedAuthority, name: str | None) -> None:
    with pytest.raises(PeerRefusedError):
        PrincipalMapping().principal(read_certificate(authority.issue(name, roles=["client"]).der))


@pytest.mark.parametrize("name", ["caf\u00e9 2", "\u0441\u043a\u043b\u0430\u0434", "\u5009\u5eab", "a_b-c.d@e"])
def test_a_name_may_have_letters_of_any_script(authority: MintedAuthority, name: str) -> None:
    assert PrincipalMapping().principal(read_certificate(authority.issue(name).der)).name == name


@pytest.mark.parametrize(
    ("units", "roles"),
    [
        (("0:client",), ("client",)),
        (("0:client, proxy;1:east,west",), ("client", "proxy")),
        (("1:east",), ()),
        (("0:", "node"), ("node",)),
        (("0:client;by hand",), ("0:client;by hand",)),
        (("a,b", "x:client"), ("a,b", "x:client")),
    ],
)
def test_units_are_roles_or_name_them_in_upstreams_form(units: tuple[str, ...], roles: tuple[str, ...]) -> None:
    assert roles_of_units(units) == roles


def test_a_certificate_with_two_names_is_refused(authority: MintedAuthority) -> None:
    pair = authority.issue("writer", names=[(NameOID.COMMON_NAME, "operator")])
    with pytest.raises(PeerRefusedError, match="2 common names"):
        PrincipalMapping().principal(read_certificate(pair.der))


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("name#.*#x##", "begins with"),
        ("uri", "begins with"),
        ("uri#.*#x", "2 parts|1 parts"),
        ("uri#(#x##", "not a regular expression"),
        ("uri#.*###", "gives no name"),
        ("uri#.*#$1##", "has 0 groups"),
        ("uri#.*#x##dns#.*#y##", "not a space"),
        ("default uri#.*#x##", "rules follow it"),
    ],
)
def test_rules_that_cannot_be_understood_are_refused(rules: str, reason: str) -> None:
    with pytest.raises(CallerError, match=reason):
        PrincipalMapping(rules)
