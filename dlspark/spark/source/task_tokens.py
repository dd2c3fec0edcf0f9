"""`TaskToken`: what a task shows read proxies, made by the driver; and `TokenMint`, which makes it there.

Where the driver has a signing key (option `tokenKeyFile`, or the variables DLSPARK_TOKEN_KEY_FILE and
DLSPARK_TOKEN_KEY), the tasks of a query that reads through proxies prove by a token who they are: that of the driver's
own principal, restricted to reading the query's logs, for `tokenLifetime`. Else each shows the certificate, or the
token, that its executor has (DLSPARK_SECURITY, DLSPARK_TOKEN_FILE).

**Where the token is.** In the pickled partition, which Spark hands from driver to executor with the task, as it hands
over nothing else. It is not in the reader, which Spark broadcasts, may spill to disk and runs again; not in options,
plans, offsets, commit messages or metrics; and the text of a partition, which may stand in a log, does not show it.
Spark writes partitions of a source neither to event logs nor to checkpoints (a test searches them). On the network
between driver and executors it is as safe as Spark's own messages: docs/spark.md says how to encrypt these. The key
is handed to no other process by this package: the one that appends for a sink does not inherit its variable. What else
inherits the driver's environment, as Python workers in local mode do, has the variable too, so a file is the better
place.

**How it is renewed.** Each plan has a token that is good for half of `tokenLifetime` at least: each micro-batch of a
stream is planned by itself, and a task that comes with a newer token hands it to the connections of its process. What
a plan was made with cannot be renewed: a task that begins, goes on, or is run again (its executor was lost, and with it
what it had shuffled or persisted) after the end of its token is refused by the proxy and fails with an error that says
so. Nothing is lost by that: a batch that failed is planned again from the same offsets when its query is started again.
So the default is half a day: a token is good for reading the query's logs alone, and can be revoked.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Final

from dlspark.serving.security.token_claims import MAX_NAME_CHARS, MAX_PATTERNS
from dlspark.spark.errors import OptionError
from dlspark.spark.options.proxies import KEY_VARIABLE
from metadata.foundation.errors import CallerError, InvariantViolation
from metadata.security.principals import Principal, PrincipalMapping
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import ANY_NAME, LITERAL, Restrictions
from metadata.security.secrets import Secret, secret_from_environment
from metadata.security.settings import VARIABLE, SecurityMode, SecuritySettings, client_identity

if TYPE_CHECKING:
    from dlspark.serving.security.credentials import ClientCredentials
    from dlspark.serving.security.token_issuing import SigningKey
    from dlspark.spark.source.selection import Selection, SourceQuery
    from metadata.security.identity import TlsIdentity

_LOG: Final = logging.getLogger(__name__)

KEY_FILE: Final = "tokenKeyFile"
NO_KEY: Final = "none"
"""In place of a file: the variables' key is not used."""
LIFETIME: Final = "tokenLifetime"
KEY_FILE_VARIABLE: Final = "DLSPARK_TOKEN_KEY_FILE"
READS: Final = frozenset({"read"})
ENDED_LEEWAY_S: Final = 60
"""Clocks of driver, executor and proxy may differ by so much where it is guessed why a token is refused."""
PATTERNS_BYTES: Final = 4096
"""About so much of a token may be patterns of names: in base64 two thirds of all that a token may have."""
_SHOWN_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class TaskGrant:
    """What does a query's token allow? The same for all tokens that one query is given."""

    name: str
    """The principal's."""
    roles: frozenset[str]
    logs: tuple[str, ...]
    """Patterns of names, as `Restrictions` has them."""


@dataclass(frozen=True, slots=True)
class TaskToken:
    """What does a task prove itself with?

    Unlike a `Secret` it is pickled: within a partition, and nowhere else. Neither its text nor `repr` shows it.
    """

    grant: TaskGrant
    text: str = field(repr=False)
    ends_at_s: float
    """Seconds since the epoch, by the driver's clock."""
    lifetime_ms: int
    made_at_s: float
    """Likewise. Of two tokens the one made last is shown, however long it is good: the key of the other may have been
    withdrawn, or the operator may want shorter ones."""

    def ended_error(self, error: NotAuthenticatedError, now_s: float) -> NotAuthenticatedError:
        """Return the error for a task whose token was refused: what it means where the token has ended, else the
        refusal as it is."""
        if now_s < self.ends_at_s - ENDED_LEEWAY_S:
            return error
        ended = datetime.fromtimestamp(self.ends_at_s, timezone.utc).isoformat(timespec="seconds")
        return NotAuthenticatedError(
            f"The token that the driver made for this task ended at {ended}, and the read proxies refuse it: "
            f"{error.message}. The task has handed over no row since, and nothing is lost",
            advice="Run the query again: it is planned anew, a stream from its checkpoint. If a job takes longer than "
            f"{self.lifetime_ms / 1000:g} s from its plan to its end, raise option {LIFETIME} (lost tasks of its first "
            "stage run again at any time until then); a frame that is used again later, or that a stream joins, is to "
            "be loaded again, or planned anew by a session of dlspark.spark.builder()",
            node=error.node,
        )


