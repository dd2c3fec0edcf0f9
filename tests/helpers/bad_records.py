"""Records that do not fit their log's schema, by kinds, with what the error of each says: one list for all tests.

Each kind is one record of a log that declares `COLUMNS` (`declared`), with transaction ids up to `TXID`. `good_record`
is one that fits, and `GOOD` the row that it holds.
"""

from __future__ import annotations

import datetime as dt
import io
import struct
from dataclasses import dataclass, replace
from decimal import Decimal as Number
from functools import cache

import pyarrow as pa

from dlspark.tables.arrow_types import arrow_schema, schema_from_arrow
from dlspark.tables.avro_encoding import MARKER, fingerprint
from dlspark.tables.avro_schema import avro_schema
from dlspark.tables.codecs import RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("x", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("name", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("place", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.string())])),
        pa.field("by", pa.map_(pa.int32(), pa.int32())),
    ]
)
AT = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)
TXID = int(AT.timestamp() * 1000)
"""The transaction id of each record: the time of the good ones."""
GOOD: dict[str, object] = {
    "id": 1,
    "at": AT,
    "n": 5,
    "price": Number("12.50"),
    "x": 0.5,
    "f": 0.25,
    "name": "tea",
    "data": b"\x00\xff",
    "day": dt.date(2026, 11, 1),
    "clock": dt.datetime(2026, 11, 1, 12),
    "tags": ["a"],
    "place": {"x": 1, "y": "b"},
    "by": [(7, 1)],
}
_UNKNOWN_NUMBER, _NULLABLE_NUMBER, _TEXT_NUMBER, _OTHER_NUMBER = 6, 7, 8, 9


@dataclass(frozen=True)
class BadRecord:
    """A record that does not fit.

    Args:
        kind: What is wrong with it.
        payload: Its bytes.
        says: A pattern that its error has.
    """

    kind: str
    payload: bytes
    says: str


@cache
def declared(format_: RecordFormat, *, strict: bool = False, maps: bool = True) -> Declaration:
    """Return what the log declares; `maps`: with the column that is a map, which JSON's fast way does not read."""
    columns = COLUMNS if maps else COLUMNS.remove(len(COLUMNS) - 1)
    made = Declaration.of(format_, schema_from_arrow(columns), timestamp="at", strict=strict)
    return replace(made, confluent=_REGISTRY) if format_ is RecordFormat.AVRO else made


def good_row(*, maps: bool = True) -> dict[str, object]:
    """Return the row of a good record."""
    return GOOD if maps else {name: value for name, value in GOOD.items() if name != "by"}


@cache
def good_record(format_: RecordFormat, *, maps: bool = True) -> bytes:
    """Return a record that fits."""
    declaration = declared(format_, maps=maps)
    rows = pa.RecordBatch.from_pylist([good_row(maps=maps)], schema=arrow_schema(declaration.current))
    (payload,) = RecordEncoder(declaration).encode(rows).payloads.to_pylist()
    assert isinstance(payload, bytes)
    return payload


def bad_records(format_: RecordFormat) -> list[BadRecord]:
    """Return a record of each kind that does not fit."""
    return {RecordFormat.JSON: _json, RecordFormat.AVRO: _avro, RecordFormat.ARROW: _arrow}[format_]()


# ---------------------------------------------------------------------- JSON

_TEXTS = {
    "id": "1",
    "at": '"2026-11-01T12:00:00Z"',
    "n": "5",
    "price": "12.50",
    "x": "0.5",
    "name": '"tea"',
    "tags": '["a"]',
    "place": '{"x":1}',
}


def _but(**texts: str) -> bytes:
    """Return an object with other members, as texts of JSON; `_` in a name is nothing."""
    found = _TEXTS | texts
    return ("{" + ",".join(f'"{name}":{text}' for name, text in found.items()) + "}").encode()


def _without(name: str) -> bytes:
    return ("{" + ",".join(f'"{one}":{text}' for one, text in _TEXTS.items() if one != name) + "}").encode()


