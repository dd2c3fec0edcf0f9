r"""How records stand in a pipe: `dlspark write` takes what `dlspark read` prints, under the same name.

| form | a record is | what is kept |
|---|---|---|
| `raw` | its bytes, then the delimiter (a line feed) | every byte, where no record holds the delimiter |
| `json` | an object on a line: `value`, or `value_base64` where it is not UTF-8, or `value_hex` | every byte, and ids |
| `length-prefixed` | four bytes, its length with the highest byte first, then its bytes | every byte |

`read` prints for people besides, one line a record (`table`). Nothing is added to a record, and nothing taken from it:
a carriage return before the line feed is the record's.

A `Splitter` cuts what was read into records, in blocks, as columns: nothing of it runs for each record where the form
allows that. It says why a record cannot be taken (`Taken.refusal`), together with those before it, which can.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from dlspark.cli.common import Json
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from dlspark.core.codec.records import LogRecord

NEW_LINE: Final = "\\n"
LENGTH: Final = struct.Struct(">I")
MAX_PAYLOAD_BYTES: Final = 1_040_364
"""As in dlspark.core.codec.records, which is not imported for `--help`; a test holds them equal."""
_MAX_JSON_LINE: Final = 8 * MAX_PAYLOAD_BYTES
"""A payload may take six bytes of JSON for each of its own."""
_NO_TXID: Final = "has no transaction_id that a record may have: a whole number from 0 on"
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_VALUES: Final = ("value", "value_base64", "value_hex")
_FIELDS: Final = (*_VALUES, "transaction_id", "dlsn", "sequence_id")
_PLAIN_OBJECT: Final = re.compile(
    rb'\{(?:"dlsn": ?"[^"\\\x00-\x1f]*", ?)?(?:"transaction_id": ?(0|[1-9][0-9]{0,17}), ?)?'
    rb'(?:"sequence_id": ?-?(?:0|[1-9][0-9]{0,18}), ?)?"value": ?"([^"\\\x00-\x1f]*)"\}'
)
"""What `read` prints of a payload without escapes, and objects of a value alone: a field twice is none of these."""


class RecordInput(str, Enum):
    """How `write` finds records in what it reads."""

    RAW = "raw"
    JSON = "json"
    LENGTH_PREFIXED = "length-prefixed"


class RecordOutput(str, Enum):
    """How `read` prints records."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"
    LENGTH_PREFIXED = "length-prefixed"


def delimiter_of(text: str | None, form: RecordInput | RecordOutput) -> bytes:
    r"""Return the bytes between raw records that an option names: `\n`, `\0`, `\r\n`, `\x1e`, `--`. Raises
    CallerError.
    """
    if text is not None and form not in (RecordInput.RAW, RecordOutput.RAW):
        raise CallerError(f"records in the form {form.value} have no delimiter; nothing was done")

    def escaped(found: re.Match[str]) -> str:
        what = found[1]
        if len(what) > 1:
            return chr(0xDC00 + int(what[1:], 16)) if int(what[1:], 16) > 0x7F else chr(int(what[1:], 16))
        if what not in _ESCAPES:
            raise CallerError(
                f"--delimiter {text!r} has the unknown escape \\{what}; nothing was done",
                advice=r"Known are \n, \r, \t, \0, \\ and \xHH",
            )
        return _ESCAPES[what]

    # Bytes of no text pass as the surrogates by which Python also has them in arguments.
    found = _ESCAPE.sub(escaped, text if text is not None else NEW_LINE).encode("utf-8", "surrogateescape")
    if not found:
        raise CallerError("--delimiter is empty; nothing was done", advice=r"Give it bytes, as '\0'")
    return found


# ---------------------------------------------------------------------- in


@dataclass(frozen=True, slots=True)
class Taken:
    """Records in the order in which they were read, and why the one behind them is none."""

    payloads: pa.BinaryArray
    txids: npt.NDArray[np.int64] | None = None
    """Their transaction ids, where the input says them."""
    refusal: str | None = None


class Splitter:
    """Cuts input into records."""

    unit = "record"
    """The name of a record where its number is said."""

    def __init__(self) -> None:
        self.taken = 0
        """Records so far."""
        self._rest = b""

    @property
    def incomplete(self) -> int:
        """Bytes of a record whose end was not read."""
        return len(self._rest)

    def feed(self, data: bytes) -> Taken:
        """Return the records that end in `data`."""
        found = self._cut(self._rest + data if self._rest else data)
        self.taken += len(found.payloads)
        return found

    def end(self) -> Taken:
        """Return the record that the end of the input ends."""
        found = self._last()
        self.taken += len(found.payloads)
        self._rest = b""
        return found

    def _cut(self, data: bytes) -> Taken:
        """Return the records of `data`; `_rest` becomes what is left of it."""
        raise NotImplementedError

    def _last(self) -> Taken:
        raise NotImplementedError

    def _refused(self, before: int, why: str) -> str:
        """Return the refusal of the record that comes `before` others of this block."""
        return f"{self.unit} {self.taken + before + 1:,} {why}"


