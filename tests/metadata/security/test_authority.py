"""An authority of one's own: what it issues connects, what it revokes does not, and no crash leaves half of a pair."""

from __future__ import annotations

import os
import ssl
import stat
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from helpers.security.handshakes import shake_hands
from helpers.security.minting import MintedAuthority

from metadata.security import authority as module
from metadata.security.authority import LEAF_DAYS, SECRET_FILE, CertificateAuthority, check_host
from metadata.security.certificates import pem_blocks
from metadata.security.errors import IdentityError, NoExtraError
from metadata.security.identity import (
    AUTHORITIES_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    REVOKED_FILE,
    TlsFiles,
    TlsIdentity,
)
from metadata.security.identity_folders import VERSIONS, put_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    CertificateAuthority.create(tmp_path / "cluster")
    with CertificateAuthority.open_in(tmp_path / "cluster") as authority:
        authority.issue("node", ["node"], ["localhost", "10.0.0.7"])
        authority.issue("writer", ["client", "team-a"])
    return tmp_path / "cluster"


def identity(place: Path, name: str) -> TlsIdentity:
    return TlsIdentity(TlsFiles.of_folder(place / name))


def certificate(place: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((place / name / CERTIFICATE_FILE).read_bytes())


def der(place: Path, name: str) -> bytes:
    return pem_blocks((place / name / CERTIFICATE_FILE).read_bytes())[0].body


def test_what_it_issues_connects(place: Path) -> None:
    node, writer = identity(place, "node"), identity(place, "writer")
    ends = shake_hands(node.server_context(), writer.client_context())
    found = node.principal(ends.server)
    assert (found.name, found.roles) == ("writer", {"client", "team-a"})
    shake_hands(node.server_context(), writer.client_context(), "10.0.0.7")


def test_certificates_say_what_they_are_for(place: Path) -> None:
    made = certificate(place, "node")
    extensions = made.extensions
    assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert len(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == 2
    above = x509.load_pem_x509_certificate((place / "node" / AUTHORITIES_FILE).read_bytes())
    assert above.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert above.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    made.verify_directly_issued_by(above)
    assert b"BEGIN PRIVATE KEY" in (place / "node" / KEY_FILE).read_bytes(), "PKCS #8, as ZooKeeper wants it"


def test_roles_are_written_for_java_where_that_is_wanted(place: Path) -> None:
    """Bookies of Apache BookKeeper read the first unit, and roles in it behind a code."""
    with CertificateAuthority.open_in(place) as authority:
        authority.issue("java", ["client", "operator"], java_roles=True)
    with CertificateAuthority.open_in(place) as authority:
        authority.renew("java")
    (unit,) = certificate(place, "java").subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    assert unit.value == "0:client,operator"
    assert identity(place, "node").principal_of(der(place, "java")).roles == {"client", "operator"}


def test_a_certificate_it_issued_signs_no_other(place: Path, tmp_path: Path) -> None:
    """Whoever has a node's key must not become an authority."""
    mint = MintedAuthority()
    mint.certificate = certificate(place, "node")
    mint.name = mint.certificate.subject
    key = module._library().serialization.load_pem_private_key((place / "node" / KEY_FILE).read_bytes(), None)
    mint.key = key  # type: ignore[assignment]
    folder = mint.folder(tmp_path / "forged", "operator", roles=["operator"])
    with (folder / CERTIFICATE_FILE).open("ab") as chain:
        chain.write((place / "node" / CERTIFICATE_FILE).read_bytes())
    (folder / AUTHORITIES_FILE).write_bytes((place / "node" / AUTHORITIES_FILE).read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(identity(place, "node").server_context(), identity(tmp_path, "forged").client_context())


def test_only_the_owner_may_read(place: Path) -> None:
    for path in [place, *place.rglob("*")]:
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_secret_at_zookeeper_is_for_the_clusters_own_processes(place: Path) -> None:
    """A proxy's client that had it could write the rules of access, and whatever else is there."""
    with CertificateAuthority.open_in(place) as authority:
        authority.issue("zk", ["zookeeper"], ["localhost"])
        authority.issue("spark", ["client"], shares_secret=True)
        authority.issue("alice", ["client"])
    with CertificateAuthority.open_in(place) as authority:
        authority.renew_all(["spark", "alice", "zk"])
    secret = (place / "node" / SECRET_FILE).read_text()
    assert secret == (place / "spark" / SECRET_FILE).read_text()
    assert not (place / "alice" / SECRET_FILE).exists()
    assert secret.startswith("cluster:")
    assert len(secret) > 40
    assert not (place / "zk" / SECRET_FILE).exists()


def test_what_is_renewed_has_the_same_names_and_a_new_key(place: Path) -> None:
    before, old_key = certificate(place, "node"), (place / "node" / KEY_FILE).read_bytes()
    running = identity(place, "node")
    with CertificateAuthority.open_in(place) as authority:
        authority.renew("node", days=7)
    after = certificate(place, "node")
    assert after.subject == before.subject
    for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage):
        assert after.extensions.get_extension_for_class(kind) == before.extensions.get_extension_for_class(kind)
    assert after.serial_number != before.serial_number
    assert (place / "node" / KEY_FILE).read_bytes() != old_key
    assert after.not_valid_after_utc - before.not_valid_after_utc < timedelta(days=-80)
    assert running.refresh()
    shake_hands(running.server_context(), identity(place, "writer").client_context())
    assert len(list((place / VERSIONS).iterdir())) == 2, "the old key is gone"


def test_what_is_revoked_is_refused_with_all_its_certificates_and_may_be_renewed_by_name(place: Path) -> None:
    first = der(place, "writer")
    with CertificateAuthority.open_in(place) as authority:
        authority.renew("writer")
    node, writer = identity(place, "node"), identity(place, "writer")
    second = der(place, "writer")
    shake_hands(node.server_context(), writer.client_context())
    with CertificateAuthority.open_in(place) as authority:
        assert authority.revoke("writer").is_revoked
    assert node.refresh()
    assert node.judge(first) == node.judge(second)
    assert "has revoked it" in str(node.judge(second))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shake_hands(node.server_context(), writer.client_context())
    with CertificateAuthority.open_in(place) as authority:
        authority.renew("writer")
    shake_hands(node.server_context(), identity(place, "writer").client_context())
    node.refresh()
    assert "has revoked it" in str(node.judge(first))


def test_a_list_lasts_longer_than_certificates_and_is_made_anew_with_each(tmp_path: Path) -> None:
    now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]
    CertificateAuthority.create(tmp_path / "c", lambda: now[0])
    ends = []
    for _ in range(2):
        with CertificateAuthority.open_in(tmp_path / "c", lambda: now[0]) as authority:
            authority.refresh_lists() if not ends else authority.issue("x", ["client"])
        found = x509.load_pem_x509_crl((tmp_path / "c" / "authority" / REVOKED_FILE).read_bytes())
        assert found.next_update_utc is not None
        assert found.next_update_utc > now[0] + timedelta(days=LEAF_DAYS)
        ends.append(found.next_update_utc)
        now[0] += timedelta(days=30)
    assert ends[1] - ends[0] == timedelta(days=30)


def test_another_authority_in_a_folder_stays_believed(place: Path) -> None:
    other = MintedAuthority("next")
    with (place / "node" / AUTHORITIES_FILE).open("ab") as file:
        file.write(other.pem)
    with (place / "node" / REVOKED_FILE).open("ab") as file:
        file.write(other.revoke())
    with CertificateAuthority.open_in(place) as authority:
        authority.renew("node")
        authority.revoke("writer")
    assert len(pem_blocks((place / "node" / AUTHORITIES_FILE).read_bytes())) == 2
    assert len(pem_blocks((place / "node" / REVOKED_FILE).read_bytes())) == 2
    node = identity(place, "node")
    node.judge(other.issue("x").der)
    assert "has revoked it" in str(node.judge(der(place, "writer")))


@pytest.mark.parametrize("damage", ["a list that is none", "a folder in its place"])
def test_a_folder_that_takes_no_list_keeps_no_revocation_from_the_others(place: Path, damage: str) -> None:
    with CertificateAuthority.open_in(place) as authority:
        authority.issue("proxy", ["proxy"], ["localhost"])
    damaged = place / "node" / REVOKED_FILE  # the first one that gets its list
    if damage == "a list that is none":
        damaged.write_text("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    else:
        damaged.unlink()
        damaged.mkdir()
    with (
        CertificateAuthority.open_in(place) as authority,
        pytest.raises(IdentityError, match="in all folders but node: what is there cannot be read, and is kept"),
    ):
        authority.revoke("writer")
    assert "has revoked it" in str(identity(place, "proxy").judge(der(place, "writer")))


# -------------------------------------------------------------------- what is refused


def refusals() -> dict[str, tuple[Callable[[CertificateAuthority], object], str]]:
    return {
        "a name that is taken": (lambda one: one.issue("node", ["node"], ["a"]), "has a certificate already"),
        "a name of signs with a meaning": (lambda one: one.issue("a,OU=operator", ["client"]), "cannot be a name"),
        "a name that is a path": (lambda one: one.issue("../x", ["client"]), "cannot be a name"),
        "the authority's own place": (lambda one: one.issue("authority", ["client"]), "cannot be a name"),
        "a role of signs with a meaning": (lambda one: one.issue("x", ["a+CN=y"]), "cannot be a name or a role"),
        "no role": (lambda one: one.issue("x", []), "has no role"),
        "a server without a host": (lambda one: one.issue("x", ["client", "proxy"]), "none is given"),
        "a host with a port": (lambda one: one.issue("x", ["node"], ["a:3181"]), "neither a host's name"),
        "half an address": (lambda one: one.issue("x", ["node"], ["10.0.0"]), "neither a host's name"),
        "an unknown name": (lambda one: one.renew("x"), "issued nothing to 'x'"),
        "an unknown name to revoke": (lambda one: one.revoke("x"), "issued nothing to 'x'"),
    }


@pytest.mark.parametrize("kind", refusals())
def test_what_cannot_be_issued_changes_nothing(place: Path, kind: str) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}

    before = content()
    act, reason = refusals()[kind]
    with CertificateAuthority.open_in(place) as authority, pytest.raises(IdentityError, match=reason):
        act(authority)
    assert content() == before


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, place: Path) -> None:
    with pytest.raises(IdentityError, match="not empty"):
        CertificateAuthority.create(place)
    with pytest.raises(IdentityError, match="no authority"), CertificateAuthority.open_in(tmp_path / "missing"):
        pass


