"""The way from a peer's certificate to an authority: what is judged of it agrees with OpenSSL's own handshake."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.security.handshakes import shake_hands
from helpers.security.minting import DAY, MintedAuthority, MintedPair, now, replace_file, write_folder

from metadata.security.certificate_paths import MAX_SHOWN
from metadata.security.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, REVOKED_FILE, TlsFiles, TlsIdentity


class Ways:
    """A root, two authorities below it one after the other, and a peer of the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = MintedAuthority("Root")
        self.upper = MintedAuthority("Upper", self.root)
        self.lower = MintedAuthority("Lower", self.upper)
        self.peer = self.lower.issue("writer", hosts=["localhost"])

    def server(self, authorities: bytes, revoked: bytes | None = None) -> TlsIdentity:
        pair = self.root.issue("node-1", hosts=["localhost"])
        return TlsIdentity(TlsFiles.of_folder(write_folder(self.folder / "server", pair, authorities, revoked)))

    def lists(self, *revoked: MintedAuthority) -> bytes:
        """Of each authority one, with those of these that it has signed."""
        signers = {"Upper": "Root", "Lower": "Upper"}
        found = b""
        for one in (self.root, self.upper, self.lower):
            below = [pair_of(other) for other in revoked if signers.get(text(other)) == text(one)]
            found += one.revoke(*below)
        return found

    def takes(self, server: TlsIdentity, shown: Sequence[MintedAuthority], peer: MintedPair | None = None) -> bool:
        """Whether OpenSSL takes the peer, which agrees with whether the server's judgement does."""
        peer = peer or self.peer
        client = write_folder(self.folder / "client", peer, self.root.pem)
        replace_file(client / CERTIFICATE_FILE, peer.certificate_pem + b"".join(one.pem for one in shown))
        theirs = TlsIdentity(TlsFiles.of_folder(client)).client_context()
        theirs.check_hostname = False
        try:
            shake_hands(server.server_context(), theirs)
            taken = True
        except ssl.SSLCertVerificationError:
            taken = False
        why = server.judge(peer.der, shown=[pair_of(one).der for one in shown])
        assert (why is None) is taken, why
        return taken


def pair_of(authority: MintedAuthority) -> MintedPair:
    return MintedPair(authority.certificate, authority.key)


def text(authority: MintedAuthority) -> str:
    return authority.certificate.subject.rfc4514_string().removeprefix("CN=")


@pytest.fixture(name="ways")
def _ways(tmp_path: Path) -> Ways:
    return Ways(tmp_path)


def test_the_whole_way_is_judged_where_a_list_revokes_one_of_it(ways: Ways) -> None:
    below = [ways.lower, ways.upper]
    assert ways.takes(ways.server(ways.root.pem), below)
    assert ways.takes(ways.server(ways.root.pem, ways.lists()), below)
    for revoked in below:
        server = ways.server(ways.root.pem, ways.lists(revoked))
        assert not ways.takes(server, below)
        assert not ways.takes(server, [ways.upper, ways.lower, ways.root]), "in whatever order"
        assert f"CN={text(revoked)}, is not good" in str(
            server.judge(ways.peer.der, shown=[pair_of(one).der for one in below])
        )
        assert server.judge(ways.peer.der) is None, "by the peer's own alone it cannot be seen"


def test_an_authority_on_the_way_needs_a_list_as_well(ways: Ways) -> None:
    assert not ways.takes(
        ways.server(ways.root.pem, ways.root.revoke() + ways.lower.revoke()), [ways.lower, ways.upper]
    )


@pytest.mark.parametrize("shown", [(), ("lower",), ("upper",)])
def test_a_way_with_a_gap_is_refused(ways: Ways, shown: tuple[str, ...]) -> None:
    server = ways.server(ways.root.pem)
    assert not ways.takes(server, [getattr(ways, name) for name in shown])


def test_a_way_ends_at_what_is_believed_and_that_may_be_revoked_too(ways: Ways) -> None:
    assert ways.takes(ways.server(ways.lower.pem), [])
    believed = ways.root.pem + ways.upper.pem + ways.lower.pem
    # OpenSSL takes no peer here, whatever the lists say: its way ends at Lower, and Upper's list has no signer there.
    assert ways.server(believed, ways.lists()).judge(ways.peer.der, shown=()) is None
    assert not ways.takes(ways.server(believed, ways.lists(ways.lower)), [ways.lower, ways.upper])
    assert not ways.takes(ways.server(ways.lower.pem, ways.lower.revoke()), []), "who has signed it has no list"


