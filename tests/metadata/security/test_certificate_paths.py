"""The way from a peer's certificate to an authority: what is judged of it agrees with OpenSSL's own handshake."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.security.handshakes import shake_hands
from helpers.security.minting import MintedAuthority, MintedPair, replace_file, write_folder

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
