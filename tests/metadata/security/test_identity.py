"""What an identity lets in and what it refuses, and how it takes over files that change. Every handshake is real."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import ssl
import time
import warnings
from pathlib import Path

import pytest
from helpers.security.handshakes import shake_hands
from helpers.security.minting import CLIENT, DAY, SERVER, MintedAuthority, MintedPair, now, replace_file, write_folder

from metadata.foundation.errors import DistributedLogError
from metadata.security.errors import IdentityError, PeerRefusedError
from metadata.security.identity import (
    AUTHORITIES_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOKED_FILE,
    TlsFiles,
    TlsIdentity,
)
from metadata.security.identity_files import in_memory


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of identities: another test's thread in this process may have its own."""
    return [one.getMessage() for one in caplog.records if one.name == "metadata.security.identity"]


@pytest.fixture(scope="module")
def authority() -> MintedAuthority:
    return MintedAuthority()


@pytest.fixture(scope="module")
def good(authority: MintedAuthority) -> MintedPair:
    return authority.issue("node-1", roles=["node"], hosts=["localhost", "127.0.0.1"])


@pytest.fixture
def server(tmp_path: Path, authority: MintedAuthority, good: MintedPair) -> TlsIdentity:
    return TlsIdentity(TlsFiles.of_folder(write_folder(tmp_path / "server", good, authority.pem)))


def identity(folder: Path, pair: MintedPair, authority: MintedAuthority, revoked: bytes | None = None) -> TlsIdentity:
    return TlsIdentity(TlsFiles.of_folder(write_folder(folder, pair, authority.pem, revoked)))


def client_of(tmp_path: Path, pair: MintedPair, authority: MintedAuthority) -> ssl.SSLContext:
    """Return a client's context that itself checks nothing of its own certificate, as an attacker's would not."""
    folder = write_folder(tmp_path / "client", pair, authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    context.load_verify_locations(folder / AUTHORITIES_FILE)
    return context


# -------------------------------------------------------------------- who is let in


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_ends_prove_who_they_are(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, version: ssl.TLSVersion
) -> None:
    pair = authority.issue("writer", roles=["client"])
    client = identity(tmp_path / "client", pair, authority)
    client.client_context().maximum_version = version
    ends = shake_hands(server.server_context(), client.client_context())
    assert ends.client.version() == version.name.replace("_", ".")
    found = server.principal(ends.server)
    assert (found.name, found.roles) == ("writer", {"client"})
    assert found.expires_at_s == pair.certificate.not_valid_after_utc.timestamp()
    assert client.principal(ends.client).name == "node-1"
    assert ends.client.compression() is None
    assert server.server_context().num_tickets == 0
    assert server.server_context().options & ssl.OP_NO_RENEGOTIATION


def test_a_server_is_known_by_its_address(authority: MintedAuthority, server: TlsIdentity) -> None:
    shake_hands(server.server_context(), server.client_context(), "127.0.0.1")


@pytest.mark.parametrize("host", ["example.org", "127.0.0.2", "node-1"])
def test_a_server_of_another_name_is_refused(server: TlsIdentity, host: str) -> None:
    """Also by its common name: that says who it is, not where."""
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake_hands(server.server_context(), server.client_context(), host)


def test_host_names_are_not_checked_where_that_is_switched_off(server: TlsIdentity) -> None:
    files = TlsFiles(
        server.files.certificate, server.files.key, authorities=server.files.authorities, names_checked=False
    )
    shake_hands(server.server_context(), TlsIdentity(files).client_context(), "example.org")


def test_a_client_without_a_certificate_is_refused(authority: MintedAuthority, server: TlsIdentity) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority.pem.decode())
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(server.server_context(), client)


def test_a_client_without_a_certificate_is_let_in_where_none_is_demanded(
    server: TlsIdentity, authority: MintedAuthority
) -> None:
    files = TlsFiles(
        server.files.certificate, server.files.key, authorities=server.files.authorities, peers_prove=False
    )
    lenient = TlsIdentity(files)
    client = TlsIdentity(TlsFiles(authorities=server.files.authorities))
    ends = shake_hands(lenient.server_context(), client.client_context())
    with pytest.raises(PeerRefusedError, match="has shown no certificate"):
        lenient.principal(ends.server)
    with pytest.raises(IdentityError, match="a server needs a certificate"):
        client.server_context()


