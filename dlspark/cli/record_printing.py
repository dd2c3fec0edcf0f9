"""`RecordPrinter`: records of a log in the forms of `record_forms`, printed by columns.

Nothing runs for each record where its payload is plain: printable ASCII that needs no escape in its form. The payloads
of others are printed by `record_forms`, one by one, and the lines around them by columns as well.
"""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from dlspark.cli.record_forms import LENGTH, RecordOutput, bounds_of, delimiter_of, payload_as_json, payload_as_text
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_Part: TypeAlias = "pa.Array | bytes"
_PLAIN: Final = bytes(range(0x20, 0x7F))
"""Bytes that a terminal of every usual encoding shows as they are."""
_PLAIN_JSON: Final = _PLAIN.translate(None, b'"\\')
_PLACE: Final = ("segment", "entry", "slot")
_NUMBERS: Final = ("transaction_id", "sequence_id")
_DLSN_WIDTH: Final = 16
_TXID_WIDTH: Final = 15


class RecordPrinter:
    """Prints records in one form."""

    def __init__(self, out: BinaryIO, encoding: str, form: RecordOutput, delimiter: str | None) -> None:
        """Print in a form; `encoding` is that of the terminal; characters that it lacks are printed as escapes. Raises
        CallerError.
        """
        self._out = out
        self._form = form
        self._delimiter = delimiter_of(delimiter, form)
        self._encoding = encoding
        self._utf8 = codecs.lookup(encoding).name == "utf-8"
        self._ambiguous = 0

    def print(self, rows: pa.RecordBatch, *, as_hex: bool = False, payload: bool = True) -> None:
        """Print records, as columns of `ROW_SCHEMA`. Raises OSError, among them BrokenPipeError."""
        if not len(rows):
            return
        values = rows.column("value")
        if self._form is RecordOutput.RAW:
            data = self._raw(values)
        elif self._form is RecordOutput.LENGTH_PREFIXED:
            data = _text(_joined(_lengths(values), values))
        else:
            lines = self._json if self._form is RecordOutput.JSON else self._table
            data = _text(lines(rows, as_hex=as_hex, payload=payload))
            if not self._utf8:
                data = memoryview(bytes(data).decode().encode(self._encoding, "backslashreplace"))
        self._out.write(data)

    def note(self) -> str | None:
        """Return the warning, for readers of what was printed, that its records run into each other."""
        if not self._ambiguous:
            return None
        holds = counted(self._ambiguous, "record holds", "records hold")
        return f"{holds} the delimiter: where it ends cannot be seen; --output json or length-prefixed shows that"

    def _raw(self, values: pa.BinaryArray) -> memoryview:
        import pyarrow.compute as pc

        ended = _joined(values, self._delimiter)
        # Also one whose last bytes and the delimiter behind it make an earlier delimiter.
        early = pc.less(pc.find_substring(ended, self._delimiter), pc.binary_length(values))
        self._ambiguous += pc.sum(early).as_py()
        return _text(ended)

    def _table(self, rows: pa.RecordBatch, *, as_hex: bool, payload: bool) -> pa.BinaryArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = rows.column("value")
        if not payload:
            texts = _sizes(values)
        elif as_hex:
            texts = _hex(values)
        else:
            odd = _odd(values, _PLAIN)
            texts = _replaced(values, odd, [payload_as_text(one).encode() for one in _some(values, odd)])
        place = pc.ascii_rpad(_dlsns(rows).cast(pa.string()), _DLSN_WIDTH).cast(pa.binary())
        txid = pc.ascii_lpad(rows.column("transaction_id").cast(pa.string()), _TXID_WIDTH).cast(pa.binary())
        return _joined(place, b" ", txid, b"  ", texts, b"\n")

    def _json(self, rows: pa.RecordBatch, *, as_hex: bool, payload: bool) -> pa.BinaryArray:
        def field(one: bytes) -> bytes:
            return json.dumps(payload_as_json(one), ensure_ascii=not self._utf8)[1:-1].encode()

        values = rows.column("value")
        txid, sequence_id = (_decimal(rows.column(name)) for name in _NUMBERS)
        parts: list[_Part] = [b'{"dlsn": "', _dlsns(rows), b'", "transaction_id": ', txid]
        parts += [b', "sequence_id": ', sequence_id]
        if payload and as_hex:
            parts += [b', "value_hex": "', _hex(values), b'"']
        elif payload:
            odd = _odd(values, _PLAIN_JSON)
            fields = [field(one) for one in _some(values, odd)]
            parts += [b", ", _replaced(_joined(b'"value": "', values, b'"'), odd, fields)]
        return _joined(*parts, b"}\n")