class RawSplitter(Splitter):
    """Records between delimiters; the last one needs none."""

    def __init__(self, delimiter: bytes) -> None:
        super().__init__()
        self._delimiter = delimiter
        if delimiter == b"\n":
            self.unit = "line"

    def _cut(self, data: bytes) -> Taken:
        import numpy as np
        import pyarrow.compute as pc

        parts = pc.split_pattern(_one(data), self._delimiter).values
        self._rest = parts[-1].as_py()
        payloads = parts[:-1]
        # The rest may end with a part of the delimiter, which is not the record's.
        too_long = len(self._rest) > MAX_PAYLOAD_BYTES + len(self._delimiter) - 1
        lengths = np.diff(bounds_of(payloads))
        if lengths.max(initial=0) > MAX_PAYLOAD_BYTES:
            at = int(np.argmax(lengths > MAX_PAYLOAD_BYTES))
            return Taken(payloads[:at], refusal=self._refused(at, _too_long(int(lengths[at]))))
        if too_long:
            return Taken(payloads, refusal=self._refused(len(payloads), _too_long(None)))
        return Taken(payloads)

    def _last(self) -> Taken:
        if len(self._rest) > MAX_PAYLOAD_BYTES:
            return Taken(_several([]), refusal=self._refused(0, _too_long(len(self._rest))))
        return Taken(_several([self._rest] if self._rest else []))


class PrefixedSplitter(Splitter):
    """Records behind their lengths."""

    def _cut(self, data: bytes) -> Taken:
        payloads: list[bytes] = []
        at, end = 0, len(data)
        unpack = LENGTH.unpack_from
        while end - at >= LENGTH.size:
            size = unpack(data, at)[0]
            # By the length alone: four bytes of another form would have up to 4 GiB read before anything is noticed.
            if size > MAX_PAYLOAD_BYTES:
                self._rest = b""
                return Taken(_several(payloads), refusal=self._refused(len(payloads), _too_long(size)))
            if end - at - LENGTH.size < size:
                break
            at += LENGTH.size + size
            payloads.append(data[at - size : at])
        self._rest = data[at:]
        return Taken(_several(payloads))

    def _last(self) -> Taken:
        if not self._rest:
            return Taken(_several([]))
        return Taken(
            _several([]), refusal=self._refused(0, f"is cut off: the input ends {self.incomplete} bytes into it")
        )


class JsonSplitter(Splitter):
    """Records as JSON objects, one a line."""

    unit = "line"

    def __init__(self, *, keep_txids: bool) -> None:
        """Cut objects; with `keep_txids` each says its transaction id."""
        super().__init__()
        self._keep = keep_txids

    def _cut(self, data: bytes) -> Taken:
        lines = data.split(b"\n")
        self._rest = lines.pop()
        taken = self._parsed(lines)
        if taken.refusal is None and len(self._rest) > _MAX_JSON_LINE:
            refusal = self._refused(len(lines), "is longer than the JSON of any record")
            return Taken(taken.payloads, taken.txids, refusal)
        return taken

    def _last(self) -> Taken:
        return self._parsed([self._rest] if self._rest else [])

    def _parsed(self, lines: Sequence[bytes]) -> Taken:
        payloads: list[bytes] = []
        txids: list[int] = []
        refusal: str | None = None
        for line in lines:
            try:
                payload, txid = _plain_record(line) or _record(line, keep=self._keep)
                if self._keep and txid is None:
                    raise ValueError(_NO_TXID)
            except ValueError as error:
                refusal = self._refused(len(payloads), str(error))
                break
            payloads.append(payload)
            txids.append(txid or 0)
        return Taken(_several(payloads), _ids(txids) if self._keep else None, refusal)