_JSON_BYTES: dict[str, tuple[bytes, str]] = {
    "an empty record": (b"", "not JSON"),
    "white space": (b"  \t ", "not JSON"),
    "a line break": (b"\n", "not JSON"),
    "an object that is cut short": (_but()[:-1], "not JSON"),
    "the rest of an object": (b'5,"n":1}', "not JSON"),
    "an opening brace": (b"{", "not JSON"),
    "a comma behind the last member": (_but()[:-1] + b",}", "not JSON"),
    "names without quotes": (b"{id:1}", "not JSON"),
    "single quotes": (b"{'id':1}", "not JSON"),
    "a comment": (_but()[:-1] + b"/* c */}", "not JSON"),
    "no JSON": (b"tea", "not JSON"),
    "null": (b"null", "is null, not an object"),
    "an object, and null": (_but() + b"null", "not JSON"),
    "an array in an object's place": (b"[" + _but() + b"]", "is an array, not an object"),
    "a number in an object's place": (b"5", "is the number 5, not an object"),
    "a string in an object's place": (b'"{}"', "is the string '{}', not an object"),
    "true in an object's place": (b"true", "is true, not an object"),
    "two objects": (_but() * 2, "not JSON"),
    "two objects on two lines": (_but() + b"\n" + _but(), "not JSON"),
    "bytes behind the object": (_but() + b" x", "not JSON"),
    "a zero byte behind the object": (_but() + b"\x00", "not JSON"),
    "bytes that are not UTF-8": (_but(name='"?"').replace(b"?", b"\xff"), "not UTF-8, from byte"),
    "a text that is cut within a character": (_but(name='"?"').replace(b"?", b"\xe2\x82"), "not UTF-8"),
    "a surrogate in UTF-8": (_but(name='"?"').replace(b"?", b"\xed\xa0\x80"), "not UTF-8"),
    "UTF-16": (_but().decode().encode("utf-16"), "not UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf" + _but(), "not JSON"),
    "compressed bytes": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "not UTF-8"),
    "an Avro record": (MARKER + bytes(8) + b"\x02", "not UTF-8"),
    "deep nesting in a member that no column has": (
        _but(more="[" * 1_000 + "]" * 1_000),
        "nested more than 200 deep",
    ),
    "deep nesting that does not end": (b'{"id":' + b"[" * 100_000, "nested more than 200 deep"),
    "a required column that is missing": (_without("id"), "column id is NOT NULL"),
}
_JSON_TEXTS: dict[str, tuple[dict[str, str], str]] = {
    "null in a required column": ({"id": "null"}, "column id is NOT NULL"),
    "a text in a number's place": ({"n": '"tea"'}, "column n is int, and the record has the string 'tea'"),
    "a number as a text": ({"n": '"5"'}, "column n is int, and the record has the string '5'"),
    "a number in a text's place": ({"name": "5"}, "column name is string"),
    "true in a number's place": ({"n": "true"}, "column n is int, and the record has true"),
    "an object in a number's place": ({"n": "{}"}, "column n is int, and the record has an object"),
    "a fraction in a whole number's place": ({"n": "1.5"}, "column n is int"),
    "an int that is too large": ({"n": "2147483648"}, "column n is int"),
    "an int that is too small": ({"n": "-2147483649"}, "column n is int"),
    "a long that is too large": ({"id": "9223372036854775808"}, "column id is long"),
    "a long of very many digits": ({"id": "9" * 5_000}, "column id is long"),
    "a huge exponent": ({"id": "1e1000000000"}, "column id is long"),
    "a huge exponent of a decimal": ({"price": "1e1000000000"}, r"column price is decimal\(9, 2\)"),
    "a decimal of too many digits": ({"price": "10000000.00"}, r"column price is decimal\(9, 2\)"),
    "a decimal with too many digits behind the point": ({"price": "0.001"}, r"column price is decimal\(9, 2\)"),
    "a decimal with underscores": ({"price": '"1_0"'}, r"column price is decimal\(9, 2\)"),
    "a decimal that is not a number": ({"price": '"NaN"'}, r"column price is decimal\(9, 2\)"),
    "a double that is too large": ({"x": "1e400"}, "column x is double"),
    "a double as a text": ({"x": '"1.5"'}, "column x is double"),
    "another word for NaN": ({"x": '"nan"'}, "column x is double"),
    "a float that is too large": ({"f": "1e39"}, "column f is float"),
    "NaN in a whole number's place": ({"n": "NaN"}, "column n is int"),
    "NaN in a decimal's place": ({"price": "NaN"}, r"column price is decimal\(9, 2\)"),
    "half a surrogate pair": ({"name": '"\\ud800"'}, "column name: half of a surrogate pair"),
    "the other half of a surrogate pair": ({"name": '"\\udc00"'}, "column name: half of a surrogate pair"),
    "a line break in a text": ({"name": '"a\nb"'}, "not JSON"),
    "a control character in a text": ({"name": '"a\x00b"'}, "not JSON"),
    "an unknown escape": ({"name": '"\\x41"'}, "not JSON"),
    "a leading zero": ({"n": "01"}, "not JSON"),
    "a number that ends in a point": ({"x": "1."}, "not JSON"),
    "a number with a plus": ({"n": "+1"}, "not JSON"),
    "a hexadecimal number": ({"n": "0x10"}, "not JSON"),
    "text that is not base64": ({"data": '"no base64!"'}, "column data is binary"),
    "a day that there is not": ({"day": '"2026-02-30"'}, "column day is date"),
    "a day as a number": ({"day": "20000"}, "column day is date"),
    "a day of the year 0": ({"day": '"0000-01-01"'}, "column day is date"),
    "a time that is none": ({"at": '"yesterday"'}, "column at is timestamptz"),
    "a time in the year 10000, by its zone": ({"at": '"9999-12-31T23:59:59-01:00"'}, "column at is timestamptz"),
    "a time that is later than the transaction id": ({"at": '"2026-11-01T12:00:01Z"'}, "later than the record's trans"),
    "a zone of a clock": ({"clock": '"2026-11-01T12:00:00Z"'}, "column clock is timestamp,"),
    "an object in a list's place": ({"tags": "{}"}, "column tags is list<string>, and the record has an object"),
    "an array in a struct's place": ({"place": "[1]"}, "column place is struct"),
    "null in a list whose elements are required": ({"tags": '["a",null]'}, "column tags.element is NOT NULL"),
    "a number in a list of texts": ({"tags": '["a",5]'}, "column tags.element is string"),
    "a required field of a struct that is missing": ({"place": '{"y":"b"}'}, "column place.x is NOT NULL"),
    "a name twice": ({"more": '0,"n":1'}, "column n is there 2 times"),
    "a name twice, once with an escape": ({"more": '0,"\\u006e":1'}, "column n is there 2 times"),
    "a name twice in a struct": ({"place": '{"x":1,"x":2}'}, "column place.x is there 2 times"),
}
_JSON_MAPS: dict[str, tuple[dict[str, str], str]] = {
    "a key that is not a number": ({"by": '{"a":1}'}, "column by.key is int"),
    "a key twice": ({"by": '{"1":1,"1":2}'}, "column by has a key twice"),
    "a number twice as a key": ({"by": '{"1":1,"1.0":2}'}, "column by has a key twice"),
    "an array in a map's place": ({"by": "[1]"}, "column by is map"),
}


