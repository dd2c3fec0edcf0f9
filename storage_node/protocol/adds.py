"""The frames of one ledger's adds, from a template: the request, and the answer it will get.

An EOK answer says nothing but what the request said: transaction id, ledger, entry. Its canonical bytes are therefore
known when the request is sent, and recognising them is one dictionary look-up instead of decoding; any other answer
(errors, other field orders) takes the ordinary way through `encoding`. A property in the tests holds both
byte strings to what that module encodes.
"""

from __future__ import annotations

from struct import Struct
from typing import TypeAlias

from metadata.foundation import compiled
from metadata.foundation.errors import CallerError
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.encoding import RECOVERY_PRIORITY
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.wire import varint

_PREFIX = Struct(">i")
_HEADER = b"\x08\x03\x10" + varint(Operation.ADD) + b"\x18"
_ADD = b"\xaa\x06"
_VARINT_LENGTHS = range(11)
_RECOVERY_FLAG = b"\xa0\x06\x01"
_DEFERRED_SYNC = b"\x28\x01"


Add: TypeAlias = tuple[int, int, int, int, tuple[Buffer, ...]]
"""An entry to be sent: its id, the LAC and the length that it carries, its payload's size, its payload."""


def check_size(entry_id: int, size: int, payload: tuple[Buffer, ...]) -> None:
    """Raise CallerError where a payload has another size than when it was added: the frame would announce that one, and
    what stands behind it on the connection, of other ledgers too, would be read as a part of it, or not at all."""
    found = sum(map(len, payload))
    if found != size:
        raise CallerError(
            f"the payload of entry {entry_id} had {size} bytes when it was added, and has {found} now",
            advice="Leave a buffer as it is until its add is done, or add a copy: bytes(buffer)",
        )


class AddTemplate:
    """Everything of an add that does not change from entry to entry, cut up around what does."""

    __slots__ = (
        "_answer_ends",
        "_answer_starts",
        "_core_fields",
        "_fixed",
        "_ids",
        "_key",
        "_ledger_id",
        "_middle",
        "_outer",
        "_parts",
        "_shape",
        "_starts",
        "tail",
    )

    def __init__(
        self, ledger_id: int, master_key: bytes, *, recovery: bool = False, deferred_sync: bool = False
    ) -> None:
        self._ledger_id = ledger_id
        ledger = varint(ledger_id)
        priority = b"\x20" + varint(RECOVERY_PRIORITY) if recovery else b""
        self.tail = (_DEFERRED_SYNC if deferred_sync else b"") + (_RECOVERY_FLAG if recovery else b"")
        """The fields behind the body in every frame."""
        self._ids = b"\x08" + ledger + b"\x10"
        self._key = b"\x1a" + varint(len(master_key)) + master_key + b"\x22"
        self._middle = priority + _ADD
        self._core_fields = (master_key, priority, self.tail)
        self._fixed = len(self._ids) + len(self._key) + len(self.tail)
        self._outer = 2 + len(_HEADER) + len(self._middle)
        # Beginnings by the length of the transaction id, ends by the length of the entry id.
        self._starts = [b"\x0a" + varint(len(_HEADER) + n + len(priority)) + _HEADER for n in _VARINT_LENGTHS]
        self._answer_starts = [b"\x0a" + varint(len(_HEADER) + n) + _HEADER for n in _VARINT_LENGTHS]
        status = varint(Status.EOK)
        ids = b"\x08" + status + b"\x10" + ledger + b"\x18"
        self._answer_ends = [b"\x10" + status + _ADD + varint(len(ids) + n) + ids for n in _VARINT_LENGTHS]
        self._shape = (-1, -1, -1)
        self._parts = (b"", b"", b"", b"")

    def frames(self, txn_id: int, entry_id: int, body_length: int) -> tuple[bytes, bytes]:
        """Return what goes before the body of `body_length` bytes, and the EOK frame that will answer."""
        txn, entry = varint(txn_id), varint(entry_id)
        txn_length, entry_length = len(txn), len(entry)
        shape = (txn_length, entry_length, body_length)
        if shape != self._shape:
            self._shape, self._parts = shape, self._around(*shape)
        start, middle, end, answer_start = self._parts
        answer = b"".join((answer_start, txn, self._answer_ends[entry_length], entry))
        return b"".join((start, txn, middle, entry, end)), answer

    def run(self, digest: EntryDigest, first_txn_id: int, adds: list[Add]) -> tuple[bytes, bytes, bytes, int]:
        """Package adds under transaction ids in a row. Return their frames, the EOK frames that will answer them, the
        entries' headers, each kind one behind the other; and the length of every EOK frame, 0 where they differ. Raises
        CallerError where a payload has not the size that its add gives."""
        core = compiled.core
        if core is not None and digest.is_checksum:
            ids = (self._ledger_id, first_txn_id)
            encoded = core.encode_adds(digest.digest_size, ids, self._core_fields, adds)
            if encoded is not None:
                return encoded
        frames: list[Buffer] = []
        answers: list[bytes] = []
        headers: list[bytes] = []
        ledger_id, tail = self._ledger_id, self.tail
        for txn_id, (entry_id, lac, length, size, payload) in enumerate(adds, first_txn_id):
            check_size(entry_id, size, payload)
            header = digest.package(ledger_id, entry_id, lac, length, *payload)
            head, answer = self.frames(txn_id, entry_id, len(header) + size)
            frames += (head, header, *payload, tail)
            answers.append(answer)
            headers.append(header)
        sizes = set(map(len, answers))
        return b"".join(frames), b"".join(answers), b"".join(headers), sizes.pop() if len(sizes) == 1 else 0

    def _around(self, txn_length: int, entry_length: int, body_length: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Return what goes before, between and behind the two ids, and what goes before the first of them in the
        answer; mostly the same as for the entry before."""
        size = varint(body_length)
        message = self._fixed + entry_length + len(size) + body_length
        length = varint(message)
        start = _PREFIX.pack(self._outer + txn_length + len(length) + message) + self._starts[txn_length]
        answer_start = self._answer_starts[txn_length]
        answer = len(answer_start) + txn_length + len(self._answer_ends[entry_length]) + entry_length
        return start, self._middle + length + self._ids, self._key + size, _PREFIX.pack(answer) + answer_start
