"""SCRAM-SHA-256 (RFC 5802, 7677): the server keeps keys from which neither the password nor a proof can be made.

The messages are the library scramp's (extra `security`); around it stands what a server on a network needs:

* Over TLS both sides bind the proof to the connection (`binding`), and neither goes on without: a server that has a
  binding takes only SCRAM-SHA-256-PLUS, a client that has one sends nothing else.
* An unknown name gets a challenge like any other, with a salt that stays the same, and fails at the end.
* A server cannot make a client work for minutes: what it may ask of it is bounded.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, TypeVar

from metadata.foundation.settings import shown
from metadata.security.principals import Principal, Scheme
from metadata.security.sasl.binding import END_POINT
from metadata.security.sasl.machine import SaslError, check_size
from metadata.security.secrets import Secret

T = TypeVar("T")

MECHANISM: Final = "SCRAM-SHA-256"
BOUND: Final = "SCRAM-SHA-256-PLUS"
MAX_MESSAGE_BYTES: Final = 4096
MIN_ITERATIONS: Final = 4096
"""Of the RFC; scramp takes no fewer."""
MAX_ITERATIONS: Final = 200_000
"""Some 0.1 s of a client's time, which stands still as long: a server that asks for more is not obeyed."""
DEFAULT_ITERATIONS: Final = 4096
"""As Kafka has it. Stretching helps a password that can be guessed; the ones that are made here cannot."""
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
_ADVICE: Final = "Install the extra: pip install 'dlspark[security]'"


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """What does a server keep of a password? From this nobody enters, though passwords can be tried against it."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.salt) < SALT_BYTES or len(self.stored_key) != KEY_BYTES or len(self.server_key) != KEY_BYTES:
            raise ValueError("keys of SCRAM-SHA-256 have 32 bytes, and a salt of at least 16")
        if not MIN_ITERATIONS <= self.iterations <= MAX_ITERATIONS:
            raise ValueError(f"iterations of SCRAM lie between {MIN_ITERATIONS} and {MAX_ITERATIONS}")


def stored_keys(password: Secret, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None) -> StoredKeys:
    """Return what a server keeps of a password, with a new salt. Raises SaslError for one that SASLprep forbids."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    mechanism = _library().ScramMechanism(MECHANISM)
    salt, stored, server, count = _guarded(lambda: mechanism.make_auth_info(password.reveal(), iterations, salt))
    return StoredKeys(salt, count, stored, server)


def prepared_name(name: str) -> str:
    """Return a user's name as it travels (SASLprep, RFC 4013). Raises SaslError for one that is not allowed."""
    _library()
    from scramp.utils import saslprep

    prepared: str = _guarded(lambda: saslprep(name))
    if not prepared:
        raise SaslError("SCRAM: a user's name is empty")
    return prepared


