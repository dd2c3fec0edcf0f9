"""Requests and answers as frames on the storage transport: what every frame begins with, and the parts that it is made
of (docs/reference/serving.md#frames). No I/O.

    i32 length    of what follows; `FrameBuffer` cuts a stream of bytes by it, and takes it off
    u8  version   1
    u8  kind      `RequestKind`, `AnswerKind`
    u16 flags     what is there of what may be there; each kind has its own
    u64 number    the client's choice; the answer repeats it

Answers come in the order in which they are ready. Payloads are not copied: an encoder returns them as they were given,
behind the bytes that go before them, and a decoder returns views of the frame, which live as long as they are held.

Never trusts a peer: a length is checked before it is used, and what is unknown (a version, a kind, a flag, a number
that stands for something) is refused by name, not skipped. ProtocolError is all that a decoder raises, whatever it is
given; the connection is closed then, for nothing that follows can be trusted to be a frame.

`Reader` takes a frame apart and checks every length before it is used: whatever bytes it is given, only ProtocolError
goes out. What it hands out as bytes are views of the frame. `Head` puts together what goes before payloads, which are
never copied; what does not fit in its field is a CallerError, and nothing was sent then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Final, NoReturn, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import RecordTooLongError
from metadata.foundation.errors import CallerError
from storage_node.errors import ProtocolError
from storage_node.protocol.frames import LENGTH_BYTES, MAX_FRAME_BYTES, Buffer

T = TypeVar("T")

FRAME_VERSION: Final = 1
MAX_PAYLOADS: Final = 16_384
"""Payloads in one request: a frame can hold a million empty ones, and cutting it up would take a second."""
MAX_PARTS: Final = 65_536
"""Parts in one Delivery."""
MAX_HOSTS: Final = 255
"""Locations in `tried_hosts`."""

HEADER: Final = Struct(">BBHQ")
"""Version, kind, flags, correlation number."""
FRAME_HEADER: Final = Struct(">iBBHQ")
"""The same behind the frame's length."""
_U8: Final = Struct(">B")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_I64: Final = Struct(">q")
_DLSN: Final = Struct(">qqq")
_ADVICE: Final = "The peer is not a dlspark client or proxy, or speaks another version of the frames"


def broken(what: str) -> NoReturn:
    """Raise ProtocolError: the frame is ill-formed, `what` says where."""
    raise ProtocolError(f"a frame of the serving tier is ill-formed: {what}", advice=_ADVICE)


def decode_frame(
    frame: memoryview, decoders: Mapping[int, tuple[int, Callable[[memoryview, int], T]]], what: str
) -> tuple[int, T]:
    """Return the number and the contents of a frame, without its length. `decoders` has for each kind its flags and
    what reads it; `what` names such a frame in errors. Raises ProtocolError and nothing else."""
    if len(frame) < HEADER.size:
        broken(f"it has {len(frame)} bytes, its header alone takes {HEADER.size}")
    version, kind, flags, correlation = HEADER.unpack_from(frame)
    if version != FRAME_VERSION:
        broken(f"it has version {version}, this side speaks {FRAME_VERSION}")
    known = decoders.get(kind)
    if known is None:
        broken(f"its kind is {kind}, which is not {what}'s")
    if flags & ~known[0]:
        broken(f"{what} of kind {kind} has the flags {flags:#x}, of which {flags & ~known[0]:#x} are unknown")
    return correlation, known[1](frame, flags)


def sizes_of(payloads: Sequence[Buffer]) -> list[int]:
    """Return the length of each payload, in bytes."""
    return [payload.nbytes if isinstance(payload, memoryview) else len(payload) for payload in payloads]


