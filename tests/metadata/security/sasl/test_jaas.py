"""Login configurations of Java: what upstream's examples have, what is refused, and that nothing shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.security.sasl.jaas import JaasError, KerberosLogin, parse_jaas, read_jaas, section_of
from metadata.security.secrets import Secret

TEXT = r"""
/* The bookie knows users
   by name. */
Bookie {
  org.apache.zookeeper.server.auth.DigestLoginModule required
      user_hd="testpwd"  // a comment
      user_bookkeeper-2='it\'s \"so\" \t\101';
};
# A comment of a shell.
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule required username="hd" password="testpwd";
};
Kerberos {
  com.sun.security.auth.module.Krb5LoginModule required
    useKeyTab=true keyTab="/etc/bookie.keytab" storeKey=true useTicketCache=false
    principal="bookkeeper/host.example@EXAMPLE";
};
Ticket { com.sun.security.auth.module.Krb5LoginModule optional useTicketCache=true ticketCache="/tmp/krb5cc_1"; };
Typed { com.sun.security.auth.module.Krb5LoginModule required; };
"""


def written(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_sections_have_their_users(tmp_path: Path) -> None:
    sections = read_jaas(written(tmp_path, TEXT))
    assert sections["Bookie"].passwords() == {"hd": Secret("testpwd"), "bookkeeper-2": Secret('it\'s "so" \tA')}
    assert sections["Bookie"].kerberos() is None
    assert sections["BookKeeper"].login() == ("hd", Secret("testpwd"))
    assert sections["BookKeeper"].passwords() == {}
    with pytest.raises(JaasError, match="no module with username and password"):
        sections["Bookie"].login()


def test_a_section_says_how_to_log_in_to_kerberos(tmp_path: Path) -> None:
    sections = read_jaas(written(tmp_path, TEXT))
    assert sections["Kerberos"].kerberos() == KerberosLogin(
        "bookkeeper/host.example@EXAMPLE", "/etc/bookie.keytab", None
    )
    assert sections["Ticket"].kerberos() == KerberosLogin(None, None, "/tmp/krb5cc_1")
    with pytest.raises(JaasError, match="nobody types a password"):
        sections["Typed"].kerberos()


def test_a_section_that_is_missing_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT)
    assert section_of(path, "BookKeeper").name == "BookKeeper"
    with pytest.raises(JaasError, match="no section Auditor; it has: BookKeeper, Bookie, Kerberos"):
        section_of(path, "Auditor")


def test_a_file_that_everybody_may_read_is_refused_where_it_has_passwords(tmp_path: Path) -> None:
    with pytest.raises(JaasError, match="everybody may read"):
        read_jaas(written(tmp_path, TEXT, 0o644))
    open_to_all = written(tmp_path, "A { x.Krb5LoginModule required useTicketCache=true; };", 0o644)
    assert list(read_jaas(open_to_all)) == ["A"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A {", "the class of a module is missing"),
        ("A { };", "has no module"),
        ("A { x needed; };", "a module's flag is one of"),
        ("A { x required a b; };", "'=' is missing"),
        ("A { x required a=; };", "an option's value is missing"),
        ('A { x required password="b }; \n', "a string has no end"),
        ("A { x required a=b; }", "';' is missing"),
        ("A { x required a=b a=c; };", "comes twice"),
        ("A { x required; }; A { x required; };", "the section A comes twice"),
        ('A { x required password="${secret.of.jvm}"; };', "a property of a JVM"),
        ("/* no end", "belongs to no login configuration"),
        ("\nA { x required\n\n password=hidden ", "line 4"),
    ],
)
def test_what_is_not_a_login_configuration_is_refused_without_being_shown(text: str, message: str) -> None:
    with pytest.raises(JaasError, match=message) as caught:
        parse_jaas(text, "jaas.conf")
    assert "hidden" not in str(caught.value)
    assert "secret.of" not in str(caught.value)


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(JaasError, match="No such file"):
        read_jaas(tmp_path / "none")
    path = tmp_path / "jaas.conf"
    path.write_bytes(b"\xff")
    with pytest.raises(JaasError, match="UTF-8"):
        read_jaas(path)
    path.write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(JaasError, match="longer than"):
        read_jaas(path)


def test_passwords_show_themselves_nowhere() -> None:
    assert "testpwd" not in repr(parse_jaas(TEXT, "jaas.conf"))


@given(
    st.lists(st.sampled_from([*"{};=\"'\\/*#$ \n", "A", "required", "user_x", "//", "${"]), max_size=30).map("".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_jaas(text, "jaas.conf")
    except JaasError:
        pass
