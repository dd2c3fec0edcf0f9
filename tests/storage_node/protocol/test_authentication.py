"""The AUTH exchange: each row of the table, with real SASL machines on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.foundation.errors import InvariantViolation
from metadata.security.exchange import (
    DISABLED_PLUGIN,
    SASL_PLUGIN,
    SCRAM_PLUGIN,
    Authenticator,
    ChannelFacts,
    ClientAuthenticator,
)
from metadata.security.sasl.authenticators import (
    SaslAuthenticator,
    SaslClientAuthenticator,
    ScramAuthenticator,
    ScramClientAuthenticator,
    allowed_ids,
)
from metadata.security.sasl.credentials import remove_scram_user, write_scram_user
from metadata.security.sasl.machine import SaslError
from metadata.security.sasl.scram import stored_keys
from metadata.security.secrets import Secret
from storage_node.protocol.authentication import (
    MAX_STRANGE_PLUGINS,
    AuthAnswer,
    ClientAuthentication,
    ServerAuthentication,
)
from storage_node.protocol.schema import Status

PLAIN = ChannelFacts("node:3181")
INSIDE = ChannelFacts("node:3181", secured=True, binding=lambda: b"this connection")
OF_NOBODY = AuthAnswer(DISABLED_PLUGIN, b"")
JAAS = """
Bookie { x.DigestLoginModule required user_bookkeeper-1="one" user_guest="two"; };
BookKeeper { x.DigestLoginModule required username="bookkeeper-1" password="one"; };
Guest { x.DigestLoginModule required username="guest" password="two"; };
Liar { x.DigestLoginModule required username="bookkeeper-1" password="two"; };
"""


@dataclass(frozen=True)
class Files:
    jaas: Path
    users: Path
    password: Path

    def digest(self, *, without_tls: bool = False) -> SaslAuthenticator:
        allowed = allowed_ids(".*bookkeeper.*")
        return SaslAuthenticator(self.jaas, "Bookie", allowed=allowed, without_tls=without_tls)

    def scram(self) -> ScramAuthenticator:
        return ScramAuthenticator(self.users)

    def digest_client(self, section: str = "BookKeeper", *, without_tls: bool = False) -> SaslClientAuthenticator:
        return SaslClientAuthenticator(self.jaas, section, without_tls=without_tls)

    def scram_client(self, name: str = "flights") -> ScramClientAuthenticator:
        return ScramClientAuthenticator(name, self.password)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    made = Files(folder / "jaas.conf", folder / "scram.json", folder / "password")
    made.jaas.write_text(JAAS)
    made.password.write_text("pencil\n")
    for path in (made.jaas, made.password):
        path.chmod(0o600)
    write_scram_user(made.users, "flights", stored_keys(Secret("pencil")))
    return made


def node(*authenticators: Authenticator, facts: ChannelFacts = INSIDE) -> ServerAuthentication:
    return ServerAuthentication({one.plugin: one for one in authenticators}, facts)


def client(
    authenticator: ClientAuthenticator, facts: ChannelFacts = INSIDE, *, demands: bool = True
) -> ClientAuthentication:
    return ClientAuthentication(authenticator, facts, demands=demands)


def run(asking: ClientAuthentication, serving: ServerAuthentication) -> AuthAnswer:
    """Carry messages until nothing is to be sent; return the node's last answer. Raises what the client raises."""
    plugin, payload = asking.first()
    for _ in range(10):
        answer = serving.auth(plugin, payload)
        if answer.payload is None and answer.refused is None:
            return answer
        status = Status.EOK if answer.refused is None else Status.EUA
        following = asking.answered(status, answer.plugin, answer.payload or b"")
        if following is None:
            return answer
        payload = following
    raise AssertionError("the exchange does not end")


def test_a_node_that_asks_for_nothing_lets_every_client_go_on(files: Files) -> None:
    serving = node()
    assert serving.proven
    for plugin in (SASL_PLUGIN, "any"):
        assert serving.auth(plugin, b"token") == OF_NOBODY
    asking = client(files.digest_client(), demands=False)
    assert run(asking, serving) == OF_NOBODY
    assert asking.done
    assert serving.principal is None


def test_a_client_that_demands_a_proof_does_not_go_on_without(files: Files) -> None:
    asking = client(files.digest_client())
    with pytest.raises(SaslError, match="asks for no proof"):
        run(asking, node())
    assert not asking.done


@pytest.mark.parametrize("kind", [SASL_PLUGIN, SCRAM_PLUGIN])
@pytest.mark.parametrize("facts", [PLAIN, INSIDE], ids=["plain", "inside TLS"])
def test_both_sides_prove_themselves_by_one_plugin(files: Files, kind: str, facts: ChannelFacts) -> None:
    serving = node(files.digest(without_tls=True), files.scram(), facts=facts)
    theirs = {SASL_PLUGIN: files.digest_client(without_tls=True), SCRAM_PLUGIN: files.scram_client()}[kind]
    asking = client(theirs, facts)
    assert not serving.proven
    run(asking, serving)
    assert asking.done
    assert serving.proven
    assert serving.principal is not None
    assert serving.principal.name == {SASL_PLUGIN: "bookkeeper-1", SCRAM_PLUGIN: "flights"}[kind]
    # A Java client says one thing more when all is proved, and is answered as by a node that asks for nothing.
    assert serving.auth(kind, b"") == OF_NOBODY
    assert asking.answered(Status.EOK, DISABLED_PLUGIN, b"") is None


