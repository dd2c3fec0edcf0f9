"""Tokens of a query's tasks: what the driver makes, what a task shows, and what neither text nor plan shows."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority

from dlspark.core.runtime import Runtime
from dlspark.serving.security.token_issuing import SigningKey
from dlspark.serving.security.tokens import TokenSettings, TokenVerifier
from dlspark.spark.errors import OptionError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source import proxy_entries
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.proxy_entries import KEPT_IDLE, SharedProxies
from dlspark.spark.source.selection import SourceQuery
from dlspark.spark.source.task_tokens import TaskToken, TokenMint, log_patterns, task_credentials
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import Restrictions
from metadata.security.settings import SecuritySettings
from storage_node.settings.client import ClientSettings

URI = "distributedlog://localhost/a"
LIFETIME_S = 12 * 3_600


def _verifier(settings: TokenSettings) -> TokenVerifier:
    made = settings.verifier()
    assert made is not None
    return made


class World:
    """A driver's identity folder and signing key, and a proxy that verifies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = MintedAuthority()
        authority.folder(folder / "client", "etl", roles=["client", "nightly"])
        self.security = SecuritySettings(security="on", security_directory=str(folder / "client"))
        self.key_file = folder / "key.jwk"
        key = SigningKey.make("ES256")
        key.write(self.key_file)
        key.publish(folder / "keys.json")
        self.verifier = _verifier(TokenSettings(token_keys=str(folder / "keys.json")))

    def query(self, scope: Scope = Scope.SOURCE_BATCH, /, **options: str) -> SourceQuery:
        given = {"uri": URI, "log": "orders", "proxy": "proxy:1", "tokenKeyFile": str(self.key_file), **options}
        return SourceQuery.of(Options({name: value for name, value in given.items() if value}, scope))

    def mint(self, query: SourceQuery, **environment: str) -> TokenMint:
        made = TokenMint.of(query, self.security, environment)
        assert made is not None
        return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_token_is_the_drivers_own_and_good_for_reading_the_querys_logs_alone(world: World) -> None:
    query = world.query(log="", subscribe="orders,raw/a")
    token = world.mint(query).token()
    proven = world.verifier.verify(token.text)
    assert proven.principal.name == "etl"
    assert proven.principal.roles == {"client", "nightly"}
    assert proven.restrictions == Restrictions(("orders", "raw/a"), frozenset({"read"}))
    assert proven.token_id is not None
    assert proven.token_id.startswith("spark:orders,raw/a:")
    assert not proven.restrictions.allows("write", "orders")
    assert not proven.restrictions.allows("read", "orders-2")


@pytest.mark.parametrize(
    ("options", "patterns"),
    [
        ({"subscribePattern": "raw/flights-[0-9]+"}, ("raw/flights-*",)),
        ({"subscribePattern": "raw/x|other"}, ("*",)),
        ({"subscribePattern": ".*"}, ("*",)),
        ({"subscribePattern": r"a\*b.*"}, ("a*",)),
        ({"subscribePattern": r"a\\.*"}, ("a*",)),
        ({"assign": '["b*", "a"]'}, ("a", "b\\*")),
        ({"assign": '["b*c", "b*c*", "a"]'}, ("a", "b*")),
        ({"log": "n" * 300}, ("n" * 255 + "*",)),
    ],
)
def test_patterns_mean_all_logs_of_the_query(world: World, options: dict[str, str], patterns: tuple[str, ...]) -> None:
    assert log_patterns(world.query(**{"log": "", **options}).selection) == patterns


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        ([f"plant-{plant}/sensor-{number:03}" for plant in "ab" for number in range(200)], 40),
        ([f"one/{number:03}-{'n' * 35}" for number in range(200)], 20),
        ([f"{chr(0x4E00 + number)}-log" for number in range(300)], 1),
    ],
)
def test_names_that_have_no_room_are_joined_by_how_they_begin(world: World, names: list[str], patterns: int) -> None:
    query = world.query(log="", assign=json.dumps([*names, "other"]))
    restricted = world.verifier.verify(world.mint(query).token().text).restrictions
    assert restricted.logs is not None
    assert len(restricted.logs) == patterns + (patterns > 1)
    assert all(restricted.allows("read", name) for name in names)
    assert restricted.allows("read", "another") is (patterns == 1)


