"""Records to write: Arrow arrays of about 100 B and 1 KB, all of one length or of any, made once and from one seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.vector_encoding import encode_entries

_SEED = 20_130_701
_FIRST_TXID = 1_357_034_400_000
BATCH_BYTES = 4 << 20
ENTRY_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of records, to be written over and over."""

    name: str
    txids: npt.NDArray[np.int64]
    payloads: pa.BinaryArray

    def entries(self) -> list[bytes]:
        """Return the batch as entries of 256 KB."""
        encoded = encode_entries(self.txids, self.payloads, first_position=1, max_entry_bytes=ENTRY_BYTES)
        return [b"".join(entry.buffers) for entry in encoded]


def equal_lengths(length: int) -> Records:
    """Make some 4 MB of records of one length, text-like."""
    return _records(f"{_size(length)} equal lengths", np.full(BATCH_BYTES // (length + 20), length))


def any_lengths(mean: int) -> Records:
    """Make some 4 MB of records of 0.6 to 1.4 times the mean length, text-like."""
    count = BATCH_BYTES // (mean + 20)
    lengths = np.random.default_rng(_SEED).integers(int(mean * 0.6), int(mean * 1.4) + 1, count)
    return _records(f"{_size(mean)} any length", lengths)


def _records(name: str, lengths: npt.NDArray[np.int64]) -> Records:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    text = np.random.default_rng(_SEED).integers(32, 127, int(offsets[-1]), np.uint8)
    payloads = pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return Records(name, _FIRST_TXID + 60_000 * np.arange(len(lengths), dtype=np.int64), payloads)


def _size(length: int) -> str:
    return f"{length} B" if length < 1024 else f"{length // 1024} KB"