class Reader:
    """Takes a frame apart, from `at` on."""

    __slots__ = ("_at", "_end", "_view")

    def __init__(self, frame: memoryview, at: int) -> None:
        self._view = frame
        self._at = at
        self._end = len(frame)

    def blob(self, length: int, what: str) -> memoryview:
        """Return the next `length` bytes, not copied."""
        at = self._at
        after = at + length
        if after > self._end:
            broken(f"{what} takes {length} bytes, {self._end - at} are left")
        self._at = after
        return self._view[at:after]

    def _number(self, layout: Struct, what: str) -> int:
        at = self._at
        after = at + layout.size
        if after > self._end:
            broken(f"{what} takes {layout.size} bytes, {self._end - at} are left")
        self._at = after
        number: int = layout.unpack_from(self._view, at)[0]
        return number

    def u8(self, what: str) -> int:
        """Return the next byte."""
        return self._number(_U8, what)

    def u16(self, what: str) -> int:
        """Return the next two bytes, unsigned."""
        return self._number(_U16, what)

    def u32(self, what: str) -> int:
        """Return the next four bytes, unsigned."""
        return self._number(_U32, what)

    def i64(self, what: str) -> int:
        """Return the next eight bytes, signed."""
        return self._number(_I64, what)

    def dlsn(self, what: str) -> DLSN:
        """Return the next 24 bytes."""
        at = self._at
        if at + 24 > self._end:
            broken(f"{what} takes 24 bytes, {self._end - at} are left")
        self._at = at + 24
        return DLSN(*_DLSN.unpack_from(self._view, at))

    def fields(self, layout: Struct, what: str) -> tuple[int, ...]:
        """Return the next numbers, as `layout` has them."""
        at = self._at
        after = at + layout.size
        if after > self._end:
            broken(f"{what} takes {layout.size} bytes, {self._end - at} are left")
        self._at = after
        return layout.unpack_from(self._view, at)

    def text(self, what: str) -> str:
        """Return the next text: its length in two bytes, UTF-8."""
        at = self._at + 2
        if at > self._end:
            broken(f"the length of {what} takes 2 bytes, {self._end - self._at} are left")
        after = at + int(_U16.unpack_from(self._view, self._at)[0])
        if after > self._end:
            broken(f"{what} takes {after - at} bytes, {self._end - at} are left")
        self._at = after
        try:
            return str(self._view[at:after], "utf-8")
        except UnicodeDecodeError as error:
            broken(f"{what} is not UTF-8: {error.reason} at its byte {error.start}")

    def token(self, what: str) -> bytes:
        """Return the next short bytes, copied: their length in two bytes before them."""
        return bytes(self.blob(self.u16(f"the length of {what}"), what))

    def count(self, at_most: int, least_bytes: int, what: str) -> int:
        """Return the next four bytes, as a number of things that take `least_bytes` each."""
        number = self.u32(f"the number of {what}")
        if number > at_most:
            broken(f"{number} {what}, at most {at_most} are accepted")
        # Before anything is allocated: a frame of 20 bytes may claim thousands of payloads.
        if number * least_bytes > self._end - self._at:
            broken(f"{number} {what} do not fit in the {self._end - self._at} bytes that are left")
        return number

    def numbers(self, count: int, what: str) -> tuple[int, ...]:
        """Return the next `count` signed numbers of eight bytes."""
        found: tuple[int, ...] = unpack_from(f">{count}q", self.blob(8 * count, what))
        return found

    def lengths(self, count: int, what: str) -> tuple[int, ...]:
        """Return the next `count` unsigned numbers of four bytes."""
        if count == 1:
            return self.fields(_U32, what)
        found: tuple[int, ...] = unpack_from(f">{count}I", self.blob(4 * count, what))
        return found

    def blobs(self, lengths: Sequence[int], what: str) -> tuple[memoryview, ...]:
        """Return one view for each of `lengths`; nothing may be left behind them."""
        at, view = self._at, self._view
        if at + sum(lengths) != self._end:
            broken(f"{what} take {sum(lengths)} bytes, {self._end - at} are left")
        if len(lengths) == 1:
            self._at = self._end
            return (view[at:],)
        found = []
        for length in lengths:
            found.append(view[at : at + length])
            at += length
        self._at = at
        return tuple(found)

    def finish(self) -> None:
        """Check that nothing is left."""
        if self._at != self._end:
            broken(f"{self._end - self._at} bytes follow its last field")


