"""The gRPC service's calls, and what goes over them (docs/reference/serving.md#grpc). No I/O, and no grpc.

`METHODS` says for each call which messages it takes and gives, as the compiled distributedlog.proto has it: a binding
registers its handlers by it, so that no second list of them is kept.

Never trusts a peer: what cannot be made sense of is a ProtocolError, which a binding answers with INVALID_ARGUMENT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol import rpc_answers, rpc_requests
from dlspark.serving.protocol.operations import Answer, Delivery, ReadForm, Refusal, Request
from metadata.foundation.errors import check

_DESCRIPTOR: Final = pb.DESCRIPTOR.services_by_name["DistributedLog"]

SERVICE: Final[str] = _DESCRIPTOR.full_name
"""What a client calls: /dlspark.serving.v1.DistributedLog/Write."""


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One call of the service."""

    name: str
    request: type[Message]
    response: type[Message]
    requests_stream: bool
    responses_stream: bool


METHODS: Final = {
    method.name: RpcMethod(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
    for method in _DESCRIPTOR.methods
}
"""By the name of the call."""


def request_from_pb(method: str, message: Message) -> Request:
    """Return the request of a call. A Write's `correlation` is the binding's: it is not part of it. Raises
    ProtocolError."""
    return rpc_requests.FROM_PB[method](message)


def request_to_pb(request: Request) -> tuple[str, Message]:
    """Return the name of the call, and its message; writes are Write, and Append takes the same message."""
    return rpc_requests.to_pb(request)


def answer_to_pb(
    method: str,
    answer: Answer,
    *,
    correlation: int = 0,
    names: rpc_answers.GrpcNames = rpc_answers.NO_NAMES,
) -> Message:
    """Return the message with which a call is answered; `correlation` is repeated by writes alone. `names` knows where
    proxies speak gRPC."""
    response = METHODS[method].response
    if isinstance(answer, Refusal):
        message = response(status=rpc_answers.status_to_pb(answer, names))
    else:
        message = rpc_answers.TO_PB[type(answer)](answer, names)
        check(isinstance(message, response), f"{method} was answered with {type(answer).__name__}")
    if correlation and isinstance(message, pb.WriteResponse):
        message.correlation = correlation
    return message


def read_responses(answer: Delivery) -> Iterator[Message]:
    """Return the responses of a Read that say what was read, in their order; see `rpc_answers.read_responses`."""
    return rpc_answers.read_responses(answer)


def answer_from_pb(message: rpc_answers.Response, *, form: ReadForm = ReadForm.RECORDS) -> Answer:
    """Return the answer that a message carries; `form` is the one that a Read asked for. Raises ProtocolError."""
    return rpc_answers.from_pb(message, form)