@pytest.mark.parametrize("section", ["Liar", "Guest"])
def test_a_wrong_password_or_name_ends_the_connection(files: Files, section: str) -> None:
    serving, asking = node(files.digest()), client(files.digest_client(section))
    with pytest.raises(SaslError, match="the storage node refused the client"):
        run(asking, serving)
    assert not asking.done
    assert not serving.proven
    again = serving.auth(SASL_PLUGIN, b"")
    assert again.closes
    assert again.refused is not None


def test_another_plugin_is_refused_a_few_times(files: Files) -> None:
    serving = node(files.digest())
    answers = [serving.auth("other", b"") for _ in range(MAX_STRANGE_PLUGINS)]
    assert all(answer.payload is None and answer.refused for answer in answers)
    assert [answer.closes for answer in answers] == [False] * (MAX_STRANGE_PLUGINS - 1) + [True]
    assert serving.auth(SASL_PLUGIN, b"").closes
    assert not serving.proven


def test_a_plugin_cannot_change_within_an_exchange(files: Files) -> None:
    for second in (SCRAM_PLUGIN, "other"):
        serving = node(files.digest(), files.scram())
        assert serving.auth(SASL_PLUGIN, b"").refused is None
        assert serving.auth(second, b"").closes
        assert not serving.proven


def test_digest_md5_is_spoken_inside_tls_only_unless_it_is_allowed(files: Files) -> None:
    refused = node(files.digest(), facts=PLAIN).auth(SASL_PLUGIN, b"")
    assert refused.closes
    assert "inside TLS only" in (refused.refused or "")
    with pytest.raises(SaslError, match="nothing was sent"):
        client(files.digest_client(), PLAIN).first()


def test_what_was_said_before_tls_counts_for_nothing_after_it(files: Files) -> None:
    serving = node(files.digest(without_tls=True), facts=PLAIN)
    asking = client(files.digest_client(without_tls=True), PLAIN)
    plugin, payload = asking.first()
    response = asking.answered(Status.EOK, plugin, serving.auth(plugin, payload).payload or b"")
    serving.secured(INSIDE)
    assert serving.auth(plugin, response or b"").closes
    assert not serving.proven
    proved = node(files.scram())
    run(client(files.scram_client()), proved)
    with pytest.raises(InvariantViolation):
        proved.secured(INSIDE)


def test_scram_is_bound_to_its_connection(files: Files) -> None:
    for facts in (PLAIN, replace(INSIDE, binding=lambda: b"another connection")):
        serving = node(files.scram())
        with pytest.raises(SaslError, match="refused"):
            run(client(files.scram_client(), facts), serving)
        assert not serving.proven
    unbound = replace(INSIDE, binding=lambda: None)
    with pytest.raises(SaslError, match="no channel binding"):
        client(files.scram_client(), unbound).first()
    assert node(files.scram(), facts=unbound).auth(SCRAM_PLUGIN, b"").closes


def test_users_come_and_go_without_a_restart(files: Files) -> None:
    authenticator = files.scram()
    with pytest.raises(SaslError):
        run(client(files.scram_client("trains")), node(authenticator))
    write_scram_user(files.users, "trains", stored_keys(Secret("pencil")))
    serving = node(authenticator)
    run(client(files.scram_client("trains")), serving)
    assert serving.still() is None
    remove_scram_user(files.users, "trains")
    assert "trains was taken out" in (serving.still() or "")
    with pytest.raises(SaslError):
        run(client(files.scram_client("trains")), node(authenticator))
    assert node().still() is None


def test_users_of_a_login_configuration_may_be_withdrawn(files: Files) -> None:
    authenticator = files.digest()
    serving = node(authenticator)
    run(client(files.digest_client()), serving)
    assert serving.still() is None
    files.jaas.write_text(JAAS.replace("user_bookkeeper-1", "user_bookkeeper-2"))
    assert "taken out of the login configuration" in (serving.still() or "")
    files.jaas.write_text(JAAS)


def test_whoever_proved_a_password_that_was_changed_has_to_prove_the_new_one(files: Files) -> None:
    scram, digest = files.scram(), files.digest()
    by_scram, by_digest = node(scram), node(digest)
    run(client(files.scram_client()), by_scram)
    run(client(files.digest_client()), by_digest)
    assert by_scram.still() is by_digest.still() is None
    before = files.users.read_bytes()
    write_scram_user(files.users, by_scram.principal.name, stored_keys(Secret("another")))  # type: ignore[union-attr]
    files.jaas.write_text(re.sub(r'(user_bookkeeper-1=)"[^"]*"', r'\1"another"', JAAS))
    try:
        assert "has another password now" in (by_scram.still() or "")
        assert "has another password now" in (by_digest.still() or "")
        assert 'another"' not in repr(by_digest.principal)
    finally:
        files.jaas.write_text(JAAS)
        files.users.write_bytes(before)


def test_long_messages_are_refused(files: Files) -> None:
    assert node(files.digest()).auth(SASL_PLUGIN, b"x" * 70_000).closes
    asking = client(files.digest_client())
    asking.first()
    with pytest.raises(SaslError, match="70000 bytes"):
        asking.answered(Status.EOK, SASL_PLUGIN, b"x" * 70_000)
    with pytest.raises(SaslError, match="another plug-in"):
        asking.answered(Status.EOK, "other", b"")


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([SASL_PLUGIN, SCRAM_PLUGIN, DISABLED_PLUGIN, ""]), st.binary(max_size=100))))
def test_whatever_is_sent_nobody_enters_by_it(files: Files, messages: Iterable[tuple[str, bytes]]) -> None:
    serving = node(files.digest(), files.scram())
    closed = False
    for plugin, payload in messages:
        answer = serving.auth(plugin, payload)
        assert answer.closes or not closed
        closed = closed or answer.closes
        assert answer.plugin != DISABLED_PLUGIN or answer.refused is not None
    assert not serving.proven
    assert serving.principal is None
