"""The root of every error that dlspark raises: it says whether the thing happened.

    DistributedLogError
    ├── CallerError              the request itself is wrong; nothing was done
    │   ├── OpenedElsewhereError what is open in one process and on one event loop was to be used, or copied, elsewhere
    │   └── NoAuthError          (metadata) the znode's access control list refuses this session
    ├── NotAppliedError          definitely not applied; state is as before, a retry is safe
    │   ├── NoNodeError          (metadata) the znode does not exist
    │   ├── NodeExistsError      (metadata) the znode exists already
    │   ├── BadVersionError      (metadata) a conditional update lost the race
    │   ├── NotEmptyError        (metadata) a znode with children cannot be deleted
    │   ├── MetadataUnavailableError   ZooKeeper could not be reached at all; nothing was sent
    │   └── CorruptDataError     bytes read back are not what was written; never returned as data (I12)
    ├── OutcomeUnknownError      may or may not have been applied: look before retrying
    │   ├── ConnectionLossError  (metadata) the connection was lost with the request under way
    │   └── SessionExpiredError  (metadata) the session ended with the request under way
    └── InvariantViolation       a rule of dlspark's own does not hold: a bug, please report it

The tree's root lives on the lowest floor because arrows may only point down; `storage_node.errors` and
`dlspark.errors` add their own leaves.
"""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T")


class DistributedLogError(Exception):
    """Base of all errors: `message` says what happened, what did not, and `advice` what to do next.

    The other attributes give the place, where there is one: `log` and `dlsn`, or `ledger_id` and `entry_id`, and the
    `node` (bookie id, ZooKeeper server) that answered. `op_index` is the index, from 0, of the operation that failed in
    a transaction of the metadata store; in all other errors it is None.
    """

    def __init__(
        self,
        message: str,
        *,
        advice: str | None = None,
        log: str | None = None,
        dlsn: object | None = None,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        node: str | None = None,
        path: str | None = None,
        op_index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.log = log
        self.dlsn = dlsn
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.node = node
        self.path = path
        self.op_index = op_index

    def __str__(self) -> str:
        places = {
            "log": self.log,
            "dlsn": self.dlsn,
            "ledger": self.ledger_id,
            "entry": self.entry_id,
            "node": self.node,
            "path": self.path,
        }
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        text = f"{self.message} [{where}]" if where else self.message
        return f"{text}. {self.advice}" if self.advice else text

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by state: Spark carries errors between processes."""
        return (_rebuild, (type(self), dict(self.__dict__)))


def _rebuild(kind: type[DistributedLogError], state: dict[str, object]) -> DistributedLogError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message", ""))
    error.__dict__.update(state)
    return error


class CallerError(DistributedLogError):
    """The request itself is wrong; nothing was done."""


class NotAppliedError(DistributedLogError):
    """It was definitely not applied; a retry is safe."""


class OutcomeUnknownError(DistributedLogError):
    """It may or may not have been applied: look before you repeat it."""


class InvariantViolation(DistributedLogError):
    """Is this a bug? Yes: a rule of dlspark's own does not hold; please report it."""


class OpenedElsewhereError(CallerError):
    """It is open in one process, and on one event loop; it was to be copied, or used, elsewhere. Nothing was done."""


NO_AUTH_ADVICE: Final = (
    "It showed no identity that may do this: a program that opens namespaces itself needs the cluster's "
    "zookeeper.secret in its identity folder (dlspark tls issue --cluster-secret), or zkAclId where the logs are that "
    "identity's; clients of proxies ask these by their addresses"
)


class NoAuthError(CallerError):
    """The znode's access control list does not let this session do that; nothing was done."""


class NoNodeError(NotAppliedError):
    """The znode does not exist."""


class NodeExistsError(NotAppliedError):
    """The znode exists already."""


class BadVersionError(NotAppliedError):
    """A conditional update found another version: another client was first."""


class NotEmptyError(NotAppliedError):
    """A znode with children cannot be deleted."""


class MetadataUnavailableError(NotAppliedError):
    """The metadata store could not be reached; the request was not sent, and may be repeated."""


class CorruptDataError(NotAppliedError):
    """Bytes read back are not what was written (digest, magic, bounds, version); they are not returned (I12)."""


class ConnectionLossError(OutcomeUnknownError):
    """The connection to the metadata store was lost while the request was under way: it may have been applied."""


class SessionExpiredError(OutcomeUnknownError):
    """The metadata session expired while the request was under way; it may have been applied. The session's ephemeral
    znodes are gone."""


def check(condition: bool, message: str, **place: object) -> None:
    """Raise `InvariantViolation` unless `condition` holds. Unlike `assert` it stays on in production."""
    if not condition:
        raise _violation_error(message, place)


def present(value: T | None, message: str, **place: object) -> T:
    """Return `value`, which is there by now. Raises `InvariantViolation` where it is None."""
    if value is None:
        raise _violation_error(message, place)
    return value


def of_class(value: object, kind: type[T], message: str, **place: object) -> T:
    """Return `value`, which is of this class. Raises `InvariantViolation` where it is not."""
    if not isinstance(value, kind):
        raise _violation_error(message, place)
    return value


def is_a_bug(error: BaseException) -> bool:
    """Return True for an error that no fault of machines, and no caller, brings: what handles it also says where it
    comes from."""
    return isinstance(error, InvariantViolation) or not isinstance(error, (DistributedLogError, OSError))


def _violation_error(message: str, place: dict[str, object]) -> InvariantViolation:
    return InvariantViolation(message, advice="This is a bug in dlspark; please report it", **place)  # type: ignore[arg-type]