def _json() -> list[BadRecord]:
    found = [BadRecord(kind, payload, says) for kind, (payload, says) in _JSON_BYTES.items()]
    return found + [BadRecord(kind, _but(**texts), says) for kind, (texts, says) in _JSON_TEXTS.items()]


def bad_maps() -> list[BadRecord]:
    """Return records of JSON whose map does not fit."""
    return [BadRecord(kind, _but(**texts), says) for kind, (texts, says) in _JSON_MAPS.items()]


# ---------------------------------------------------------------------- Avro


def _record(name: str, **types: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in types.items()]}


_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_REGISTRY: dict[int, object] = {
    _NULLABLE_NUMBER: _record("nullable", id=["null", "long"], at=_MILLIS),
    _TEXT_NUMBER: _record("text", id="string", at=_MILLIS),
    _OTHER_NUMBER: _record("other", at=_MILLIS),
}


def _long(number: int) -> bytes:
    """Return a number as Avro has it."""
    number, made = (number << 1) ^ (number >> 63), b""
    while number > 0x7F:
        made, number = made + bytes([number & 0x7F | 0x80]), number >> 7
    return made + bytes([number])


def _some(datum: bytes) -> bytes:
    """Return a value of what may be null."""
    return b"\x02" + datum


_NULL = b"\x00"
_AT_US = TXID * 1_000
_DATUM = {
    "id": _long(1),
    "at": _long(_AT_US),
    "n": _some(_long(5)),
    "price": _some((1_250).to_bytes(4, "big")),
    "x": _some(struct.pack("<d", 0.5)),
    "f": _some(struct.pack("<f", 0.25)),
    "name": _some(_long(3) + b"tea"),
    "data": _some(_long(2) + b"\x00\xff"),
    "day": _some(_long((dt.date(2026, 11, 1) - dt.date(1970, 1, 1)).days)),
    "clock": _some(_long(_AT_US)),
    "tags": _some(_long(1) + _long(1) + b"a" + b"\x00"),
    "place": _some(_long(1) + _some(_long(1) + b"b")),
    "by": _some(_long(1) + _long(7) + _some(_long(1)) + b"\x00"),
}