def _one(data: bytes) -> pa.BinaryArray:
    """Return an array of one value, which is not copied."""
    import numpy as np
    import pyarrow as pa

    bounds = np.array([0, len(data)], np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def bounds_of(payloads: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Return where in the array's bytes each payload begins, and the last one ends."""
    import numpy as np

    # Not `to_numpy`, which imports pandas as `pyarrow.array` does.
    offsets = np.frombuffer(payloads.buffers()[1], np.int32)
    return offsets[payloads.offset : payloads.offset + len(payloads) + 1]


def payload_bytes(payloads: pa.BinaryArray) -> int:
    """Return how many bytes the payloads have together."""
    bounds = bounds_of(payloads)
    return int(bounds[-1] - bounds[0])


def _several(payloads: list[bytes]) -> pa.BinaryArray:
    from dlspark.core.codec.arrow_arrays import binary_array

    return binary_array(payloads)


def _ids(txids: list[int]) -> npt.NDArray[np.int64]:
    import numpy as np

    return np.array(txids, np.int64)


def _plain_record(line: bytes) -> tuple[bytes, int | None] | None:
    """Return payload and transaction id of an object as most are, of which json would say the same; None of others."""
    found = _PLAIN_OBJECT.fullmatch(line)
    if found is None:
        return None
    txid, payload = found.groups()
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError:
            return None  # json says what is wrong
    if len(payload) > MAX_PAYLOAD_BYTES:
        return None
    return payload, None if txid is None else int(txid)


def _record(line: bytes, *, keep: bool) -> tuple[bytes, int | None]:
    """Return payload and, with `keep`, transaction id of any object. Raises ValueError for one that is no record."""
    fields = _object(line)
    return _payload(fields), _txid(fields) if keep else None


class _JsonObject(dict[str, object]):
    """An object's fields. JSON lets a name come twice, and all but the last value would be lost."""

    def __init__(self, pairs: Sequence[tuple[str, object]]) -> None:
        super().__init__(pairs)
        counts = Counter(name for name, _ in pairs) if len(self) < len(pairs) else Counter()
        self.repeated = counts.most_common(1)[0][0] if counts else None


def _object(line: bytes) -> dict[str, object]:
    try:
        # Not the bytes, of which json guesses the encoding: a line of UTF-16 ends within its line feed.
        fields = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_JsonObject)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(fields, _JsonObject):
        raise ValueError("is not a JSON object")
    if fields.repeated is not None:
        raise ValueError(f"has the field {fields.repeated!r} more than once")
    unknown = fields.keys() - set(_FIELDS)
    if unknown:
        name = min(unknown)
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        raise ValueError(f"has the unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return fields


def _payload(fields: dict[str, object]) -> bytes:
    given = fields.keys() & set(_VALUES)
    if len(given) != 1:
        raise ValueError(f"has {'no value' if not given else 'several values'}: give one of {', '.join(_VALUES)}")
    name = given.pop()
    text = fields[name]
    if not isinstance(text, str):
        raise ValueError(f"has a {name} that is not text")
    try:
        if name == "value_base64":
            payload = base64.b64decode(text, validate=True)
        elif name == "value_hex":
            payload = bytes.fromhex(text)
        else:
            payload = text.encode()
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"has a {name} that cannot be read: {error}") from None
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(_too_long(len(payload)))
    return payload


def _txid(fields: dict[str, object]) -> int:
    txid = fields.get("transaction_id")
    if isinstance(txid, bool) or not isinstance(txid, int) or not 0 <= txid < 2**63 - 1:
        raise ValueError(_NO_TXID)
    return txid


def _too_long(size: int | None) -> str:
    has = f"has {size:,} bytes, and" if size is not None else "is too long:"
    return f"{has} a record holds at most {MAX_PAYLOAD_BYTES:,}"


def splitter_of(form: RecordInput, delimiter: str | None, *, keep_txids: bool) -> Splitter:
    """Return the splitter of input in this form. Raises CallerError for options that do not go together."""
    cut = delimiter_of(delimiter, form)
    if keep_txids and form is not RecordInput.JSON:
        raise CallerError("only records in JSON have transaction ids to keep; nothing was written")
    if form is RecordInput.JSON:
        return JsonSplitter(keep_txids=keep_txids)
    return RawSplitter(cut) if form is RecordInput.RAW else PrefixedSplitter()


# ---------------------------------------------------------------------- out


def record_as_json(record: LogRecord, *, as_hex: bool = False, payload: bool = True) -> dict[str, Json]:
    """Return a record's fields, from which `write --input json` makes the same record: its payload is `value`, if it is
    UTF-8, else `value_base64`; or `value_hex`.
    """
    fields: dict[str, Json] = {
        "dlsn": str(record.dlsn),
        "transaction_id": record.txid,
        "sequence_id": record.sequence_id,
    }
    if not payload:
        return fields
    data = bytes(record.payload)
    return fields | ({"value_hex": data.hex()} if as_hex else payload_as_json(data))


def payload_as_json(payload: bytes) -> dict[str, Json]:
    """Return a payload as a field: `value`, if it is UTF-8, else `value_base64`."""
    try:
        return {"value": payload.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(payload).decode("ascii")}


def record_as_text(record: LogRecord, *, as_hex: bool = False, payload: bool = True) -> str:
    """Return a record on one line, without control characters; without its payload how long that is."""
    if not payload:
        text = counted(len(record.payload), "byte")
    elif as_hex:
        text = bytes(record.payload).hex()
    else:
        text = payload_as_text(bytes(record.payload))
    return f"{record.dlsn!s:<16} {record.txid:>15}  {text}"


def payload_as_text(payload: bytes) -> str:
    """Return a payload without control characters: a line feed would end the line, an escape sequence command the
    terminal."""
    text = payload.decode("utf-8", errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
