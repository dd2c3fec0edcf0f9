"""What a client asks about streams besides writing and reading them: an answer for each request.

Fault model: as for every request (`requests`): a proxy that cannot serve the stream leads to the next, until there is
an answer or the time is up. An error says whether the thing may have been done.
"""

from __future__ import annotations

from typing import TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.client.answer_rules import StreamRequest
from dlspark.serving.protocol.operations import (
    Answer,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Done,
    EpochBegun,
    FindOwner,
    Heartbeat,
    MoveStream,
    OwnerFound,
    ReleaseStream,
    SetFencingToken,
    TruncateStream,
)
from dlspark.serving.routing.hosts import address_of
from storage_node.errors import ProtocolError

_Wanted = TypeVar("_Wanted")


class StreamOperations:
    """The operations of `AsyncClient` that are one request each. Times and retries are those of the client's settings.

    Each raises what the proxy's refusal says: LogNotFoundError, RequestDeniedError and so on; ProxyUnreachableError
    where no proxy could be asked in time, and an OutcomeUnknownError where one was, and nobody knows what came of it.
    """

    async def ask(self, request: StreamRequest) -> Answer:
        """Take a request to the proxy that serves its stream, and return its answer, which is no refusal."""
        raise NotImplementedError

    async def create(self, stream: str) -> None:
        """Create the log. Raises LogExistsError where it is there."""
        _expect(await self.ask(CreateStream(stream)), Done)

    async def delete(self, stream: str) -> None:
        """Delete the log and all that is in it. Raises LogNotFoundError."""
        _expect(await self.ask(DeleteStream(stream)), Done)

    async def truncate(self, stream: str, dlsn: DLSN | str) -> DLSN:
        """Hide every record below `dlsn`; returns the position that the log was truncated to."""
        wanted = DLSN.parse(dlsn) if isinstance(dlsn, str) else dlsn
        done = _expect(await self.ask(TruncateStream(stream, wanted)), Done)
        return wanted if done.dlsn is None else done.dlsn

    async def release(self, stream: str) -> None:
        """Have the proxy that owns the stream give it up; the next write makes a proxy own it."""
        _expect(await self.ask(ReleaseStream(stream)), Done)

    async def move(self, stream: str, target: str) -> None:
        """Have the proxy that owns the stream hand it over to the one at `target` (`host:port`)."""
        _expect(await self.ask(MoveStream(stream, target)), Done)

    async def owner(self, stream: str) -> str:
        """Return the address of the proxy that owns the stream, or would own it."""
        return address_of(_expect(await self.ask(FindOwner(stream)), OwnerFound).location)

    async def heartbeat(self, stream: str, *, to_readers: bool = False) -> None:
        """Make a proxy own the stream. `to_readers`: it also writes a control record, so that readers see it lives."""
        _expect(await self.ask(Heartbeat(stream, to_readers)), Done)

    async def begin_epoch(self, stream: str, producer: str, epoch: int | None = None) -> int:
        """Begin a producer's next epoch, or the one that is named, and return it: requests of older ones are refused
        from now on, whoever sends them."""
        return _expect(await self.ask(BeginEpoch(stream, producer, epoch)), EpochBegun).epoch

    async def set_fencing_token(self, stream: str, token: bytes, *, expected: bytes | None = None) -> None:
        """Have every write that names another fencing token refused from now on; empty bytes: none. `expected`: the
        token that the log must have now. Raises ConditionError where it has another."""
        _expect(await self.ask(SetFencingToken(stream, token, expected)), Done)


def _expect(answer: Answer, wanted: type[_Wanted]) -> _Wanted:
    """Return the answer, which must be of this kind."""
    if not isinstance(answer, wanted):
        raise ProtocolError(f"a proxy answered with {type(answer).__name__}, {wanted.__name__} was expected")
    return answer
