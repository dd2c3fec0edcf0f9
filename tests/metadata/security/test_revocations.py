"""Two authorities bear one name: whose list counts for what, in handshakes and on connections that are open."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.security.handshakes import shake_hands
from helpers.security.minting import DAY, MintedAuthority, MintedPair, now, replace_file, write_folder

from metadata.security.certificates import pem_blocks, read_certificate, read_revocations
from metadata.security.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE, TlsFiles, TlsIdentity

REVOKED = "its authority, CN=Authority of tests, has revoked it"
NO_LIST = "its authority, CN=Authority of tests, has no revocation list"


@dataclass
class Namesakes:
    """Two authorities of one name, and who believes in both."""

    folder: Path
    old: MintedAuthority
    new: MintedAuthority

    def identity(self, lists: bytes | None, authorities: bytes | None = None) -> TlsIdentity:
        """Return one that has a certificate of the old one."""
        pair = self.old.issue("node-1", hosts=["localhost"])
        believed = self.old.pem + self.new.pem if authorities is None else authorities
        return TlsIdentity(TlsFiles.of_folder(write_folder(self.folder / "ours", pair, believed, lists)))

    def handshake(self, ours: TlsIdentity, pair: MintedPair, *, we_serve: bool = True) -> str | None:
        """Return by what our end refuses a peer; None: it does not. The other end checks nothing."""
        place = write_folder(self.folder / "theirs", pair, self.old.pem)
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if we_serve else ssl.PROTOCOL_TLS_SERVER)
        theirs.check_hostname, theirs.verify_mode = False, ssl.CERT_NONE
        theirs.load_cert_chain(place / CERTIFICATE_FILE, place / KEY_FILE)
        try:
            if we_serve:
                shake_hands(ours.server_context(), theirs)
            else:
                shake_hands(theirs, ours.client_context())
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        return None


@pytest.fixture(name="both")
def _both(tmp_path: Path) -> Namesakes:
    return Namesakes(tmp_path, MintedAuthority(says_key=True), MintedAuthority(says_key=True))


@pytest.mark.parametrize("we_serve", [True, False])
@pytest.mark.parametrize("first", ["old", "new"])
def test_the_list_of_each_counts_for_what_it_has_signed_and_for_nothing_else(
    both: Namesakes, first: str, we_serve: bool
) -> None:
    """The same serial number on both sides, revoked on one: its namesake stays."""
    pairs = {
        (which, serial): getattr(both, which).issue(f"{which}-{serial}", hosts=["localhost"], serial=serial)
        for which in ("old", "new")
        for serial in (7, 8, 9)
    }
    lists = {
        "old": both.old.revoke(pairs["old", 7], begins=now() - 2 * DAY),
        "new": both.new.revoke(pairs["new", 8], begins=now() - DAY),
    }
    order = ["old", "new"] if first == "old" else ["new", "old"]
    ours = both.identity(b"".join(lists[which] for which in order))
    for which, pair in pairs.items():
        revoked = which in (("old", 7), ("new", 8))
        assert ours.judge(pair.der) == (REVOKED if revoked else None), which
        assert both.handshake(ours, pair, we_serve=we_serve) == ("certificate revoked" if revoked else None), which


def test_each_needs_a_list_of_its_own(both: Namesakes, caplog: pytest.LogCaptureFixture) -> None:
    ours = both.identity(both.old.revoke())
    assert f"{REVOKED_FILE} has no revocation list of CN=Authority of tests" in caplog.text
    mine, other = both.old.issue("a", hosts=["localhost"]), both.new.issue("b", hosts=["localhost"])
    assert ours.judge(mine.der) is None
    assert both.handshake(ours, mine) is None
    assert ours.judge(other.der) == NO_LIST
    assert "unable to get certificate CRL" in str(both.handshake(ours, other))
    caplog.clear()
    both.identity(both.old.revoke() + both.new.revoke())
    assert "revocation list of" not in caplog.text


def test_of_several_lists_of_one_key_the_newest_counts(both: Namesakes) -> None:
    held, bad = both.new.issue("held", hosts=["localhost"]), both.new.issue("bad", hosts=["localhost"])
    older = both.new.revoke(held, begins=now() - 5 * DAY)
    ours = both.identity(older + both.old.revoke() + both.new.revoke(bad))
    for pair, expected in ((held, None), (bad, REVOKED)):
        assert ours.judge(pair.der) == expected
        assert (both.handshake(ours, pair) is None) is (expected is None)


def test_the_roots_are_told_apart_as_well(both: Namesakes) -> None:
    """Each root is asked for where the whole way is judged, and a root need not say that its key is its own."""
    root = MintedPair(both.new.certificate, both.new.key)
    ours = both.identity(both.old.revoke(root) + both.new.revoke())
    peer = both.new.issue("peer", hosts=["localhost"])
    assert both.handshake(ours, peer) is None
    assert ours.judge(peer.der, shown=[]) is None
    ours = both.identity(both.old.revoke() + both.new.revoke(root))
    assert both.handshake(ours, peer) is not None
    assert "has revoked it" in str(ours.judge(peer.der, shown=[]))


def test_the_one_that_is_not_believed_any_more_ends_what_it_has_signed(both: Namesakes) -> None:
    ours = both.identity(None)
    gone, stays = both.old.issue("gone", hosts=["localhost"]), both.new.issue("stays", hosts=["localhost"])
    for pair in (gone, stays):
        assert both.handshake(ours, pair) is ours.judge(pair.der) is None
    replace_file(both.folder / "ours" / AUTHORITIES_FILE, both.new.pem)
    assert ours.refresh()
    assert ours.judge(gone.der) == "its authority, CN=Authority of tests, is not believed any more"
    assert both.handshake(ours, gone) is not None
    assert both.handshake(ours, stays) is ours.judge(stays.der) is None


@pytest.mark.parametrize("newer", ["old", "new"])
def test_lists_that_do_not_say_whose_they_are_refuse_one_too_many_and_never_one_too_few(
    tmp_path: Path, newer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL takes the newest in a handshake, by its name alone; for connections that are open all of them count."""
    both = Namesakes(tmp_path, MintedAuthority(), MintedAuthority())
    bad = {which: getattr(both, which).issue("bad", hosts=["localhost"]) for which in ("old", "new")}
    good = {which: getattr(both, which).issue("good", hosts=["localhost"]) for which in ("old", "new")}
    times = {which: now() - (DAY if which == newer else 2 * DAY) for which in ("old", "new")}
    lists = both.old.revoke(bad["old"], begins=times["old"]) + both.new.revoke(bad["new"], begins=times["new"])
    ours = both.identity(lists)
    assert "that does not say by which key it is signed" in caplog.text
    for which in ("old", "new"):
        assert ours.judge(bad[which].der) == REVOKED
        assert both.handshake(ours, bad[which]) is not None
        assert ours.judge(good[which].der) is None