def test_what_no_token_can_say_names_the_option(world: World) -> None:
    mint = world.mint(world.query())
    mint._grant = replace(mint._grant, roles=frozenset(f"role-{n}-{'r' * 200}" for n in range(40)))
    with pytest.raises(OptionError, match="more than 8192 bytes") as caught:
        mint.token()
    assert "tokenKeyFile" in (caught.value.advice or "")


def test_the_key_comes_from_an_option_or_a_variable_and_is_read_anew(world: World) -> None:
    bare = world.query(tokenKeyFile="")
    assert TokenMint.of(bare, world.security, {}) is None
    assert world.verifier.verify(world.mint(bare, DLSPARK_TOKEN_KEY_FILE=str(world.key_file)).token().text)
    assert world.verifier.verify(world.mint(bare, DLSPARK_TOKEN_KEY=world.key_file.read_text()).token().text)
    assert TokenMint.of(replace(world.query(), proxies=None), world.security, {}) is None


def test_a_key_of_the_drivers_environment_leaves_plain_clusters_and_single_queries_alone(world: World) -> None:
    by_file = {"DLSPARK_TOKEN_KEY_FILE": str(world.key_file)}
    for variables in (by_file, {"DLSPARK_TOKEN_KEY": world.key_file.read_text()}):
        assert TokenMint.of(world.query(tokenKeyFile=""), SecuritySettings(), variables) is None
        assert TokenMint.of(world.query(tokenKeyFile="none"), world.security, variables) is None
        assert TokenMint.of(world.query(tokenKeyFile=""), world.security, variables) is not None


def test_what_cannot_make_tokens_is_refused_and_not_repeated(world: World) -> None:
    secret = "s3cret-of-the-key"
    with pytest.raises(OptionError, match="DLSPARK_TOKEN_KEY has no signing key") as caught:
        TokenMint.of(world.query(tokenKeyFile=""), world.security, {"DLSPARK_TOKEN_KEY": secret})
    assert secret not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}{caught.value.advice}"
    world.key_file.chmod(0o644)
    with pytest.raises(OptionError, match="others than its owner"):
        TokenMint.of(world.query(), world.security, {})
    world.key_file.chmod(0o600)
    with pytest.raises(OptionError, match="security is off"):
        TokenMint.of(world.query(), SecuritySettings(), {})
    trusting = replace(world.security, tls_client_authentication=False)
    with pytest.raises(OptionError, match="no certificate that says whose"):
        TokenMint.of(world.query(), trusting, {})
    with pytest.raises(OptionError, match="does nothing without proxies"):
        world.query(proxy="")
    with pytest.raises(OptionError, match="tokenLifetime"):
        # Connections show a new token only 2 s later, and proxies read keys again every 5 s.
        world.query(tokenLifetime="59s")
    assert world.query(tokenLifetime="1m").token_lifetime_ms == 60_000


def test_plans_share_a_token_until_half_of_its_time_is_over(world: World) -> None:
    now = [1_000_000.0]
    mint = TokenMint.of(world.query(Scope.SOURCE_STREAM), world.security, {})
    assert mint is not None
    mint._now_s = lambda: now[0]
    first = mint.token()
    now[0] += LIFETIME_S / 2 - 1
    assert mint.token() is first
    now[0] += 2
    second = mint.token()
    assert (second.text != first.text, second.grant == first.grant) == (True, True)
    assert second.ends_at_s == now[0] + LIFETIME_S


