"""Errors of object stores: each says whether the thing happened, which object, and what the store said.

    ObjectStoreError
    ├── ObjectNotFoundError          there is no such object
    ├── ObjectExistsError            an object of the name is there: it may be the caller's own first try
    ├── StoreUnavailableError        nothing was done, or nothing came back: it may be tried again
    │   └── StoreUnreachedError          the store as a whole: no connection, or no answer in time
    ├── StoreRefusedError            nothing was done, and trying again changes nothing: rights, credentials, space
    ├── RangeShortError              an object has not the bytes that were asked for
    └── ObjectOutcomeUnknownError    a write or a deletion may or may not have been applied: look
    ObjectAddressError               an address that no object of the store can have; nothing was asked

All but two are NotAppliedError: ObjectOutcomeUnknownError is an OutcomeUnknownError, ObjectAddressError a CallerError.
The address of the object is the errors' `path`. No text here holds a secret: `scrubbed` takes them out of what a store
says.
"""

from __future__ import annotations

import re
from typing import Final

from metadata.foundation.errors import (
    CallerError,
    CorruptDataError,
    DistributedLogError,
    NotAppliedError,
    OutcomeUnknownError,
)

MAX_SAID_CHARS: Final = 600
"""Of a store's answer in a message: it may be a page of HTML."""

_SECRETS: Final = re.compile(
    r"(?P<name>X-Amz-(?:Signature|Security-Token|Credential)=|Signature=|Credential=|delegation=|token=|"
    r"(?:aws_)?secret_access_key\W+|(?:aws_)?session_token\W+|Authorization:\s*|"
    r"<(?:AWSAccessKeyId|SignatureProvided|StringToSign|StringToSignBytes|CanonicalRequest|CanonicalRequestBytes|"
    r"Token-\d+|X-Amz-Security-Token)>)"
    r"[^&\s<>\"']*(?:(?<=:)[^\r\n<]*)?",
    re.IGNORECASE,
)
_WHOLE_ELEMENTS: Final = re.compile(
    r"<(StringToSign|StringToSignBytes|CanonicalRequest|CanonicalRequestBytes)>.*?(?:</\1>|$)",
    re.IGNORECASE | re.DOTALL,
)
_AUTHORIZATION: Final = re.compile(r"authorization\W+[^\r\n<}]*", re.IGNORECASE)


class ObjectStoreError(DistributedLogError):
    """What did an object store not do? The subclass says; `path` is the object's address."""


class ObjectNotFoundError(ObjectStoreError, NotAppliedError):
    """There is no such object."""


class ObjectExistsError(ObjectStoreError, NotAppliedError):
    """An object of the name is there already, perhaps by this writer's own first try; it was not changed."""


class StoreUnavailableError(ObjectStoreError, NotAppliedError):
    """The store was out of reach, or said that it cannot at present: nothing was done, and it may be tried again."""


class StoreUnreachedError(StoreUnavailableError):
    """The store itself did not answer: no connection, or none in time. Whatever else is asked of it would fail as well;
    any other StoreUnavailableError may be of one object or one request alone."""


class StoreRefusedError(ObjectStoreError, NotAppliedError):
    """The store refuses (rights, credentials, no space, no such bucket): nothing was done, and the same request will be
    refused again."""


class RangeShortError(ObjectStoreError, CorruptDataError):
    """An object has not all of the bytes that were asked for; none of them is returned."""


class ObjectOutcomeUnknownError(ObjectStoreError, OutcomeUnknownError):
    """The store's answer to a write or a deletion was lost: the object may be there or not."""


class ObjectAddressError(CallerError):
    """An address that no object of this store can have; nothing was asked of the store."""


def scrubbed(said: object) -> str:
    """Return what a store, or its library, said: on one line, cut to what helps, and without credentials."""
    text = _WHOLE_ELEMENTS.sub(r"<\1>...", str(said))
    text = _AUTHORIZATION.sub("authorization ...", text)
    text = _SECRETS.sub(lambda found: f"{found['name']}...", text)
    text = " ".join(text.split())
    return text if len(text) <= MAX_SAID_CHARS else f"{text[: MAX_SAID_CHARS - 3]}..."


def unavailable_error(url: str, doing: str, said: object) -> StoreUnavailableError:
    """Return the error of a request that was not applied and may be repeated."""
    return StoreUnavailableError(
        f"The object store did not {doing}: {scrubbed(said)}",
        path=url,
        advice="Nothing was changed; try again later, and look at the store and the way to it if it stays so",
    )


def unreached_error(url: str, doing: str, said: object) -> StoreUnreachedError:
    """Return the error of a store that did not answer: nothing was applied."""
    return StoreUnreachedError(
        f"The object store did not {doing}: {scrubbed(said)}",
        path=url,
        advice="Nothing was changed; try again later, and look at the store and the way to it if it stays so",
    )


def not_found_error(url: str) -> ObjectNotFoundError:
    """Return the error of a missing object."""
    return ObjectNotFoundError(
        "There is no such object",
        path=url,
        advice="Has it been deleted from outside, is its file system mounted, is this the right endpoint?",
    )


def exists_error(url: str) -> ObjectExistsError:
    """Return the error of a name that is taken."""
    return ObjectExistsError(
        "An object of this name is there already; it was not changed",
        path=url,
        advice="Read it back and compare: it may be what this writer wrote itself, with the answer lost",
    )


def unknown_error(url: str, doing: str, said: object) -> ObjectOutcomeUnknownError:
    """Return the error of a write whose answer was lost."""
    return ObjectOutcomeUnknownError(
        f"It is not known whether the object store did {doing}: {scrubbed(said)}",
        path=url,
        advice="Look whether the object is there before anything is repeated",
    )


def refused_error(url: str, doing: str, said: object, advice: str) -> StoreRefusedError:
    """Return the error of a request that the store will not do."""
    return StoreRefusedError(f"The object store refuses to {doing}: {scrubbed(said)}", path=url, advice=advice)


def short_error(url: str, offset: int, length: int, got: int) -> RangeShortError:
    """Return the error of a range that came back short."""
    return RangeShortError(
        f"Bytes {offset} to {offset + length} were asked for, and {got} of {length} are there",
        path=url,
        advice="The object is not what was written, or it is being replaced from outside: verify it",
    )
