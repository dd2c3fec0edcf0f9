"""`dlspark token`: keys and tokens that proxies take."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from dlspark.cli.main import app
from dlspark.serving.security.tokens import TokenSettings


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["token", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_key_and_its_tokens(tmp_path: Path) -> None:
    key, keys, out = tmp_path / "key.jwk", tmp_path / "keys.json", tmp_path / "token"
    assert run("key", key, "--keys", keys)[0] == 0
    assert run("key", key, "--keys", keys)[0] == 1  # it does not write over a key
    status, printed = run(
        "issue", "--key", key, "--for", "etl", "--log", "orders*", "--verb", "read", "--seconds", "60"
    )
    assert status == 0
    assert run("issue", "--key", key, "--for", "etl", "--role", "client", "--out", out)[0] == 0
    assert out.stat().st_mode & 0o777 == 0o600
    verifier = TokenSettings(token_keys=str(keys)).verifier()
    assert verifier is not None
    narrow = verifier.verify(printed.strip())
    assert narrow.restrictions.allows("read", "orders1")
    assert not narrow.restrictions.allows("write", "orders1")
    other = verifier.verify(out.read_text().strip())
    assert other.principal.roles == {"client"}
    assert len({narrow.token_id, other.token_id, ""}) == 3, "each is revoked by itself"
    ours = TokenSettings(token_keys=str(keys), token_issuer="us", token_audience="them").verifier()
    assert ours is not None
    _, printed = run("issue", "--key", key, "--for", "etl", "--issuer", "us", "--audience", "them")
    assert ours.verify(printed.strip()).principal.name == "etl"


def test_what_cannot_be_issued_is_said(tmp_path: Path) -> None:
    key, keys = tmp_path / "key.jwk", tmp_path / "keys.json"
    run("key", key, "--keys", keys)
    status, said = run("issue", "--key", key, "--for", "etl", "--verb", "own")
    assert (status, "there is no verb own. Verbs are administer, create" in said) == (1, True)
    status, said = run("issue", "--key", keys, "--for", "etl")
    assert status == 1
    status, said = run("issue", "--key", tmp_path / "none", "--for", "etl")
    assert (status, "cannot be read" in said) == (1, True)
    status, said = run("key", tmp_path / "other", "--keys", keys, "--algorithm", "HS256")
    assert (status, (tmp_path / "other").exists()) == (1, False)
