"""`GrpcCaller`: a client of proxies over gRPC under TLS, by the compiled messages alone, as one in another language is.

It follows where proxies send it, and says what became of a call in one word: the name of the status's code, or that of
gRPC's own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.rpc_requests import SERVICE
from metadata.security.identity import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE

CALL_S = 60.0
MOST_REDIRECTS = 8
BUSY = ("STREAM_NOT_READY", "SERVICE_UNAVAILABLE", "STREAM_UNAVAILABLE")
"""Where a log is being opened, or handed over: it is asked for again."""


def word(status: pb.Status) -> str:
    """Return what a status says in one word. A call whose proof ends is refused one by one until it is ended."""
    proof_ended = status.error == "NotAuthenticatedError"
    return grpc.StatusCode.UNAUTHENTICATED.name if proof_ended else pb.Status.Code.Name(status.code)


class GrpcCaller:
    """With the certificate of a folder, or without; with a token, or without."""

    def __init__(self, addresses: list[str], trusted: Path, folder: Path | None = None, token: str = "") -> None:
        pair = () if folder is None else tuple((folder / name).read_bytes() for name in (KEY_FILE, CERTIFICATE_FILE))
        self._credentials = grpc.ssl_channel_credentials((trusted / AUTHORITIES_FILE).read_bytes(), *pair)
        self._addresses = addresses
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.token = token

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return the channel to a proxy: a connection of this caller's own."""
        if address not in self._channels:
            options = [("grpc.use_local_subchannel_pool", 1)]
            self._channels[address] = grpc.aio.secure_channel(address, self._credentials, options)
        return self._channels[address]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def ask(self, method: str, request: Any, response: Any) -> Any:
        """Return the answer to a call, wherever the log is. Raises grpc.aio.AioRpcError."""
        address, redirects = self._addresses[0], 0
        while True:
            call = self.channel(address).unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            answer = await asyncio.wait_for(call(request, metadata=self.metadata, wait_for_ready=False), CALL_S)
            said = word(answer.status)
            if said == "FOUND" and redirects < MOST_REDIRECTS:
                address, redirects = answer.status.grpc_address, redirects + 1
            elif said in BUSY:
                await asyncio.sleep(0.1)
            else:
                return answer

    async def outcome(self, method: str, request: Any, response: Any = pb.DoneResponse) -> str:
        """Return what became of a call, in one word."""
        try:
            return word((await self.ask(method, request, response)).status)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)

    async def write(self, log: str, payload: bytes = b"x") -> str:
        return await self.outcome("Write", pb.WriteRequest(stream=log, payloads=[payload]), pb.WriteResponse)

    async def create(self, log: str) -> str:
        return await self.outcome("Create", pb.StreamRequest(stream=log))

    async def delete(self, log: str) -> str:
        return await self.outcome("Delete", pb.StreamRequest(stream=log))

    async def truncate(self, log: str) -> str:
        return await self.outcome("Truncate", pb.TruncateRequest(stream=log, dlsn=pb.Dlsn(segment=1)))

    async def read_on(self, log: str, address: str) -> AsyncIterator[pb.ReadResponse]:
        """Yield the responses of a Read from the log's beginning on. Raises grpc.aio.AioRpcError."""
        call = self.channel(address).unary_stream(
            f"/{SERVICE}/Read",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.ReadResponse.FromString,
        )
        request = pb.ReadRequest(stream=log, at=pb.ReadRequest.OLDEST, heartbeat_ms=60_000)
        async for response in call(request, metadata=self.metadata):
            yield response

    async def read(self, log: str, address: str) -> str:
        """Return the first word of a read."""
        try:
            async for response in self.read_on(log, address):
                return word(response.status)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "END"

    async def last_word(self, log: str, address: str, arrived: asyncio.Event) -> str:
        """Read on until the call ends; return how it did. `arrived` is set once there is a record."""
        said = "END"
        try:
            async for response in self.read_on(log, address):
                said = word(response.status)
                if response.records:
                    arrived.set()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return said

    async def append_until_refused(self, log: str, address: str, arrived: asyncio.Event) -> str:
        """Append record after record in one call until it ends, or one is refused; return how."""
        call = self.channel(address).stream_stream(
            f"/{SERVICE}/Append",
            request_serializer=pb.WriteRequest.SerializeToString,
            response_deserializer=pb.WriteResponse.FromString,
        )(metadata=self.metadata)
        number = 0
        try:
            while True:
                await call.write(pb.WriteRequest(correlation=number, stream=log, payloads=[b"y"]))
                answer = await asyncio.wait_for(call.read(), CALL_S)
                if answer is grpc.aio.EOF:
                    return f"{(await call.code()).name}: {await call.details()}"
                said = word(answer.status)
                if said != "SUCCESS":
                    call.cancel()
                    return said
                arrived.set()
                number += 1
                await asyncio.sleep(0.05)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except asyncio.InvalidStateError:  # the call had ended when the next record was given to it
            return f"{(await call.code()).name}: {await call.details()}"

    async def owner(self, log: str) -> str:
        """Return the gRPC address of the proxy that has a log."""
        answer = await self.ask("GetOwner", pb.StreamRequest(stream=log), pb.GetOwnerResponse)
        return str(answer.grpc_address)
