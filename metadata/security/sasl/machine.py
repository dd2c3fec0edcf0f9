"""What every mechanism of SASL is here: a machine that takes the other side's message and returns the next one.

A machine serves one connection and never two. It opens nothing, waits for nothing and knows no framing: whoever drives
it carries the messages. It fails closed: a message that is not what comes next ends it for good, it is *done* only
after the last check, and only then is there a principal. `storage_node/protocol/authentication.py` drives it on
connections of storage nodes.

    server                                        client
                                                  step(b"")   the first message, perhaps empty
    step(first)     challenge                     step(challenge)   response
    step(response)  the last word, `done`         step(the last word)   None, `done`

What a step returns is sent even where it is empty; None is sent not at all, and only a machine that is done returns it.
"""

from __future__ import annotations

from typing import Final, Protocol

from metadata.foundation.errors import CallerError
from metadata.security.principals import Principal

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""No mechanism takes a longer message: a Kerberos ticket with many groups has some 48 KiB, others less."""


class SaslError(CallerError):
    """The exchange has failed, and its machine with it: nobody was authenticated.

    The message says why, for the log and the audit trail of this side. It is not for the other side, which is not to
    learn whether a name or a password was wrong.
    """


class SaslMachine(Protocol):
    """What does a side of an exchange do with each message?"""

    @property
    def mechanism(self) -> str:
        """The mechanism as SASL registers it: `DIGEST-MD5`."""
        ...

    @property
    def done(self) -> bool:
        """True once this side has checked all that it has to."""
        ...

    def step(self, message: bytes) -> bytes | None:
        """Take the other side's message and return the next one, or None where nothing is to be sent.

        A client begins with the empty message, and perhaps answers it with an empty one. Raises SaslError.
        """
        ...


class SaslServer(SaslMachine, Protocol):
    """What does the side that is asked for entry know?"""

    @property
    def principal(self) -> Principal | None:
        """Who the client has proved to be; None until the exchange is done."""
        ...


class SaslClient(SaslMachine, Protocol):
    """What does the side that asks for entry know?"""

    @property
    def name(self) -> str:
        """As whom it asks."""
        ...


def check_size(message: bytes, limit: int, mechanism: str) -> None:
    """Raise SaslError for a message that is too long for this mechanism."""
    if len(message) > limit:
        raise SaslError(f"{mechanism}: a message of {len(message)} bytes, where at most {limit} are taken")