def avro_but(**parts: bytes) -> bytes:
    """Return a record with other bytes in the places of columns."""
    prefix = MARKER + fingerprint(avro_schema(declared(RecordFormat.AVRO).current))
    return prefix + b"".join((_DATUM | parts).values())


def _confluent(number: int, datum: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + datum


def _avro() -> list[BadRecord]:
    good = avro_but()
    kinds = {
        "an empty record": (b"", "begins? as an Avro one, but with nothing"),
        "a single byte": (good[:1], "begins? as an Avro one"),
        "null": (b"null", "begins? as an Avro one, but with 6e75"),
        "a JSON record": (b'{"id":1}', "begins? as an Avro one, but with 7b22"),
        "a container file": (b"Obj\x01\x00", "begins? as an Avro one"),
        "bytes behind the datum": (good + b"\x00\x00", "2 bytes stand behind the datum"),
        "two records": (good * 2, "stand behind the datum"),
        "a fingerprint that is cut short": (good[:7], "ends within the fingerprint, after 7 bytes"),
        "an unknown fingerprint": (good[:2] + b"\x01" * 8 + good[10:], "fingerprint 0101010101010101"),
        "a datum that is cut short": (good[:-1], "cut short"),
        "no datum": (good[:10], "cut short"),
        "a text that is not UTF-8": (avro_but(name=_some(_long(1) + b"\xff")), "not UTF-8"),
        "a surrogate in UTF-8": (avro_but(name=_some(_long(3) + b"\xed\xa0\x80")), "not UTF-8"),
        "a text that is longer than the record": (avro_but(name=_some(_long(1 << 40) + b"tea")), "datum"),
        "a text of a negative length": (avro_but(name=_some(_long(-3) + b"tea")), "datum"),
        "bytes of a negative length": (avro_but(data=_some(_long(-1) + b"\x00")), "datum"),
        "a list of a negative length": (avro_but(tags=_some(_long(-1) + _long(1) + b"a" + b"\x00")), "datum"),
        "a list of the smallest length": (avro_but(tags=_some(_long(-(1 << 63)) + b"\x00")), "datum"),
        "a list of a huge length": (avro_but(tags=_some(_long(1 << 60) + _long(1) + b"a")), "datum"),
        "a list that does not end": (avro_but(by=_some(_long(1) + _long(7) + _some(_long(1)))), "cut short"),
        "a type that the union does not have": (avro_but(n=b"\x04" + _long(5)), "datum is not one of its schema"),
        "an int that is too large": (avro_but(n=_some(_long(1 << 31))), "column n is int"),
        "an int that is too small": (avro_but(n=_some(_long(-(1 << 31) - 1))), "column n is int"),
        "an int that is too large in a struct": (avro_but(place=_some(_long(1 << 40) + _NULL)), r"column place\.x is"),
        "a decimal of too many digits": (
            avro_but(price=_some((1 << 31).to_bytes(4, "big", signed=False))),
            r"column price is decimal\(9, 2\), and the record has more digits",
        ),
        "a day outside of the years": (avro_but(day=_some(_long(-719_163))), "column day has a time outside"),
        "a time outside of the years": (avro_but(at=_long(-(1 << 62))), "column at has a time outside"),
        "a clock outside of the years": (avro_but(clock=_some(_long(1 << 60))), "column clock has a time outside"),
        "a time that is later than the transaction id": (avro_but(at=_long(_AT_US + 1_000)), "later than the record's"),
        "a key twice": (
            avro_but(by=_some(_long(2) + 2 * (_long(7) + _some(_long(1))) + b"\x00")),
            "column by has a key twice",
        ),
        "an unknown number in a registry": (_confluent(_UNKNOWN_NUMBER, b"\x02"), "no schema 6 of a registry"),
        "a number in a registry that is cut short": (b"\x00\x00\x00", "ends within the number of its schema"),
        "null in a required column": (_confluent(_NULLABLE_NUMBER, b"\x00" + _long(TXID)), "column id is NOT NULL"),
        "a text in a number's place": (
            _confluent(_TEXT_NUMBER, _long(1) + b"1" + _long(TXID)),
            "column id is long, and the record's schema has string",
        ),
        "a required column that is missing": (_confluent(_OTHER_NUMBER, _long(TXID)), "column id is NOT NULL"),
    }
    return [BadRecord(kind, payload, says) for kind, (payload, says) in kinds.items()]


# ---------------------------------------------------------------------- Arrow


def arrow_stream(*batches: pa.RecordBatch, schema: pa.Schema | None = None, compression: str | None = None) -> bytes:
    """Return a stream as any writer of Arrow makes one."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=options) as writer:
        for one in batches:
            writer.write_batch(one)
    payload = sink.getvalue().to_pybytes()
    assert isinstance(payload, bytes)
    return payload


def _columns(**columns: pa.Array) -> bytes:
    """Return a record with a good row but for these columns."""
    arrays: dict[str, pa.Array] = {"id": pa.array([1]), "at": pa.array([AT], COLUMNS.field("at").type)}
    return arrow_stream(pa.record_batch(arrays | columns))


def _single(type_: pa.DataType, data: bytes, *extra: bytes) -> pa.Array:
    """Return an array of one value that is these bytes, whether they may be or not."""
    return pa.Array.from_buffers(type_, 1, [None, *(pa.py_buffer(one) for one in (data, *extra))])


def _nested(depth: int) -> pa.Array:
    found: pa.Array = pa.array([1])
    for _ in range(depth):
        found = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), found)
    return found


def _file(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _arrow() -> list[BadRecord]:
    whole = pa.RecordBatch.from_pylist([GOOD], schema=COLUMNS)
    good = arrow_stream(whole)
    loose = pa.schema([one.with_nullable(True) for one in COLUMNS])
    offsets = struct.pack("<2i", 0, 1)
    far = _columns(name=pa.array(["x" * 77])).replace(struct.pack("<2i", 0, 77), struct.pack("<2i", 0, 1 << 20))
    twice = pa.record_batch([pa.array([1]), whole.column("at"), pa.array([2])], ["id", "at", "id"])
    kinds = {
        "an empty record": (b"", "not an Arrow stream of one batch: it has nothing"),
        "null": (b"null", "Arrow stream"),
        "a JSON record": (b'{"id":1}', "not a valid Arrow stream"),
        "a stream that is cut short": (good[:-100], "Arrow stream"),
        "half a stream": (good[: len(good) // 2], "Arrow stream"),
        "bytes behind the stream": (good + b"more", "4 bytes stand behind the stream"),
        "two streams": (good * 2, "bytes stand behind the stream"),
        "a file": (_file(whole), "Arrow stream"),
        "no batch": (arrow_stream(schema=COLUMNS), "it has schema"),
        "two batches": (arrow_stream(whole, whole), "it has schema, record batch, record batch"),
        "a dictionary": (_columns(name=pa.array(["tea"]).dictionary_encode()), "it has schema, dictionary"),
        "compressed buffers": (arrow_stream(whole, compression="lz4"), "compressed"),
        "null in a required column": (
            arrow_stream(pa.RecordBatch.from_pylist([GOOD | {"id": None}], schema=loose)),
            "column id is NOT NULL",
        ),
        "null in one of three rows": (
            arrow_stream(pa.RecordBatch.from_pylist([GOOD, GOOD | {"id": None}, GOOD], schema=loose)),
            "column id is NOT NULL",
        ),
        "a required column that is missing": (arrow_stream(whole.drop_columns(["id"])), "column id is NOT NULL"),
        "a column twice": (arrow_stream(twice), "column id is there 2 times"),
        "a text in a number's place": (_columns(n=pa.array(["5"])), "column n is int, and the record has string"),
        "a type that is wider": (_columns(n=pa.array([5])), "column n is int, and the record has int64"),
        "an unsigned number": (_columns(id=pa.array([1], pa.uint64())), "column id is long, and the record has uint64"),
        "a decimal of more digits": (
            _columns(price=pa.array([Number("1.50")], pa.decimal128(12, 2))),
            r"column price is decimal\(9, 2\)",
        ),
        "a decimal with more digits than its type": (
            _columns(price=_single(pa.decimal128(9, 2), (10**20).to_bytes(16, "little"))),
            "not a valid Arrow stream",
        ),
        "a column of nothing but nulls": (_columns(n=pa.nulls(1)), "column n is null in the record"),
        "times of another unit": (_columns(clock=pa.array([1], pa.timestamp("ns"))), "column clock is timestamp"),
        "a time of a zone on a clock": (_columns(clock=whole.column("at")), "column clock is timestamp"),
        "a time outside of the years": (_columns(at=pa.array([1 << 62], COLUMNS.field("at").type)), "outside of the y"),
        "a day outside of the years": (
            _columns(day=pa.array([-719_163], pa.date32())),
            "column day has a time outside",
        ),
        "a time that is later than the transaction id": (
            _columns(at=pa.array([AT + dt.timedelta(seconds=1)], COLUMNS.field("at").type)),
            "later than the record's transaction id",
        ),
        "a text that is not UTF-8": (_columns(name=_single(pa.string(), offsets, b"\xff")), "UTF8"),
        "offsets that point outside": (far, "not a valid Arrow stream"),
        "a list in a struct's place": (_columns(place=pa.array([[1]])), "column place is struct"),
        "null in a list whose elements are required": (_columns(tags=pa.array([["a", None]])), r"tags\.element is NOT"),
        "a required field of a struct that is missing": (
            _columns(place=pa.array([{"y": "b"}])),
            r"place\.x is NOT NULL",
        ),
        "lists of a fixed size": (_columns(tags=pa.array([["a"]], pa.list_(pa.string(), 1))), "which is not read"),
        "texts by views": (_columns(name=pa.array(["tea"], pa.string_view())), "which is not read"),
        "run ends": (
            _columns(name=pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["tea"]))),
            "which is not read",
        ),
        "types that are nested too deep": (_columns(more=_nested(40)), "nested more than 32 deep"),
    }
    return [BadRecord(kind, payload, says) for kind, (payload, says) in kinds.items()]