class TokenMint:
    """Makes the tokens of one query's tasks, on the driver; pickled nowhere.

    Args:
        grant: what they allow.
        lifetime_ms: for how long.
        key: reads the signing key, for each plan anew: where its file was exchanged, the other one may be withdrawn.
        purpose: what the tokens' ids begin with.
    """

    def __init__(
        self,
        grant: TaskGrant,
        lifetime_ms: int,
        key: Callable[[], SigningKey],
        purpose: str,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._grant = grant
        self._lifetime_ms = lifetime_ms
        self._key = key
        self._purpose = purpose
        self._now_s = now_s
        self._last: TaskToken | None = None
        self._last_key_id = ""
        self._key_failed = False

    @classmethod
    def of(
        cls, query: SourceQuery, security: SecuritySettings, environment: Mapping[str, str] | None = None
    ) -> TokenMint | None:
        """Return the mint of a query; None where its tasks show what their executors have.

        Args:
            security: by what the driver proves itself.
            environment: this process's, unless given.

        Raises OptionError where a key is named that cannot be used, or no principal is there to make tokens of.
        """
        environment = os.environ if environment is None else environment
        key = _named_key(query, environment)
        if key is None or query.proxies is None:
            return None
        if security.client_mode(environment) is SecurityMode.OFF:
            if query.token_key_file is None:
                return None  # the variable is of the whole driver, which may read plain clusters as well
            raise OptionError(
                "A key that makes tokens is named, and security is off: whoever is on its way would have a token",
                advice=f"Give option tls.directory, or {VARIABLE} to the driver; or leave option {KEY_FILE} out",
            )
        key()  # that it can be read is said before anything is planned
        principal = _own_principal(client_identity(security, environment))
        grant = TaskGrant(principal.name, principal.roles, log_patterns(query.selection))
        return cls(grant, query.token_lifetime_ms, key, _purpose(query))

    def token(self) -> TaskToken:
        """Return a token for tasks that are planned now: good for half its lifetime at least. Raises OptionError."""
        now_s = self._now_s()
        last = self._last
        if last is not None and last.ends_at_s - now_s <= self._lifetime_ms / 2000:
            last = None
        try:
            key = self._key()
        except OptionError as error:
            if last is None:
                raise
            if not self._key_failed:
                _LOG.warning("the key that makes tokens cannot be read again, the last token stays in use: %s", error)
            self._key_failed = True
            return last
        self._key_failed = False
        if last is not None and key.key_id == self._last_key_id:
            return last  # connections are not shown a new one with each micro-batch
        from dlspark.serving.security.token_issuing import TokenGrant

        seconds = -(-self._lifetime_ms // 1000)
        try:
            grant = TokenGrant(
                self._grant.name,
                seconds,
                Restrictions(self._grant.logs, READS),
                self._grant.roles,
                token_id=f"{self._purpose}:{uuid.uuid4()}",
            )
            text = key.issue(grant, now_s)
        except CallerError as error:
            raise OptionError(
                f"No token can be made for the tasks of this query, though a key for that is named: {error.message}; "
                "nothing was read",
                advice=f"Give option {KEY_FILE}={NO_KEY}: tasks show what their executors have then",
            ) from error
        self._last_key_id = key.key_id
        self._last = TaskToken(self._grant, text.reveal(), int(now_s) + seconds, self._lifetime_ms, now_s)
        return self._last


def _named_key(query: SourceQuery, environment: Mapping[str, str]) -> Callable[[], SigningKey] | None:
    """Return what reads the key that is named; None where there is none."""
    if query.token_key_file == NO_KEY:
        return None
    path = query.token_key_file or environment.get(KEY_FILE_VARIABLE)
    if not path and KEY_VARIABLE not in environment:
        return None

    kept: dict[tuple[int, ...], SigningKey] = {}
    """By what its file was when it was read: to take in a key of RSA costs as much as a small batch."""

    def read() -> SigningKey:
        from dlspark.serving.security.token_issuing import SigningKey

        seen = _seen(path) if path else ()
        if seen in kept:
            return kept[seen]
        try:
            if path:
                key = SigningKey.read(path)
            else:
                text = secret_from_environment(KEY_VARIABLE, CallerError, environment)
                key = SigningKey.of_text(text, KEY_VARIABLE)
            kept.clear()
            if seen is not None:
                kept[seen] = key
            return key
        except CallerError as error:
            raise OptionError(
                f"{error.message}; nothing was read", advice=error.advice, path=error.path
            ) from None  # its cause may have met a part of the key

    return read


def _seen(path: str) -> tuple[int, ...] | None:
    """Return what differs once another file is there, or others may read it; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _own_principal(identity: TlsIdentity | None) -> Principal:
    own = None if identity is None else identity.own_certificate
    if identity is None or own is None:
        raise OptionError(
            "A key that makes tokens is named, and the driver has no certificate that says whose they are",
            advice="Give the driver an identity folder (option tls.directory): its name and roles are the tokens'",
        )
    return PrincipalMapping().principal(own)


def log_patterns(selection: Selection) -> tuple[str, ...]:
    """Return the patterns of a query's logs, by which its tokens are restricted: the names, or how they begin.

    A token has room for so many names. Where there are more, it has the longest beginnings that some of them have in
    common: the token is good for other logs that begin so, then, and what the principal may read bounds it still.
    """
    if selection.pattern is not None:
        return (_beginning_pattern(selection.beginning),)
    names = sorted(selection.names)
    found = sorted({_name_pattern(name) for name in names})
    for kept in range(max(map(len, names)), -1, -1):
        if _has_room(found):
            break
        groups = [list(group) for _, group in groupby(names, lambda name, kept=kept: name[:kept])]  # type: ignore[misc]
        found = sorted({_joined_pattern(group) for group in groups})
    return tuple(found)


def _has_room(patterns: Sequence[str]) -> bool:
    return len(patterns) <= MAX_PATTERNS and len(json.dumps(patterns)) <= PATTERNS_BYTES


def _joined_pattern(names: Sequence[str]) -> str:
    if len(names) == 1:
        return _name_pattern(names[0])
    return _beginning_pattern(os.path.commonprefix(names))  # noqa: RUF071  # patterns are compared by characters, too


def _name_pattern(name: str) -> str:
    """Return the pattern of one name; of how it begins, where no pattern can say it."""
    # A name that ends in the sign for "anything" is meant as it stands.
    pattern = name[: -len(ANY_NAME)] + LITERAL if name.endswith(ANY_NAME) else name
    inside = name[: -len(ANY_NAME)]
    if ANY_NAME in inside or not name.isprintable() or len(pattern) > MAX_NAME_CHARS:
        return _beginning_pattern(name)
    return pattern


def _beginning_pattern(beginning: str) -> str:
    """Return the pattern of names that begin so; by less of it, where a pattern cannot say it."""
    cut = next((at for at, sign in enumerate(beginning) if sign == ANY_NAME or not sign.isprintable()), None)
    # A backslash before the sign for "anything" would make it a letter.
    return beginning[: MAX_NAME_CHARS - len(ANY_NAME)][:cut].rstrip("\\") + ANY_NAME


def _purpose(query: SourceQuery) -> str:
    """Return what a token's id begins with, by which audit trails and lists of revoked tokens name the query."""
    what = query.cursor or query.selection.pattern or ",".join(query.selection.names)
    shown = "".join(sign if sign.isprintable() and not sign.isspace() else "_" for sign in what[:_SHOWN_NAME])
    return f"spark:{shown}"


def task_credentials(
    security: SecuritySettings, token: TaskToken | None, environment: Mapping[str, str] | None = None
) -> ClientCredentials | None:
    """Return what a task shows proxies; None where security is off.

    With a token the certificate of the executor's folder is shown as well, if there is one: a folder with
    `authorities.pem` alone does.

    Raises SettingsError where something cannot be read, and NotAuthenticatedError for a token without security.
    """
    from dlspark.serving.security.credentials import ClientCredentials, client_credentials

    environment = os.environ if environment is None else environment
    if token is None:
        return client_credentials(security, environment=environment)
    if security.client_mode(environment) is SecurityMode.OFF:
        raise NotAuthenticatedError(
            "The driver has made a token for this task, and on this executor security is off: it was not shown, and "
            "nothing was read",
            advice=f"Set {VARIABLE} on executors (spark.executorEnv.{VARIABLE}) to a folder with authorities.pem, or "
            "name one by option tls.directory, which is to be at the same path on driver and executors",
        )
    files = security.client_files(environment)
    if not os.path.exists(files.certificate or files.key):
        security = replace(security, tls_client_authentication=False)
    identity = client_identity(security, environment)
    if identity is None:
        raise InvariantViolation("security is on, and gives no identity")
    return ClientCredentials(identity, token=Secret(token.text))