class Head:
    """Puts together what goes before the payloads of a frame: room for its header, and what is appended."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray(FRAME_HEADER.size)

    def __len__(self) -> int:
        return len(self._data)

    def append(self, other: Head) -> None:
        """Append what was appended to another."""
        self._data += memoryview(other._data)[FRAME_HEADER.size :]

    def _number(self, layout: Struct, value: int, what: str) -> None:
        try:
            self._data += layout.pack(value)
        except StructError:
            raise CallerError(f"{what} is {value!r}, which does not fit in {layout.size} bytes") from None

    def u8(self, value: int, what: str) -> None:
        """Append one byte."""
        self._number(_U8, value, what)

    def u16(self, value: int, what: str) -> None:
        """Append two bytes, unsigned."""
        self._number(_U16, value, what)

    def u32(self, value: int, what: str) -> None:
        """Append four bytes, unsigned."""
        self._number(_U32, value, what)

    def i64(self, value: int, what: str) -> None:
        """Append eight bytes, signed."""
        self._number(_I64, value, what)

    def dlsn(self, value: DLSN, what: str) -> None:
        """Append 24 bytes."""
        try:
            self._data += _DLSN.pack(*value)
        except StructError:
            raise CallerError(f"{what} is {value}, and a part of it does not fit in 64 bits") from None

    def token(self, value: bytes, what: str) -> None:
        """Append the length in two bytes, and the bytes."""
        self._number(_U16, len(value), f"the length of {what}")
        self._data += value

    def text(self, value: str, what: str) -> None:
        """Append the length in two bytes, and the text in UTF-8."""
        self.token(utf8(value, what), what)

    def rows(self, layout: Struct, rows: Iterable[Sequence[int]], what: str) -> None:
        """Append one row of numbers after the other, each as `layout` has them."""
        try:
            self._data += b"".join([layout.pack(*row) for row in rows])
        except StructError:
            raise CallerError(f"{what} has a part that does not fit") from None

    def numbers(self, values: Sequence[int], what: str) -> None:
        """Append eight bytes for each, signed."""
        try:
            self._data += pack(f">{len(values)}q", *values)
        except StructError:
            raise CallerError(f"one of {what} does not fit in 64 bits") from None

    def lengths(self, values: Sequence[int], at_most: int, what: str) -> None:
        """Append their number and four bytes for each."""
        if len(values) > at_most:
            raise RecordTooLongError(f"{len(values)} {what}, at most {at_most} fit in one frame; nothing was sent")
        self._data += pack(f">{len(values) + 1}I", len(values), *values)

    def framed(
        self, kind: int, flags: int, correlation: int, payloads: Sequence[Buffer] = (), payload_bytes: int = 0
    ) -> list[Buffer]:
        """Return the frame, its length first. Raises RecordTooLongError where it is longer than a frame may be."""
        length = len(self._data) - LENGTH_BYTES + payload_bytes
        check_length(length)
        FRAME_HEADER.pack_into(self._data, 0, length, FRAME_VERSION, kind, flags, correlation)
        return [self._data, *payloads]


def check_length(length: int) -> None:
    """Raise RecordTooLongError where no frame can have this length."""
    if length > MAX_FRAME_BYTES - LENGTH_BYTES:
        raise RecordTooLongError(
            f"{length} bytes do not fit in a frame of {MAX_FRAME_BYTES}; nothing was sent",
            advice="Send fewer payloads at a time",
        )


def utf8(value: str, what: str) -> bytes:
    """Return a text's bytes. Raises CallerError for what has none: half a character of UTF-16."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise CallerError(f"{what} {value!r} cannot be written in UTF-8") from None
