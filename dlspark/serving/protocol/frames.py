"""Requests and answers as frames on the storage transport, and back (docs/reference/serving.md#frames). No I/O.

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
"""

from __future__ import annotations

from dlspark.serving.protocol import answer_frames, request_frames
from dlspark.serving.protocol.frame_parts import FRAME_VERSION, HEADER, broken
from dlspark.serving.protocol.operations import Answer, Request
from storage_node.protocol.frames import Buffer

_REQUEST_ENCODERS, _REQUEST_DECODERS = request_frames.ENCODERS, request_frames.DECODERS
_ANSWER_ENCODERS, _ANSWER_DECODERS = answer_frames.ENCODERS, answer_frames.DECODERS


def encode_request(correlation: int, request: Request) -> list[Buffer]:
    """Return the frame of a request, its length first. `correlation` is from 0 to 2^64 - 1.

    Raises CallerError for a field that does not fit, RecordTooLongError for a frame that would be too long.
    """
    return _REQUEST_ENCODERS[type(request)](correlation, request)


def decode_request(frame: memoryview) -> tuple[int, Request]:
    """Return the correlation number and the request of a frame, without its length. Raises ProtocolError and nothing
    else."""
    if len(frame) < HEADER.size:
        broken(f"it has {len(frame)} bytes, its header alone takes {HEADER.size}")
    version, kind, flags, correlation = HEADER.unpack_from(frame)
    if version != FRAME_VERSION:
        broken(f"it has version {version}, this side speaks {FRAME_VERSION}")
    known = _REQUEST_DECODERS.get(kind)
    if known is None:
        broken(f"its kind is {kind}, which is not a request's")
    if flags & ~known[0]:
        broken(f"a request of kind {kind} has the flags {flags:#x}, of which {flags & ~known[0]:#x} are unknown")
    return correlation, known[1](frame, flags)


def encode_answer(correlation: int, answer: Answer) -> list[Buffer]:
    """Return the frame of an answer to the request with that number. Raises as `encode_request` does."""
    return _ANSWER_ENCODERS[type(answer)](correlation, answer)


def decode_answer(frame: memoryview) -> tuple[int, Answer]:
    """Return the request's number and the answer of a frame, without its length. Raises ProtocolError and nothing
    else."""
    if len(frame) < HEADER.size:
        broken(f"it has {len(frame)} bytes, its header alone takes {HEADER.size}")
    version, kind, flags, correlation = HEADER.unpack_from(frame)
    if version != FRAME_VERSION:
        broken(f"it has version {version}, this side speaks {FRAME_VERSION}")
    known = _ANSWER_DECODERS.get(kind)
    if known is None:
        broken(f"its kind is {kind}, which is not an answer's")
    if flags & ~known[0]:
        broken(f"an answer of kind {kind} has the flags {flags:#x}, of which {flags & ~known[0]:#x} are unknown")
    return correlation, known[1](frame, flags)