def test_an_authority_that_has_ended_issues_nothing(tmp_path: Path) -> None:
    long_ago = datetime(2010, 1, 1, tzinfo=timezone.utc)
    CertificateAuthority.create(tmp_path / "c", lambda: long_ago)
    with CertificateAuthority.open_in(tmp_path / "c") as authority, pytest.raises(IdentityError, match="ended at 20"):
        authority.issue("x", ["client"])
    late = long_ago + timedelta(days=3640)
    with CertificateAuthority.open_in(tmp_path / "c", lambda: late) as authority:
        made = authority.issue("x", ["client"])
    assert made.certificates[-1].ends == long_ago + timedelta(days=3650), "not longer than who has signed it"


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2, "names": {}}', '{"version": 1, "names": {"x": 3}}'])
def test_a_damaged_register_stops_everything(place: Path, content: str) -> None:
    (place / "authority" / "register.json").write_text(content)
    with pytest.raises(IdentityError, match="register"), CertificateAuthority.open_in(place):
        pass


def test_a_key_of_another_authority_signs_nothing(place: Path, tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path / "other")
    (place / "authority" / KEY_FILE).write_bytes((tmp_path / "other" / "authority" / KEY_FILE).read_bytes())
    with CertificateAuthority.open_in(place) as authority, pytest.raises(IdentityError, match="not the one of its"):
        authority.issue("x", ["client"])


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_loaded", [])
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(NoExtraError, match=r"dlspark\[security\]"):
        CertificateAuthority.create(tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "host", ["node-1", "*.example.org", "a.b-c.d", "::1", "fd00::7", "10.0.0.7", "xn--bcher-kva.example"]
)
def test_hosts_are_names_or_addresses(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("host", ["", "a b", "-a", "a-", "a..b", "*", "a.*.b", "http://a", "[::1]", "1.2.3.4.5", "ü"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(IdentityError):
        check_host(host)


# -------------------------------------------------------------------- crashes


@pytest.mark.parametrize("call", ["replace", "fsync", "symlink"])
def test_a_write_that_fails_at_any_step_leaves_the_old_pair_or_the_new_one(
    place: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(50):
        before = der(place, "node")
        with monkeypatch.context() as patch:
            patch.setattr(os, call, FailingCall(getattr(os, call), step))
            reason = renewed(place)
        identity(place, "node")
        with CertificateAuthority.open_in(place) as authority:
            serials = [one.serial for one in authority.named("node").certificates]
        assert certificate(place, "node").serial_number in serials, "what is used can be revoked"
        if reason is None:
            assert der(place, "node") != before
            assert step > 0
            return
        if "what was there before is still there" in reason:
            assert der(place, "node") == before
        else:
            assert "it is written and in use" in reason
    raise AssertionError("it never succeeds")


class FailingCall:
    """A call of the operating system that fails the n-th time."""

    def __init__(self, real: Callable[..., object], step: int) -> None:
        self._real = real
        self._left = step

    def __call__(self, *given: object, **more: object) -> object:
        self._left -= 1
        if self._left == -1:
            raise OSError(28, "No space left on device")
        return self._real(*given, **more)


def renewed(place: Path) -> str | None:
    """Renew, and return why that failed; None: it did not."""
    try:
        with CertificateAuthority.open_in(place) as authority:
            authority.renew("node")
    except IdentityError as error:
        return str(error)
    return None


def test_a_folder_that_somebody_else_has_made_is_left_alone(place: Path) -> None:
    (place / "x").mkdir()
    with CertificateAuthority.open_in(place) as authority, pytest.raises(IdentityError, match="not touched"):
        authority.issue("x", ["client"])
    with CertificateAuthority.open_in(place) as authority:
        assert "x" not in [one.name for one in authority.names()]
    with pytest.raises(IdentityError, match="not touched"):
        put_folder(place / "x", {})


def test_readers_never_see_two_halves_while_folders_are_exchanged(place: Path) -> None:
    reader = identity(place, "node")
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                identity(place, "node")
            except IdentityError as error:
                # With the disk's writes this fast, five readings may all meet a change; that is said, and no mixture.
                if "change all the time" not in str(error):
                    failures.append(error)
                    return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(20):
            with CertificateAuthority.open_in(place) as authority:
                authority.renew("node")
            reader.refresh()
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert reader.own_certificate is not None
    assert reader.own_certificate.serial == certificate(place, "node").serial_number