def test_a_peer_that_is_believed_itself_needs_no_way(ways: Ways) -> None:
    assert ways.takes(ways.server(ways.peer.certificate_pem), [])


def test_one_of_the_same_name_but_not_the_same_key_hides_no_revocation(ways: Ways) -> None:
    """An authority that was revoked and has a new certificate under its old name: what the old one signed stays out,
    also where the new one is believed by itself, or shown as well."""
    again = MintedAuthority("Lower", ways.upper)
    below = [ways.lower, ways.upper]
    server = ways.server(ways.root.pem + again.pem, ways.lists(ways.lower))
    assert server.judge(ways.peer.der, shown=[pair_of(one).der for one in below]) is not None
    server = ways.server(ways.root.pem, ways.lists(ways.lower))
    assert server.judge(ways.peer.der, shown=[pair_of(one).der for one in [again, *below]]) is not None
    peer = again.issue("writer", hosts=["localhost"])
    assert server.judge(peer.der, shown=[pair_of(one).der for one in [again, ways.upper]]) is None


def test_an_old_certificate_of_a_believed_authority_signed_by_another_is_not_looked_at(ways: Ways) -> None:
    old = MintedAuthority("Old root")
    cross = MintedAuthority("Root", old)
    cross_of_root = old.cross(ways.root)
    server = ways.server(ways.root.pem, ways.lists())
    assert ways.takes(server, [ways.lower, ways.upper, cross_of_root])
    assert server.judge(ways.peer.der, shown=[pair_of(one).der for one in (ways.lower, ways.upper, cross)]) is not None


def test_an_authority_that_is_not_believed_any_more_ends_what_is_below_those_that_it_has_signed(ways: Ways) -> None:
    other = MintedAuthority("Another root")
    server = ways.server(ways.root.pem + other.pem)
    assert ways.takes(server, [ways.lower, ways.upper])
    replace_file(ways.folder / "server" / AUTHORITIES_FILE, other.pem)
    assert server.refresh()
    assert not ways.takes(server, [ways.lower, ways.upper])


def test_a_list_that_comes_later_counts(ways: Ways) -> None:
    server = ways.server(ways.root.pem)
    assert ways.takes(server, [ways.lower, ways.upper])
    replace_file(ways.folder / "server" / REVOKED_FILE, ways.lists(ways.upper))
    assert server.refresh()
    assert not ways.takes(server, [ways.lower, ways.upper])


def test_a_peer_that_shows_no_end_of_certificates_or_none_at_all_is_refused(ways: Ways) -> None:
    server = ways.server(ways.root.pem)
    many = [MintedAuthority(f"Number {number}") for number in range(MAX_SHOWN + 1)]
    assert "more than 16" in str(server.judge(ways.peer.der, shown=[pair_of(one).der for one in many]))
    assert "cannot be read" in str(server.judge(ways.peer.der, shown=[b"\x30\x00"]))


def test_authorities_that_have_signed_each_other_lead_nowhere(ways: Ways) -> None:
    first = MintedAuthority("First")
    second = MintedAuthority("Second", first)
    circle = [second.cross(first), second]
    peer = second.issue("writer")
    server = ways.server(ways.root.pem)
    assert server.judge(peer.der, shown=[pair_of(one).der for one in circle]) is not None


# -------------------------------------------------------------------- several certificates of one authority


@pytest.fixture(name="renewing", params=[False, True], ids=["names alone", "keys are said"])
def _renewing(tmp_path: Path, request: pytest.FixtureRequest) -> Ways:
    """The same ways; with and without numbers of keys, by which others than ours tell authorities apart."""
    ways = Ways(tmp_path)
    if request.param:
        ways.root = MintedAuthority("Root", says_key=True)
        ways.upper = MintedAuthority("Upper", ways.root, says_key=True)
        ways.lower = MintedAuthority("Lower", ways.upper, says_key=True)
        ways.peer = ways.lower.issue("writer", hosts=["localhost"])
    return ways


def over(authority: MintedAuthority, signed_by: MintedAuthority | None = None) -> MintedAuthority:
    """Return it with a certificate that has ended."""
    return authority.renewed(signed_by, ends=now() - DAY)