class ScramServer:
    """Which of the users whose keys are here is the client?

    Args:
        keys_of: the keys of a user, or None for a name that is not known.
        allowed: whether a user may enter; asked once the proof was right.
        binding: of this connection's TLS (`tls-server-end-point`); None: there is no TLS.
        decoy: a secret that stays; from it the salts of unknown names are made.
        decoy_iterations: what unknown names are said to have; that of those known, or it tells them apart.
    """

    mechanism = MECHANISM

    def __init__(
        self,
        keys_of: Callable[[str], StoredKeys | None],
        allowed: Callable[[str], bool],
        *,
        binding: bytes | None,
        decoy: bytes,
        decoy_iterations: int = DEFAULT_ITERATIONS,
        nonce: str | None = None,
    ) -> None:
        self._decoy_iterations = decoy_iterations
        self._keys_of = keys_of
        self._allowed = allowed
        self._decoy = decoy
        mechanism = _library().ScramMechanism(MECHANISM if binding is None else BOUND)
        channel = None if binding is None else (END_POINT, binding)
        self._machine = mechanism.make_server(self._look_up, channel_binding=channel, s_nonce=nonce)
        self._steps = 0
        self._name = ""
        self._known = False
        self._principal: Principal | None = None

    @property
    def done(self) -> bool:
        """True once the client's proof was right."""
        return self._principal is not None

    @property
    def principal(self) -> Principal | None:
        """The user, once its proof was right."""
        return self._principal

    def step(self, message: bytes) -> bytes:
        """Return salt and nonce, then the server's own proof. Raises SaslError, after which nothing is heard."""
        step, self._steps = self._steps, 2  # whatever comes of this message; the first one goes on below
        if step > 1:
            raise SaslError("SCRAM: a message after the exchange was over")
        text = _text(message)
        if step == 0:
            _guarded(lambda: self._machine.set_client_first(text))
            first = _guarded(self._machine.get_server_first)
            self._steps = 1
            return str(first).encode()
        try:
            _guarded(lambda: self._machine.set_client_final(text))
        except SaslError as cause:
            raise SaslError(
                f"SCRAM: the user {shown(self._name)} is not known, or its proof is wrong: {cause}"
            ) from cause
        if not self._known:
            raise SaslError(f"SCRAM: the user {shown(self._name)} is not known")
        if not self._allowed(self._name):
            raise SaslError(f"SCRAM: the user {shown(self._name)} is known, and not allowed here")
        last = _guarded(self._machine.get_server_final)
        self._principal = Principal(self._name, Scheme.SCRAM_SHA_256)
        return str(last).encode()

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        keys = self._keys_of(name)
        self._known = keys is not None
        if keys is None:
            salt = hmac.digest(self._decoy, name.encode(), "sha256")[:SALT_BYTES]
            return salt, secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES), self._decoy_iterations
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations


class ScramClient:
    """Which user is this, to a server that has its keys?

    Args:
        name, password: of the user.
        binding: of this connection's TLS (`tls-server-end-point`); None: there is no TLS.
    """

    mechanism = MECHANISM

    def __init__(self, name: str, password: Secret, *, binding: bytes | None, nonce: str | None = None) -> None:
        self.name = name
        mechanisms = [MECHANISM if binding is None else BOUND]
        channel = None if binding is None else (END_POINT, binding)
        client = _library().ScramClient
        self._machine = _guarded(
            lambda: client(mechanisms, name, password.reveal(), channel_binding=channel, c_nonce=nonce)
        )
        self._steps = 0
        self._done = False

    @property
    def done(self) -> bool:
        """True once the server has proved that it has the user's keys."""
        return self._done

    def step(self, message: bytes) -> bytes | None:
        """Return the name, then the proof; None once the server's proof is right. Raises SaslError."""
        step, self._steps = self._steps, 3
        if step > 2:
            raise SaslError("SCRAM: a message after the exchange was over")
        text = _text(message)
        if step == 0:
            if message:
                raise SaslError("SCRAM: the server spoke first")
            first = _guarded(self._machine.get_client_first)
            self._steps = 1
            return str(first).encode()
        if step == 1:
            _guarded(lambda: self._machine.set_server_first(text))
            if int(self._machine.iterations) > MAX_ITERATIONS:
                raise SaslError(f"SCRAM: the server asks for {self._machine.iterations} rounds of hashing, too many")
            final = _guarded(self._machine.get_client_final)
            self._steps = 2
            return str(final).encode()
        _guarded(lambda: self._machine.set_server_final(text))
        self._done = True
        return None


def _text(message: bytes) -> str:
    check_size(message, MAX_MESSAGE_BYTES, "SCRAM")
    try:
        return message.decode()
    except UnicodeDecodeError as cause:
        raise SaslError("SCRAM: a message that is not in UTF-8") from cause


def _guarded(call: Callable[[], T]) -> T:
    """Return what the library returns; whatever it raises at a peer's bytes is a refusal."""
    try:
        return call()
    except SaslError:
        raise
    except Exception as cause:  # the boundary: a library's surprise must refuse the peer, not stop the loop
        raise SaslError(f"SCRAM: {str(cause)[:200]}") from None


def _library() -> ModuleType:
    try:
        import scramp
    except ImportError as cause:
        raise SaslError("SCRAM needs the library scramp", advice=_ADVICE) from cause
    library: ModuleType = scramp
    return library
