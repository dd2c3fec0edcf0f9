"""Arrow arrays over memory that there is already.

`pyarrow.array` imports pandas where that is installed, which takes a process half a second and 40 MB; and it does so in
the thread that calls it first, as an event loop's. These do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Integers: TypeAlias = "npt.NDArray[np.int64] | Sequence[int]"
_Integer = TypeVar("_Integer", np.int32, np.int64)


def new_column(length: int, dtype: type[_Integer]) -> npt.NDArray[_Integer]:
    """Return room for a column, from Arrow's pool: it keeps pages where malloc returns them, to be faulted in again."""
    return np.frombuffer(pa.allocate_buffer(length * np.dtype(dtype).itemsize), dtype)


def int64_array(
    numbers: _Integers, type_: pa.DataType | None = None, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return numbers as an array, of their own or another type of 64 bits; null where they are not `valid`."""
    whole = np.ascontiguousarray(numbers, np.int64)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type_ or pa.int64(), len(whole), [bits, pa.py_buffer(whole)])


def bool_array(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Return truth values as an array."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def numbers_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the numbers of a column of 64 bits without nulls; they share its memory."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def binary_array(payloads: Sequence[bytes], type_: pa.DataType | None = None) -> pa.Array:
    """Return payloads as an array of bytes, or of text if that is the type."""
    bounds = np.zeros(len(payloads) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, payloads), np.int32, len(payloads)), out=bounds[1:])
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(type_ or pa.binary(), len(payloads), buffers)


def repeated_text(text: str, count: int) -> pa.Array:
    """Return the same text `count` times; no step of the interpreter is taken for each."""
    value = text.encode()
    bounds = new_column(count + 1, np.int32)
    bounds[0] = 0
    bounds[1:] = len(value)
    np.cumsum(bounds, out=bounds)
    data = pa.allocate_buffer(count * len(value))
    if value:
        np.frombuffer(data, (np.void, len(value)))[:] = np.void(value)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), data])
