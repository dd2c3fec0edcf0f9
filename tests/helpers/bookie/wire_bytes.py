"""Bytes that a well-behaved client never sends to a storage node, and what the node makes of them."""

from __future__ import annotations

import socket
from struct import Struct

from storage_node.errors import ERROR_OF_STATUS, ConnectionClosedError
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.schema import Status
from storage_node.protocol.values import Response

ANSWER_S = 10
_LENGTH = Struct(">i")


def varint(value: int) -> bytes:
    """Return a protobuf varint of a value of 64 bits (negative ones in two's complement)."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def request(operation: int, *parts: bytes, version: int = 3, txn_id: int = 77) -> bytes:
    """Return a whole frame of a version 3 request whose header is in order."""
    return frame(block(1, number(1, version) + number(2, operation) + number(3, txn_id)) + b"".join(parts))


def send(port: int, data: bytes, *, half_close: bool = False) -> Response:
    """Send raw bytes to a node; its answer.

    Raises the error that stands for an answer other than EOK, and ConnectionClosedError where the node ends the
    connection instead of answering.
    """
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        body = _receive_frame(connection)
    answer = decode_response(memoryview(body))
    if answer.status is not Status.EOK:
        raise ERROR_OF_STATUS[answer.status](f"the node answers {answer.status.name}")
    return answer


def _receive_frame(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < 4 or len(received) < 4 + _LENGTH.unpack(received[:4])[0]:
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            more = b""
        if not more:
            raise ConnectionClosedError("the node closed the connection")
        received += more
    return received[4:]