def test_a_list_that_says_its_key_stands_over_older_ones_that_say_none_and_not_over_newer_ones(both: Namesakes) -> None:
    silent = both.old.renewed()
    silent.says_key = False
    first, second, third = (both.old.issue(name, hosts=["localhost"]) for name in ("a", "b", "c"))
    lists = silent.revoke(first, begins=now() - 3 * DAY)
    lists += both.old.revoke(second, begins=now() - 2 * DAY)
    ours = both.identity(lists + both.new.revoke())
    assert ours.judge(first.der) is None
    assert ours.judge(second.der) == REVOKED
    ours = both.identity(lists + silent.revoke(third, begins=now() - DAY) + both.new.revoke())
    assert ours.judge(second.der) == ours.judge(third.der) == REVOKED
    assert ours.judge(first.der) is None


def test_one_authority_with_lists_of_before_and_after_it_said_its_key_has_one_newest_list(tmp_path: Path) -> None:
    both = Namesakes(tmp_path, MintedAuthority(says_key=True), MintedAuthority("another", says_key=True))
    silent = both.old.renewed()
    silent.says_key = False
    held, bad = both.old.issue("held", hosts=["localhost"]), both.old.issue("bad", hosts=["localhost"])
    for older, newer in ((silent, both.old), (both.old, silent)):
        lists = older.revoke(held, begins=now() - 2 * DAY) + newer.revoke(bad) + both.new.revoke()
        ours = both.identity(lists)
        assert ours.judge(held.der) is None
        assert ours.judge(bad.der) == REVOKED


def test_what_says_its_key_is_read(both: Namesakes) -> None:
    above = read_certificate(pem_blocks(both.old.pem)[0].body)
    below = read_certificate(both.old.issue("a").der)
    listed = read_revocations(pem_blocks(both.old.revoke())[0].body)
    assert above.key_id is not None
    assert above.key_id == below.authority_key_id == listed.authority_key_id
    assert below.may_be_signed_by(above.subject, above.key_id)
    other = read_certificate(pem_blocks(both.new.pem)[0].body)
    assert not below.may_be_signed_by(other.subject, other.key_id)
    assert below.may_be_signed_by(other.subject, None)