def _joined(*parts: _Part) -> pa.BinaryArray:
    """Return the parts of each row, one behind the other; bytes are a part of every row."""
    import pyarrow.compute as pc

    from dlspark.core.codec.arrow_arrays import binary_array

    columns = [binary_array([one])[0] if isinstance(one, bytes) else one for one in (*parts, b"")]
    return pc.binary_join_element_wise(*columns)


def _bytes_and_bounds(values: pa.BinaryArray) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """Return the bytes of all rows, and where in them each begins and the last one ends."""
    bounds = bounds_of(values)
    data = values.buffers()[2]
    whole = memoryview(data if data is not None else b"")
    return whole[int(bounds[0]) : int(bounds[-1])], bounds - bounds[0]


def _text(values: pa.BinaryArray) -> memoryview:
    return _bytes_and_bounds(values)[0]


def _of(data: bytes | npt.NDArray[np.uint8], bounds: npt.NDArray[np.int32]) -> pa.BinaryArray:
    import pyarrow as pa

    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _dlsns(rows: pa.RecordBatch) -> pa.BinaryArray:
    segment, entry, slot = (_decimal(rows.column(one)) for one in _PLACE)
    return _joined(segment, b":", entry, b":", slot)


def _decimal(numbers: pa.Array) -> pa.BinaryArray:
    import pyarrow as pa

    return numbers.cast(pa.string()).cast(pa.binary())


def _lengths(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return the four bytes before each payload."""
    import numpy as np

    bounds = _bytes_and_bounds(values)[1]
    return _of(
        np.diff(bounds).astype(LENGTH.format).view(np.uint8), np.arange(len(bounds), dtype=np.int32) * LENGTH.size
    )


def _hex(values: pa.BinaryArray) -> pa.BinaryArray:
    data, bounds = _bytes_and_bounds(values)
    return _of(data.hex().encode(), 2 * bounds)


def _sizes(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return how long each payload is, for people."""
    import numpy as np

    from dlspark.core.codec.arrow_arrays import binary_array, int64_array

    sizes, which = np.unique(np.diff(_bytes_and_bounds(values)[1]), return_inverse=True)
    return binary_array([counted(int(size), "byte").encode() for size in sizes]).take(int64_array(which))


def _odd(values: pa.BinaryArray, plain: bytes) -> npt.NDArray[np.int64]:
    """Return which rows hold other bytes than those."""
    import numpy as np

    data, bounds = _bytes_and_bounds(values)
    is_odd = np.ones(256, bool)
    is_odd[list(plain)] = False
    at = np.flatnonzero(is_odd[np.frombuffer(data, np.uint8)])
    return np.unique(np.searchsorted(bounds, at, side="right") - 1)


def _some(values: pa.BinaryArray, rows: npt.NDArray[np.int64]) -> list[bytes]:
    from dlspark.core.codec.arrow_arrays import int64_array

    found: list[bytes] = values.take(int64_array(rows)).to_pylist()
    return found


def _replaced(values: pa.BinaryArray, rows: npt.NDArray[np.int64], by: list[bytes]) -> pa.BinaryArray:
    """Return the array with other values in some rows."""
    import numpy as np
    import pyarrow.compute as pc

    from dlspark.core.codec.arrow_arrays import binary_array, bool_array

    if not by:
        return values
    mask = np.zeros(len(values), bool)
    mask[rows] = True
    return pc.replace_with_mask(values, bool_array(mask), binary_array(by))