@pytest.mark.parametrize("old_first", [True, False])
def test_a_root_that_was_renewed_is_believed_by_either_certificate(renewing: Ways, old_first: bool) -> None:
    ways = renewing
    below = [ways.lower, ways.upper]
    old = over(ways.root)
    both = [old, ways.root] if old_first else [ways.root, old]
    for lists in (None, ways.lists()):
        server = ways.server(b"".join(one.pem for one in both), lists)
        assert ways.takes(server, below)
        assert ways.takes(server, [*below, old]), "the peer shows the old one as well"
        assert ways.takes(ways.server(ways.root.pem, lists), [*below, old])
        assert not ways.takes(ways.server(old.pem, lists), below), "the old one alone has ended"
    assert not ways.takes(ways.server(b"".join(one.pem for one in both), ways.lists(ways.upper)), below)


def test_an_old_root_that_is_shown_is_enough_for_who_believes_in_no_other(renewing: Ways) -> None:
    """A new root, signed by the old one for those who do not know it yet."""
    ways = renewing
    elder = MintedAuthority("Elder", says_key=ways.root.says_key)
    crossed = ways.root.renewed(signed_by=elder)
    below = [ways.lower, ways.upper]
    assert ways.takes(ways.server(elder.pem), [*below, crossed])
    # In whatever company: OpenSSL tries one way alone, and which one depends on their order.
    shown = [pair_of(one).der for one in (*below, ways.root, crossed)]
    assert ways.server(elder.pem).judge(ways.peer.der, shown=shown) is None
    assert not ways.takes(ways.server(elder.pem), [*below, ways.root])
    assert ways.takes(ways.server(ways.root.pem), [*below, over(ways.root, elder)]), "it needs none of them"
    lists = ways.lists() + elder.revoke(pair_of(crossed))
    assert not ways.takes(ways.server(elder.pem, lists), [*below, crossed])


@pytest.mark.parametrize("old_first", [True, False])
def test_one_in_between_that_was_renewed_leads_on(renewing: Ways, old_first: bool) -> None:
    ways = renewing
    old = over(ways.lower, ways.upper)
    both = [old, ways.lower] if old_first else [ways.lower, old]
    for lists in (None, ways.lists()):
        server = ways.server(ways.root.pem, lists)
        assert server.judge(ways.peer.der, shown=[pair_of(one).der for one in (*both, ways.upper)]) is None
        assert ways.takes(server, [ways.lower, ways.upper])
        assert not ways.takes(server, [old, ways.upper])
    lists = ways.lists(ways.lower)
    assert not ways.takes(ways.server(ways.root.pem, lists), [*both, ways.upper]), "ended, or revoked"


def test_a_way_around_one_that_is_revoked_is_taken_if_there_is_one(renewing: Ways) -> None:
    ways = renewing
    other = MintedAuthority("Other root", says_key=ways.root.says_key)
    crossed = ways.lower.renewed(signed_by=other)
    lists = ways.lists(ways.lower) + other.revoke()
    shown = [pair_of(one).der for one in (ways.lower, crossed, ways.upper)]
    assert ways.server(ways.root.pem + other.pem, lists).judge(ways.peer.der, shown=shown) is None
    assert ways.takes(ways.server(ways.root.pem + other.pem, lists), [crossed])
    assert ways.server(ways.root.pem, lists).judge(ways.peer.der, shown=shown) is not None
    lists = ways.lists(ways.lower) + other.revoke(pair_of(crossed))
    assert ways.server(ways.root.pem + other.pem, lists).judge(ways.peer.der, shown=shown) is not None


def test_another_key_of_the_same_name_is_no_way_around_unless_numbers_tell_them_apart(renewing: Ways) -> None:
    """One of the two that bear the name is revoked: its peers stay out, whatever they show beside it."""
    ways = renewing
    said = ways.root.says_key
    again = MintedAuthority("Lower", ways.upper, says_key=said)
    lists = ways.lists(ways.lower) + again.revoke()
    shown = [pair_of(one).der for one in (again, ways.lower, ways.upper)]
    server = ways.server(ways.root.pem, lists)
    assert "CN=Lower, is not good" in str(server.judge(ways.peer.der, shown=shown))
    peer = again.issue("reader", hosts=["localhost"])
    assert (server.judge(peer.der, shown=shown) is None) is said
    assert server.judge(peer.der, shown=[shown[0], shown[2]]) is None


def test_a_certificate_that_may_sign_nothing_leads_nowhere(ways: Ways) -> None:
    """One of the same name and key as the authority that is revoked: it is good, and no authority."""
    plain = ways.upper.issue("Lower", key=ways.lower.key)
    server = ways.server(ways.root.pem, ways.lists(ways.lower))
    shown = [plain.der, pair_of(ways.lower).der, pair_of(ways.upper).der]
    assert "has revoked it" in str(server.judge(ways.peer.der, shown=shown))