def test_a_key_that_is_exchanged_makes_the_next_plans_token(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mint = world.mint(world.query(Scope.SOURCE_STREAM))
    first = mint.token()
    reads: list[object] = []

    def read(path: str) -> SigningKey:
        reads.append(path)
        return real(path)

    real = SigningKey.read
    monkeypatch.setattr(SigningKey, "read", read)
    assert mint.token() is first
    assert reads == []  # to take in an RSA key costs as much as a small batch
    other = world.folder / "other.jwk"
    SigningKey.make("ES256").write(other)
    other.replace(world.key_file)
    second = mint.token()
    assert second.text != first.text
    with pytest.raises(NotAuthenticatedError, match="no key here vouches"):
        world.verifier.verify(second.text)
    assert mint.token() is second
    world.key_file.unlink()  # while it is exchanged in two steps
    assert [mint.token(), mint.token()] == [second, second]
    assert caplog.text.count("the last token stays in use") == 1
    mint._now_s = lambda: second.ends_at_s
    with pytest.raises(OptionError, match="cannot be read"):
        mint.token()


def test_a_partition_takes_it_along_and_shows_it_nowhere(world: World) -> None:
    token = world.mint(world.query()).token()
    made = LogPartition((), ClientSettings(), ("proxy:1",), token=token)
    assert token.text not in f"{made!r}{made}{made.value}{token!r}{token}"
    taken: LogPartition = pickle.loads(pickle.dumps(made))
    assert taken.token == token
    assert all(part.token == token for part, _ in taken.by_way())


def test_a_task_needs_the_authorities_alone_and_shows_a_certificate_where_it_has_one(world: World) -> None:
    token = world.mint(world.query()).token()
    folder = world.folder / "executor"
    folder.mkdir()
    (folder / "authorities.pem").write_bytes((world.folder / "client" / "authorities.pem").read_bytes())
    bare = task_credentials(SecuritySettings(), token, {"DLSPARK_SECURITY": str(folder)})
    assert bare is not None
    assert bare.token is not None
    assert bare.token.reveal() == token.text
    assert bare._identity.own_certificate is None  # type: ignore[attr-defined]
    both = task_credentials(world.security, token, {})
    assert both is not None
    assert both._identity.own_certificate is not None  # type: ignore[attr-defined]
    with pytest.raises(NotAuthenticatedError, match="security is off"):
        task_credentials(SecuritySettings(), token, {})
    assert task_credentials(SecuritySettings(), None, {}) is None


def test_a_token_that_has_ended_is_said_to_have_ended(world: World) -> None:
    token = world.mint(world.query()).token()
    refusal = NotAuthenticatedError("the token is refused: it has expired")
    assert token.ended_error(refusal, token.ends_at_s - 600) is refusal
    told = token.ended_error(refusal, token.ends_at_s + 1)
    assert "ended at" in told.message
    assert "tokenLifetime" in (told.advice or "")
    assert token.text not in f"{told!r}{told}{told.advice}"


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime("test-task-tokens")
    yield made
    made.close()


def test_tasks_of_a_query_share_connections_and_the_newest_token(world: World, runtime: Runtime) -> None:
    older = world.mint(world.query()).token()
    newer = replace(older, text="newer", made_at_s=older.made_at_s + 60, ends_at_s=older.ends_at_s - 60)
    """Of a query with a shorter `tokenLifetime`, perhaps since a key was withdrawn."""
    shared = SharedProxies()

    async def ask(token: TaskToken) -> proxy_entries.TaskProxies:
        return shared.get(runtime, ("proxy:1",), 0, world.security, token)

    def shown(proxies: proxy_entries.TaskProxies) -> str:
        assert proxies._credentials is not None
        assert proxies._credentials.token is not None
        return proxies._credentials.token.reveal()

    first = runtime.run(ask(older))
    assert shown(first) == older.text
    assert runtime.run(ask(newer)) is first
    assert shown(first) == "newer"
    assert runtime.run(ask(older)) is first  # a task that runs again comes with an older one
    assert shown(first) == "newer"
    others = [replace(older, grant=replace(older.grant, logs=(f"log-{n}",))) for n in range(KEPT_IDLE + 3)]
    first.open_readers += 1
    made = [runtime.run(ask(one)) for one in others]
    assert len({id(one) for one in made}) == len(others)
    assert runtime.run(ask(older)) is first  # in use: not ended
    assert len(shared._made) == KEPT_IDLE + 1
    runtime.run(_ended(shared))


def test_proxies_that_refused_a_task_are_not_asked_by_the_next_one(
    world: World, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = world.mint(world.query()).token()
    shared = SharedProxies()

    async def ask() -> proxy_entries.TaskProxies:
        return shared.get(runtime, ("proxy:1",), 0, world.security, token)

    first = runtime.run(ask())
    closed: list[proxy_entries.TaskProxies] = []

    async def close(proxies: proxy_entries.TaskProxies) -> None:
        closed.append(proxies)

    monkeypatch.setattr(proxy_entries.TaskProxies, "close", close)
    first.open_readers += 1
    first.refused = True
    second = runtime.run(ask())
    assert second is not first
    assert runtime.run(ask()) is second
    runtime.run(_ended(shared))
    assert closed == []  # a task still reads by the first
    first.open_readers -= 1
    assert runtime.run(ask()) is second
    runtime.run(_ended(shared))
    assert (closed, next(iter(shared._made.values()))[0], shared._refused) == ([first], second, [])


async def _ended(shared: SharedProxies) -> None:
    await asyncio.gather(*shared._ending)
