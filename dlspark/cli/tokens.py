"""`dlspark token ...`: keys and short-lived tokens of one's own, for clients of proxies."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Annotated

import typer

from metadata.foundation.errors import CallerError

KeyFileArgument = Annotated[Path, typer.Argument(help="The file of the signing key, made for its owner alone.")]


def key(
    file: KeyFileArgument,
    keys: Annotated[
        Path, typer.Option("--keys", help="The file with the public keys (a JWKS), which proxies get as tokenKeys.")
    ],
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="ES256, ES384, ES512, Ed25519, PS256 or RS256.")
    ] = "ES256",
) -> None:
    """Make a key that signs tokens, and add its public half to the keys of the proxies.

    Proxies read their keys again within 5 s. A key is retired by taking it out of the public ones: sessions of its
    tokens end then.
    """
    from dlspark.serving.security.token_issuing import SigningKey

    made = SigningKey.make(algorithm)
    made.write(file)
    made.publish(keys)
    typer.echo(f"{file} signs tokens as {made.key_id}; proxies that read {keys} take them")


def issue(
    key_file: Annotated[Path, typer.Option("--key", help="The file of the signing key.")],
    name: Annotated[str, typer.Option("--for", help="The principal: who its bearer is.")],
    logs: Annotated[
        list[str] | None,
        typer.Option("--log", help="A log's name, or the beginning of names with * behind it; any log, unless given."),
    ] = None,
    verbs: Annotated[
        list[str] | None,
        typer.Option("--verb", help="read, write, truncate, create, delete or administer; all of them, unless given."),
    ] = None,
    roles: Annotated[list[str] | None, typer.Option("--role", help="A role of the principal.")] = None,
    seconds: Annotated[int, typer.Option("--seconds", min=1, help="How long it is good.")] = 300,
    issuer: Annotated[str, typer.Option("--issuer", help="As the proxies' tokenIssuer has it.")] = "dlspark",
    audience: Annotated[str, typer.Option("--audience", help="As the proxies' tokenAudience has it.")] = "dlspark",
    out: Annotated[
        Path | None, typer.Option("--out", help="A file for its owner alone, replaced at once; else it is printed.")
    ] = None,
) -> None:
    """Make a token that proves to proxies who its bearer is, for a short time.

    Restrictions narrow what the principal may do, and never widen it.
    """
    from dlspark.serving.security.token_issuing import SigningKey, TokenGrant
    from metadata.security.restrictions import Restrictions

    restrictions = Restrictions(tuple(logs) if logs else None, frozenset(verbs) if verbs else None)
    grant = TokenGrant(name, seconds, restrictions, frozenset(roles or ()), issuer=issuer, audience=audience)
    token = SigningKey.read(key_file).issue(grant)
    if out is None:
        typer.echo(token.reveal())
        return
    try:
        replace_secret(out, token.reveal())
    except OSError as error:
        raise CallerError(f"the token cannot be written: {error.strerror}", path=str(out)) from error


def replace_secret(place: Path, text: str) -> None:
    """Put a file for its owner alone in another's place at once: who reads it gets the old text or the new one. Raises
    OSError."""
    beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        beside.replace(place)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