def test_a_foreign_certificate_is_refused_though_none_is_demanded(
    tmp_path: Path, server: TlsIdentity, authority: MintedAuthority
) -> None:
    files = TlsFiles(
        server.files.certificate, server.files.key, authorities=server.files.authorities, peers_prove=False
    )
    foreign = client_of(tmp_path, MintedAuthority("foreign").issue("writer"), authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(TlsIdentity(files).server_context(), foreign)


BAD = {
    "foreign": "unable to get local issuer|self.signed",
    "expired": "expired",
    "not yet valid": "not yet valid",
    "wrong usage": "unsuitable certificate purpose|unsupported certificate purpose",
    "same name as the authority": "certificate signature failure|unable to get local issuer",
}


def bad_pair(kind: str, authority: MintedAuthority, usage: object) -> MintedPair:
    if kind == "foreign":
        return MintedAuthority("foreign").issue("node-1", hosts=["localhost"])
    if kind == "same name as the authority":
        return MintedAuthority().issue("node-1", hosts=["localhost"])
    if kind == "expired":
        return authority.issue("node-1", hosts=["localhost"], begins=now() - 9 * DAY, ends=now() - DAY)
    if kind == "not yet valid":
        return authority.issue("node-1", hosts=["localhost"], begins=now() + DAY)
    return authority.issue("node-1", hosts=["localhost"], usages=[usage])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_client_is_refused(tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, kind: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=BAD[kind]):
        shake_hands(
            server.server_context(), client_of(tmp_path, bad_pair(kind, authority, SERVER), authority), "localhost"
        )


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_server_is_refused(tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, kind: str) -> None:
    folder = write_folder(tmp_path / "bad", bad_pair(kind, authority, CLIENT), authority.pem)
    bad = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    bad.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    with pytest.raises(ssl.SSLCertVerificationError, match=BAD[kind]):
        shake_hands(bad, server.client_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.parametrize("old", ["client", "server"])
def test_old_versions_of_tls_are_refused(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, version: ssl.TLSVersion, old: str
) -> None:
    folder = write_folder(tmp_path / "old", authority.issue("old", hosts=["localhost"]), authority.pem)
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if old == "client" else ssl.PROTOCOL_TLS_SERVER)
    other.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    other.load_verify_locations(folder / AUTHORITIES_FILE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        other.minimum_version = other.maximum_version = version
    # The other end would speak it: else this test would show nothing of ours.
    other.set_ciphers("ALL:@SECLEVEL=0")
    ours = server.server_context() if old == "client" else server.client_context()
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|PROTOCOL_VERSION"):
        shake_hands(ours, other) if old == "client" else shake_hands(other, ours)


def test_only_a_version_that_is_enabled_is_spoken(server: TlsIdentity) -> None:
    files = TlsFiles(
        server.files.certificate, server.files.key, authorities=server.files.authorities, protocols=("TLSv1.2",)
    )
    ends = shake_hands(TlsIdentity(files).server_context(), server.client_context())
    assert ends.client.version() == "TLSv1.2"


def test_a_session_that_is_taken_up_again_is_judged_anew(server: TlsIdentity, authority: MintedAuthority) -> None:
    """OpenSSL verifies a certificate once a session; an old one that comes back may have ended meanwhile."""
    client = server.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    ends = shake_hands(server.server_context(), client)
    end_s = server.principal(ends.server).expires_at_s
    assert end_s is not None
    with pytest.raises(PeerRefusedError, match="ended at"):
        server.principal(ends.server, end_s)


# -------------------------------------------------------------------- revocation


def test_a_revoked_certificate_is_refused_by_both_ends(tmp_path: Path, authority: MintedAuthority) -> None:
    bad, fine = (authority.issue(name, hosts=["localhost"]) for name in ("bad", "fine"))
    revoked = authority.revoke(bad)
    ours = identity(tmp_path / "ours", fine, authority, revoked)
    shake_hands(ours.server_context(), ours.client_context())
    theirs = identity(tmp_path / "theirs", bad, authority)
    for ends in ((ours.server_context(), theirs.client_context()), (theirs.server_context(), ours.client_context())):
        with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
            shake_hands(*ends)
    assert ours.judge(fine.der) is None
    assert ours.judge(bad.der) == "its authority, CN=Authority of tests, has revoked it"
    assert theirs.judge(bad.der) is None


def test_a_list_of_another_authority_revokes_nothing(tmp_path: Path, authority: MintedAuthority) -> None:
    other = MintedAuthority("other")
    pair = authority.issue("one", hosts=["localhost"])
    folder = write_folder(tmp_path / "one", pair, authority.pem + other.pem, authority.revoke() + other.revoke(pair))
    ours = TlsIdentity(TlsFiles.of_folder(folder))
    assert ours.judge(pair.der) is None
    shake_hands(ours.server_context(), ours.client_context())


def test_an_authority_without_a_list_is_warned_of_and_its_certificates_are_refused(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair, caplog: pytest.LogCaptureFixture
) -> None:
    other = MintedAuthority("other")
    folder = write_folder(tmp_path / "one", good, authority.pem + other.pem, other.revoke())
    ours = TlsIdentity(TlsFiles.of_folder(folder))
    assert "no revocation list of CN=Authority of tests" in caplog.text
    assert ours.judge(good.der) == "its authority, CN=Authority of tests, has no revocation list"
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get certificate CRL"):
        shake_hands(ours.server_context(), ours.client_context())


def test_a_list_that_has_ended_lets_nobody_in(tmp_path: Path, authority: MintedAuthority, good: MintedPair) -> None:
    soon = now() + DAY
    clock = [now().timestamp()]
    folder = write_folder(tmp_path / "one", good, authority.pem, authority.revoke(ends=soon))
    ours = TlsIdentity(TlsFiles.of_folder(folder), clock=lambda: clock[0])
    assert ours.judge(good.der) is None
    clock[0] = soon.timestamp()
    assert "revocation list of CN=Authority of tests ended" in str(ours.judge(good.der))
    with pytest.raises(IdentityError, match="ended at"):
        TlsIdentity(TlsFiles.of_folder(folder), clock=lambda: clock[0])
    # OpenSSL goes by the true time.
    replace_file(folder / REVOKED_FILE, authority.revoke(begins=now() - 3 * DAY, ends=now() - DAY))
    late = TlsIdentity(TlsFiles.of_folder(folder), clock=(now() - 2 * DAY).timestamp)
    with pytest.raises(ssl.SSLCertVerificationError, match="CRL has expired"):
        shake_hands(late.server_context(), late.client_context())


def test_a_list_that_has_ended_keeps_no_other_authority_s_list_out(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair, caplog: pytest.LogCaptureFixture
) -> None:
    other = MintedAuthority("other")
    bad, fine, theirs = other.issue("bad"), other.issue("fine", hosts=["localhost"]), good
    both = authority.pem + other.pem
    folder = write_folder(tmp_path / "one", fine, both, authority.revoke() + other.revoke())
    running = TlsIdentity(TlsFiles.of_folder(folder))
    assert [running.judge(one.der) for one in (bad, fine, theirs)] == [None] * 3
    ended = authority.revoke(begins=now() - 3 * DAY, ends=now() - DAY)
    replace_file(folder / REVOKED_FILE, ended + other.revoke(bad))
    assert running.refresh()
    assert len(said(caplog)) == 1, "of the one that ended, once"
    for ours in (running, TlsIdentity(running.files)):
        assert ours.judge(bad.der) == "its authority, CN=other, has revoked it"
        assert ours.judge(fine.der) is None
        assert "the revocation list of CN=Authority of tests ended" in str(ours.judge(theirs.der))
        shake_hands(ours.server_context(), ours.client_context())
        for pair, why in ((bad, "revoked"), (theirs, "CRL has expired")):
            with pytest.raises(ssl.SSLCertVerificationError, match=why):
                shake_hands(ours.server_context(), client_of(tmp_path, pair, other))
    assert "the revocation list of CN=Authority of tests ended" in said(caplog)[0]
    assert "what that authority has signed is refused" in said(caplog)[0]
    assert len(said(caplog)) == 2, "the second one has said it as well"
    replace_file(folder / REVOKED_FILE, authority.revoke() + other.revoke(bad))
    assert running.refresh()
    assert running.judge(theirs.der) is None


def test_a_file_whose_lists_have_all_ended_is_not_taken_over(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair, caplog: pytest.LogCaptureFixture
) -> None:
    bad = authority.issue("bad")
    folder = write_folder(tmp_path / "one", good, authority.pem, authority.revoke(bad))
    ours = TlsIdentity(TlsFiles.of_folder(folder))
    replace_file(folder / REVOKED_FILE, authority.revoke(begins=now() - 3 * DAY, ends=now() - DAY))
    assert not ours.refresh()
    assert "the old ones stay in use" in caplog.text
    assert "the revocation list of CN=Authority of tests ended" in caplog.text
    assert ours.judge(good.der) is None
    assert "has revoked it" in str(ours.judge(bad.der))


def test_a_forged_list_lets_nobody_in(tmp_path: Path, authority: MintedAuthority, good: MintedPair) -> None:
    ours = identity(tmp_path / "one", good, authority, authority.revoke(signed_by=MintedAuthority()))
    with pytest.raises(ssl.SSLCertVerificationError, match="CRL signature failure"):
        shake_hands(ours.server_context(), ours.client_context())


# -------------------------------------------------------------------- files that change


def test_files_that_do_not_change_are_no_new_generation(server: TlsIdentity) -> None:
    before = server.server_context()
    assert not server.refresh()
    assert server.generation == 1
    assert server.server_context() is before


def test_a_new_pair_is_taken_over(tmp_path: Path, authority: MintedAuthority, server: TlsIdentity) -> None:
    before = server.server_context()
    write_folder(tmp_path / "server", authority.issue("node-2", hosts=["localhost"]), authority.pem)
    assert server.refresh()
    assert server.generation == 2
    assert server.server_context() is not before
    ends = shake_hands(server.server_context(), server.client_context())
    assert server.principal(ends.server).name == server.principal(ends.client).name == "node-2"


def test_a_list_that_appears_is_taken_over_and_then_has_to_stay(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, good: MintedPair, caplog: pytest.LogCaptureFixture
) -> None:
    bad = authority.issue("bad")
    assert server.judge(bad.der) is None
    place = tmp_path / "server" / REVOKED_FILE
    replace_file(place, authority.revoke(bad))
    assert server.refresh()
    assert server.judge(bad.der) is not None
    place.unlink()
    assert not server.refresh()
    assert not server.refresh()
    assert server.judge(bad.der) is not None
    assert len(said(caplog)) == 1
    assert "the old ones stay in use" in caplog.text
    replace_file(place, authority.revoke())
    assert server.refresh()
    assert server.judge(bad.der) is None


def test_an_authority_that_has_no_list_among_lists_that_appear_ends_what_it_has_signed(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair
) -> None:
    """As the next handshake would: connections of before are no exception."""
    other = MintedAuthority("other")
    folder = write_folder(tmp_path / "one", good, authority.pem + other.pem)
    ours, pair = TlsIdentity(TlsFiles.of_folder(folder)), other.issue("writer")
    assert ours.judge(pair.der) is None
    replace_file(folder / REVOKED_FILE, authority.revoke())
    assert ours.refresh()
    assert ours.judge(pair.der) == "its authority, CN=other, has no revocation list"
    assert ours.judge(good.der) is None
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get certificate CRL"):
        shake_hands(ours.server_context(), client_of(tmp_path, pair, authority))
    replace_file(folder / REVOKED_FILE, authority.revoke() + other.revoke())
    assert ours.refresh()
    assert ours.judge(pair.der) is None


def test_each_of_an_authoritys_lists_counts_where_it_has_divided_its_certificates(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair
) -> None:
    first, second, held = authority.issue("a"), authority.issue("b"), authority.issue("c")
    lists = authority.revoke(first, begins=now() - 2 * DAY, part="http://a/1.crl")
    lists += authority.revoke(second, begins=now() - DAY, part="http://a/2.crl")
    lists += authority.revoke(held, begins=now() - 3 * DAY, part="http://a/2.crl")  # taken out of the newer one
    ours = identity(tmp_path / "one", good, authority, lists)
    assert all("has revoked it" in str(ours.judge(pair.der)) for pair in (first, second))
    assert ours.judge(held.der) is ours.judge(good.der) is None


def test_an_authority_that_is_believed_no_more_ends_what_it_has_signed(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, good: MintedPair
) -> None:
    other = MintedAuthority("other")
    replace_file(tmp_path / "server" / AUTHORITIES_FILE, authority.pem + other.pem)
    assert server.refresh()
    pair = other.issue("writer")
    assert server.judge(pair.der) is None
    replace_file(tmp_path / "server" / AUTHORITIES_FILE, authority.pem)
    assert server.refresh()
    assert server.judge(pair.der) == "its authority, CN=other, is not believed any more"
    assert server.judge(good.der) is None


def test_a_peer_that_was_believed_by_itself_ends_when_it_is_taken_out(
    tmp_path: Path, authority: MintedAuthority
) -> None:
    peer = MintedAuthority("elsewhere").issue("java-1", hosts=["localhost"])
    ours = authority.folder(tmp_path / "ours", hosts=["localhost"])
    replace_file(ours / AUTHORITIES_FILE, authority.pem + peer.certificate_pem)
    identity_of = TlsIdentity(TlsFiles.of_folder(ours))
    shake_hands(identity_of.server_context(), client_of(tmp_path, peer, authority))
    assert identity_of.judge(peer.der) is None
    replace_file(ours / AUTHORITIES_FILE, authority.pem)
    assert identity_of.refresh()
    assert "not believed any more" in str(identity_of.judge(peer.der))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(identity_of.server_context(), client_of(tmp_path, peer, authority))


HALVES = {
    "half a certificate": (CERTIFICATE_FILE, lambda content: content[: len(content) // 2], "has no end"),
    "no certificate": (CERTIFICATE_FILE, lambda content: b"", "holds no certificate"),
    "half a key": (KEY_FILE, lambda content: content[:60], "has no end"),
    "half the authorities": (AUTHORITIES_FILE, lambda content: content[:-10], "has no end"),
    "a key of another pair": (
        KEY_FILE,
        lambda content: MintedAuthority().issue("x").key_pem,
        "not the one of the certificate",
    ),
    "a damaged certificate": (CERTIFICATE_FILE, lambda content: content.replace(b"MII", b"AII", 1), "cannot be read"),
    "two keys": (KEY_FILE, lambda content: content + content, "holds 2 private keys"),
}


@pytest.mark.parametrize("kind", HALVES)
def test_what_is_half_written_is_not_taken_over(
    tmp_path: Path, server: TlsIdentity, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, change, reason = HALVES[kind]
    place = tmp_path / "server" / name
    whole = place.read_bytes()
    before = server.server_context()
    place.write_bytes(change(whole))
    assert not server.refresh()
    assert not server.refresh()
    assert server.generation == 1
    assert server.server_context() is before
    shake_hands(before, server.client_context())
    assert len(said(caplog)) == 1
    assert reason in caplog.text
    assert str(place) in caplog.text
    with pytest.raises(IdentityError, match=reason):
        TlsIdentity(server.files)
    place.write_bytes(whole)
    assert not server.refresh()
    assert len(said(caplog)) == 1


def test_a_pair_that_is_exchanged_while_it_is_read_is_never_mixed(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the second pair fits the certificate of the first one, so that only the time of reading tells."""
    folder = tmp_path / "server"
    first = authority.issue("node-2", hosts=["localhost"])
    second = authority.issue("node-3", hosts=["localhost"], key=first.key)
    write_folder(folder, first, authority.pem)
    real = os.stat
    looks: list[str] = []

    def stat(path: str, *rest: object, **more: object) -> os.stat_result:
        if str(path).endswith(KEY_FILE):
            looks.append(path)
            if len(looks) == 2:  # the first reading is over, and its second look under way
                write_folder(folder, second, authority.pem)
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    assert server.refresh()
    assert server.own_certificate is not None
    assert server.own_certificate.parts("CN") == ("node-3",)


def test_a_change_within_the_same_tick_of_the_file_systems_clock_is_seen(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place, of the same length and with the same time: only its content tells."""
    monkeypatch.setattr("metadata.security.file_signatures.SETTLED_S", 3600.0)  # however long the machine takes here
    server = TlsIdentity(server.files)
    place = tmp_path / "server" / AUTHORITIES_FILE
    before = os.stat(place)
    content = place.read_bytes()
    other = next(one for one in iter(MintedAuthority, None) if len(one.pem) == len(content))
    place.write_bytes(other.pem)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (os.stat(place).st_size, os.stat(place).st_ino) == (before.st_size, before.st_ino)
    assert server.refresh()


def test_old_files_are_not_read_again(server: TlsIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    later = TlsIdentity(server.files, clock=lambda: time.time() + 60)
    monkeypatch.setattr("metadata.security.identity_files.open", None, raising=False)
    assert not later.refresh()


def test_a_list_that_is_put_in_its_place_with_an_old_time_and_the_same_length_is_seen(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair
) -> None:
    """As `cp --preserve` over the old one does: neither time of writing, nor length, nor inode tells."""
    bad = authority.issue("bad")
    folder = write_folder(tmp_path / "one", good, authority.pem, authority.revoke(authority.issue("other")))
    place = folder / REVOKED_FILE
    ours = TlsIdentity(TlsFiles.of_folder(folder), clock=lambda: time.time() + 60)
    before = os.stat(place)
    place.write_bytes(next(one for one in iter(lambda: authority.revoke(bad), b"") if len(one) == before.st_size))
    while os.stat(place).st_ctime_ns == before.st_ctime_ns:  # until the file system's clock ticks
        os.utime(place)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ours.refresh()
    assert ours.judge(bad.der) is not None


@pytest.mark.parametrize(
    ("called", "error"),
    [
        ("metadata.security.identity_files.os.memfd_create", OSError(errno.EMFILE, "Too many open files")),
        ("metadata.security.identity.ssl.SSLContext", MemoryError()),
        ("metadata.security.identity.read_revocations", RuntimeError("parsed b'secret'")),
    ],
)
def test_a_list_that_fails_to_be_taken_over_once_is_taken_over_at_the_next_look(
    tmp_path: Path,
    authority: MintedAuthority,
    good: MintedPair,
    called: str,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write_folder(tmp_path / "one", good, authority.pem, authority.revoke())
    ours = TlsIdentity(TlsFiles.of_folder(folder), clock=lambda: time.time() + 60)
    bad = authority.issue("bad")
    replace_file(folder / REVOKED_FILE, authority.revoke(bad))

    def fail(*_: object) -> object:
        raise type(error)(*error.args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(called, fail)
        assert not ours.refresh()
        assert not ours.refresh()
        with pytest.raises((IdentityError, type(error))):
            TlsIdentity(ours.files)
    assert "the old ones stay in use" in caplog.text
    assert len(said(caplog)) == 1
    assert "secret" not in caplog.text
    assert ours.judge(bad.der) is None
    assert ours.refresh()
    assert ours.judge(bad.der) is not None


def test_a_pair_that_is_over_is_not_taken_over_but_lists_are_though_the_own_one_is_over(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [now().timestamp()]
    folder = write_folder(tmp_path / "one", good, authority.pem, authority.revoke(ends=now() + 400 * DAY))
    ours = TlsIdentity(TlsFiles.of_folder(folder), clock=lambda: clock[0])
    write_folder(folder, authority.issue("old", begins=now() - 9 * DAY, ends=now() - DAY), authority.pem)
    assert not ours.refresh()
    assert "only, and it is" in caplog.text
    write_folder(folder, good, authority.pem)
    clock[0] = good.certificate.not_valid_after_utc.timestamp() + 1
    bad = authority.issue("bad", ends=now() + 400 * DAY)
    replace_file(folder / REVOKED_FILE, authority.revoke(bad, ends=now() + 400 * DAY))
    assert ours.refresh()
    assert "has revoked it" in str(ours.judge(bad.der))


# -------------------------------------------------------------------- keys


def test_a_key_with_a_password_is_opened_with_its_file(
    tmp_path: Path, authority: MintedAuthority, good: MintedPair
) -> None:
    folder = write_folder(tmp_path / "one", good, authority.pem)
    (folder / KEY_FILE).write_bytes(good.key_with_password(b"open sesame"))
    (folder / "password").write_text("open sesame\n")
    of_folder = TlsFiles.of_folder(folder)
    with_password = TlsFiles(
        of_folder.certificate, of_folder.key, str(folder / "password"), of_folder.authorities, peers_prove=False
    )
    ours = TlsIdentity(with_password)
    shake_hands(ours.server_context(), ours.client_context())
    with pytest.raises(IdentityError, match="encrypted, and no password"):
        TlsIdentity(of_folder)
    (folder / "password").write_text("open barley\n")
    with pytest.raises(IdentityError, match="does not open") as refused:
        TlsIdentity(with_password)
    assert refused.value.__cause__ is None
    assert "barley" not in str(refused.value)
    for text in (repr(ours.material), repr(with_password)):
        assert "sesame" not in text
        assert "PRIVATE" not in text


def test_without_memfd_a_pipe_does_the_same(server: TlsIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    other = TlsIdentity(server.files)
    shake_hands(other.server_context(), other.client_context())
    large = b"x" * 1_000_000
    with in_memory(large) as path, open(path, "rb") as pipe:
        assert pipe.read() == large
    with in_memory(large) as path, open(path, "rb") as pipe:
        assert pipe.read(1) == b"x"


def test_files_that_are_not_named_are_asked_for(tmp_path: Path, server: TlsIdentity) -> None:
    with pytest.raises(IdentityError, match=r"no authorities are named.*tls\.trustStore.*DLSPARK_SECURITY"):
        TlsIdentity(TlsFiles())
    with pytest.raises(IdentityError, match="one of both is not named"):
        TlsIdentity(TlsFiles(certificate=server.files.certificate, authorities=server.files.authorities))
    with pytest.raises(IdentityError, match=r"this file is not there.*missing.*DLSPARK_SECURITY.*tls\.directory"):
        TlsIdentity(TlsFiles.of_folder(tmp_path / "missing"))


def test_errors_travel_between_processes(tmp_path: Path) -> None:
    with pytest.raises(DistributedLogError) as refused:
        TlsIdentity(TlsFiles.of_folder(tmp_path))
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("level", [logging.DEBUG])
def test_a_change_is_in_the_log_without_any_key(
    tmp_path: Path, authority: MintedAuthority, server: TlsIdentity, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level)
    write_folder(tmp_path / "server", authority.issue("node-2", hosts=["localhost"]), authority.pem)
    assert server.refresh()
    assert "generation 2, CN=node-2 until" in caplog.text
    assert "PRIVATE" not in caplog.text


def test_what_ends_soon_is_warned_of_once(
    tmp_path: Path, authority: MintedAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [now().timestamp()]
    pair = authority.issue("node-1", hosts=["localhost"], ends=now() + 90 * DAY)
    folder = write_folder(tmp_path / "one", pair, authority.pem, authority.revoke(ends=now() + 30 * DAY))
    ours = TlsIdentity(TlsFiles.of_folder(folder), clock=lambda: clock[0])
    assert not said(caplog)
    clock[0] += 20 * DAY.total_seconds()
    ours.refresh()
    assert "the revocation list of CN=Authority of tests ends" in caplog.text
    clock[0] += 50 * DAY.total_seconds()
    ours.refresh()
    ours.refresh()
    assert "the certificate of CN=node-1 ends" in caplog.text
    assert "the revocation list of CN=Authority of tests ended" in caplog.text
    assert len(said(caplog)) == 3
