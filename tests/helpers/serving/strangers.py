"""Strangers at a proxy's ports: raw connections that send anything, and an honest client that is served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dlspark.serving.protocol.answer_frames import decode_answer
from dlspark.serving.protocol.operations import Answer, Refusal, StatusCode
from helpers.waiting import until
from metadata.foundation.tasks import end_tasks

PATIENCE_S = 60.0
HEADER = struct.Struct(">BBHQ")


def framed(body: bytes) -> bytes:
    """Return a frame with its length."""
    return struct.pack(">i", len(body)) + body


def frame(kind: int, body: bytes = b"", *, number: int = 7, version: int = 1, flags: int = 0) -> bytes:
    """Return a frame of the serving tier."""
    return framed(HEADER.pack(version, kind, flags, number) + body)


@dataclass
class Heard:
    """What came back on a raw connection."""

    data: bytes = b""
    closed: bool = False

    @property
    def answers(self) -> list[tuple[int, Answer]]:
        """Return the whole frames in these bytes."""
        found, at = [], 0
        while at + 4 <= len(self.data):
            (length,) = struct.unpack_from(">i", self.data, at)
            if at + 4 + length > len(self.data):
                break
            found.append(decode_answer(memoryview(self.data)[at + 4 : at + 4 + length]))
            at += 4 + length
        return found

    @property
    def refusals(self) -> list[tuple[int, StatusCode]]:
        """Return number and code of each refusal."""
        return [(number, answer.code) for number, answer in self.answers if isinstance(answer, Refusal)]


class Stranger:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard = Heard()

    @classmethod
    async def connect(cls, port: int) -> Stranger:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        """Send as much as is taken; a connection that ends meanwhile is what a stranger expects."""
        with contextlib.suppress(OSError):
            self.writer.write(data)
            await self.writer.drain()

    async def hear(self, enough: Callable[[Heard], object] = lambda _: False) -> Heard:
        """Read until it is enough, or the end; silence for long is neither."""
        with contextlib.suppress(ConnectionError):
            while not enough(self.heard):
                data = await asyncio.wait_for(self.reader.read(1 << 20), PATIENCE_S)
                if not data:
                    break
                self.heard.data += data
            else:
                return self.heard
        self.heard.closed = True
        return self.heard

    def reset(self) -> None:
        """End with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class Honest:
    """Asks again and again; every answer must come, and soon."""

    ask: Callable[[], Awaitable[object]]
    answers: int = 0
    errors: list[BaseException] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Honest:
        self._task = asyncio.create_task(self._run())
        await self.served()
        return self

    async def served(self, times: int = 3) -> None:
        """Wait for so many more answers."""
        goal = self.answers + times
        await until(lambda: self.answers >= goal or self.errors)
        assert not self.errors, self.errors

    async def _run(self) -> None:
        while not self.errors:
            try:
                answer = await asyncio.wait_for(self.ask(), PATIENCE_S)
                if isinstance(answer, Refusal):
                    raise AssertionError(f"an honest client was refused: {answer}")
            except Exception as error:
                self.errors.append(error)
                return
            self.answers += 1
            await asyncio.sleep(0.005)

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await end_tasks([self._task], drop_errors=True)
        assert not self.errors, self.errors
