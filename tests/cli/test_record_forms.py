"""What `read` prints, `write` takes: every byte comes back, however the input is cut into blocks."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.cli import record_forms
from dlspark.cli.record_forms import (
    RecordInput,
    RecordOutput,
    Splitter,
    delimiter_of,
    record_as_json,
    record_as_text,
    splitter_of,
)
from dlspark.cli.record_printing import RecordPrinter
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_PAYLOAD_BYTES, LogRecord
from dlspark.core.codec.vector_decoding import record_rows
from metadata.foundation.errors import CallerError

PAYLOADS = st.lists(
    st.binary(max_size=20) | st.sampled_from([b"", b"\r", b"\n", b"a\r\n", b"\0", b"\xff", b"-", b"a-"])
)


def record(payload: bytes, number: int = 0, txid: int = 7) -> LogRecord:
    return LogRecord(txid, payload, DLSN(1, 0, number), number + 1, 0, number)


def printed(
    payloads: list[bytes], form: RecordOutput, delimiter: str | None = None, encoding: str = "utf-8"
) -> tuple[bytes, str | None]:
    out = io.BytesIO()
    printer = RecordPrinter(out, encoding, form, delimiter)
    records = [record(payload, number, 5 + number) for number, payload in enumerate(payloads)]
    printer.print(record_rows("log", records[:2]))
    printer.print(record_rows("log", records).slice(2))
    return out.getvalue(), printer.note()


def taken(splitter: Splitter, data: bytes, size: int) -> tuple[list[bytes], list[int], str | None]:
    """What is taken of `data` in blocks of `size`."""
    payloads: list[bytes] = []
    txids: list[int] = []
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    for part in (*map(splitter.feed, blocks), splitter.end()):
        payloads += part.payloads.to_pylist()
        txids += () if part.txids is None else part.txids.tolist()
        if part.refusal is not None:
            return payloads, txids, part.refusal
    assert splitter.taken == len(payloads)
    return payloads, txids, None


@given(payloads=PAYLOADS, size=st.integers(1, 50))
@pytest.mark.parametrize("form", ["json", "length-prefixed"])
def test_every_record_comes_back_in_a_form_that_knows_its_bounds(form: str, payloads: list[bytes], size: int) -> None:
    data, note = printed(payloads, RecordOutput(form))
    splitter = splitter_of(RecordInput(form), None, keep_txids=form == "json")
    back, txids, refusal = taken(splitter, data, size)
    assert (back, refusal, note) == (payloads, None, None)
    assert txids == ([5 + number for number in range(len(payloads))] if form == "json" else [])


@given(
    payloads=PAYLOADS, size=st.integers(1, 50), delimiter=st.sampled_from(["\\n", "\\0", "\\r\\n", "--", "\\xff", "é"])
)
def test_raw_records_come_back_unless_it_is_said_that_they_cannot(
    payloads: list[bytes], size: int, delimiter: str
) -> None:
    data, note = printed(payloads, RecordOutput.RAW, delimiter)
    back, _, refusal = taken(splitter_of(RecordInput.RAW, delimiter, keep_txids=False), data, size)
    assert refusal is None
    assert (back == payloads) == (note is None)


def test_ten_records_with_line_feeds_are_said_to_be_ambiguous() -> None:
    payloads = [*(b"%d" % number for number in range(7)), b"a\nb", b"c\n", b"\n"]
    data, note = printed(payloads, RecordOutput.RAW)
    assert len(taken(splitter_of(RecordInput.RAW, None, keep_txids=False), data, 10)[0]) == 13
    assert note is not None
    assert note.startswith("3 records hold the delimiter")


def test_the_last_line_needs_no_end_and_an_empty_one_is_a_record() -> None:
    for data, lines in (
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n\n", [b"a", b""]),
        (b"a\r\nb", [b"a\r", b"b"]),
    ):
        assert taken(splitter_of(RecordInput.RAW, None, keep_txids=False), data, 1)[0] == lines


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, b"\n"),
        ("\\0", b"\0"),
        ("\\r\\n", b"\r\n"),
        ("\\x1e", b"\x1e"),
        ("\\xFf", b"\xff"),
        ("\\\\n", b"\\n"),
        ("é", "é".encode()),
        ("\udcff", b"\xff"),
    ],
)
def test_a_delimiter_is_any_bytes(text: str | None, found: bytes) -> None:
    assert delimiter_of(text, RecordInput.RAW) == found


@pytest.mark.parametrize(("text", "says"), [("", "is empty"), ("\\q", "unknown escape"), ("\\xg0", "unknown escape")])
def test_a_delimiter_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(CallerError, match=says):
        delimiter_of(text, RecordOutput.RAW)


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(CallerError, match="have no delimiter"):
        splitter_of(RecordInput.JSON, "\\0", keep_txids=False)
    with pytest.raises(CallerError, match="only records in JSON have transaction ids"):
        splitter_of(RecordInput.RAW, None, keep_txids=True)


LONG = MAX_PAYLOAD_BYTES + 1


@pytest.mark.parametrize(
    ("form", "data", "good", "says"),
    [
        ("raw", b"a\n" + b"x" * LONG + b"\nb\n", 1, r"line 2 (has 1,040,365 bytes, and|is too long:) a record holds"),
        ("raw", b"a\nb\n" + b"x" * LONG, 2, r"line 3 (has 1,040,365 bytes, and|is too long:) a record holds"),
        ("length-prefixed", b"\0\0\0\1a\0\xff\xff\xff", 1, "record 2 has 16,777,215 bytes"),
        ("length-prefixed", b"\0\0\0\1a\0\0\0\2b", 1, "record 2 is cut off: the input ends 5 bytes into it"),
        ("json", b'{"value": "a"}\n{"value": "b"', 1, "line 2 is not JSON"),
        ("json", b'{"value": "a"}\n\n', 1, "line 2 is not JSON"),
        ("json", b"[" * 100_000, 0, "line 1 is not JSON"),
        ("json", b"[1]\n", 0, "line 1 is not a JSON object"),
        ("json", b'{"vlaue": "a"}\n', 0, "unknown field 'vlaue'; did you mean 'value'"),
        ("json", b'{"dlsn": "1:0:0"}\n', 0, "line 1 has no value: give one of value, value_base64, value_hex"),
        ("json", b'{"value": "a", "value_hex": "61"}\n', 0, "several values"),
        ("json", b'{"value": "a", "value": "b"}\n', 0, "line 1 has the field 'value' more than once"),
        ("json", '{"value": "a"}\n'.encode("utf-16"), 0, "line 1 is not JSON"),
        ("json", '{"value": "a"}\n'.encode("utf-16-be"), 0, "line 1 is not JSON"),
        ("json", b'{"value": null}\n', 0, "a value that is not text"),
        ("json", b'{"value_base64": "?"}\n', 0, "value_base64 that cannot be read"),
        ("json", b'{"value_hex": "6"}\n', 0, "value_hex that cannot be read"),
        ("json", b'{"value": "\\ud800"}\n', 0, "value that cannot be read"),
        ("json", b'{"value": "' + b"x" * LONG + b'"}\n', 0, "line 1 has 1,040,365 bytes"),
        ("json", b" " * (8 * LONG), 0, "line 1 is longer than the JSON of any record"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1 << 16, 1 << 24])
def test_a_record_that_cannot_be_taken_is_named_and_those_before_it_are_kept(
    size: int, form: str, data: bytes, good: int, says: str
) -> None:
    payloads, _, refusal = taken(splitter_of(RecordInput(form), None, keep_txids=False), data, size)
    assert payloads == [b"a", b"b"][:good]
    assert refusal is not None
    assert re.search(says, refusal), refusal


@pytest.mark.parametrize("txid", ["-1", "true", "1.0", '"7"', str(2**63 - 1), "null"])
def test_ids_that_no_record_may_have_are_refused(txid: str) -> None:
    line = b'{"value": "a", "transaction_id": %s}' % txid.encode()
    assert "no transaction_id that a record may have" in str(
        taken(splitter_of(RecordInput.JSON, None, keep_txids=True), line, 9)[2]
    )


def test_a_payload_of_the_most_bytes_is_taken_in_every_form() -> None:
    payloads = [b"x" * MAX_PAYLOAD_BYTES, b"\xff" * MAX_PAYLOAD_BYTES, b"\1" * MAX_PAYLOAD_BYTES]
    assert record_forms.MAX_PAYLOAD_BYTES == MAX_PAYLOAD_BYTES
    for form in (RecordOutput.RAW, RecordOutput.JSON, RecordOutput.LENGTH_PREFIXED):
        data, _ = printed(payloads, form)
        back, _, refusal = taken(splitter_of(RecordInput(form.value), None, keep_txids=False), data, 1 << 20)
        assert refusal is None
        assert back == payloads


@given(payloads=PAYLOADS | st.lists(st.text().map(str.encode)), as_hex=st.booleans(), payload=st.booleans())
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "utf-16-le"])
def test_lines_that_are_printed_by_columns_are_those_of_records(
    encoding: str, payloads: list[bytes], as_hex: bool, payload: bool
) -> None:
    records = [record(one, number, 5 + 10 ** (number % 19)) for number, one in enumerate(payloads)]
    how = {"as_hex": as_hex, "payload": payload}
    ascii_only = encoding != "utf-8"
    lines = {
        RecordOutput.TABLE: [record_as_text(one, **how) for one in records],
        RecordOutput.JSON: [json.dumps(record_as_json(one, **how), ensure_ascii=ascii_only) for one in records],
    }
    for form, expected in lines.items():
        out = io.BytesIO()
        RecordPrinter(out, encoding, form, None).print(record_rows("log", records), **how)
        assert out.getvalue() == "".join(f"{line}\n" for line in expected).encode(encoding, "backslashreplace")


@given(
    value=st.text() | st.sampled_from(["\ud800", '"', "\\", "\x7f", "\u2028"]),
    txid=st.none() | st.integers(-1, 2**63) | st.sampled_from([2**63 - 2, 10**18 - 1, 10**18]),
    compact=st.booleans(),
    ascii_only=st.booleans(),
)
def test_objects_that_most_are_like_are_taken_as_json_takes_them(
    value: str, txid: int | None, compact: bool, ascii_only: bool
) -> None:
    fields = {"dlsn": "1:0:0", "transaction_id": txid, "sequence_id": 3, "value": value}
    if txid is None:
        del fields["transaction_id"], fields["dlsn"]
    line = json.dumps(fields, ensure_ascii=ascii_only, separators=(",", ":") if compact else None)
    data = line.encode("utf-8", "surrogatepass") + b"\n"
    for keep in (False, True):
        back, txids, refusal = taken(splitter_of(RecordInput.JSON, None, keep_txids=keep), data, 1 << 20)
        good = not any("\ud800" <= one < "\ue000" for one in value) and (
            not keep or (txid is not None and 0 <= txid < 2**63 - 1)
        )
        assert back == ([value.encode()] if good else [])
        assert (refusal is None) == good
        assert txids == ([txid] if keep and good else [])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_gets_json_that_is_json_and_tables_with_escapes(encoding: str) -> None:
    data, _ = printed(["zwölf €".encode()], RecordOutput.JSON, encoding=encoding)
    assert json.loads(data.decode(encoding))["value"] == "zwölf €"
    table, _ = printed(["zwölf €".encode()], RecordOutput.TABLE, encoding=encoding)
    shown = {"ascii": "zw\\xf6lf \\u20ac", "latin-1": "zwölf \\u20ac", "utf-8": "zwölf €"}[encoding]
    assert table.decode(encoding).endswith(f"  {shown}\n")


def test_a_table_has_a_line_a_record_and_no_command_for_the_terminal() -> None:
    assert record_as_text(record(b"a\nb\x1b[2J\xff\\")).endswith("  a\\nb\\x1b[2J\\xff\\")
    assert record_as_text(record(b"\xff"), as_hex=True).endswith("  ff")
    assert record_as_text(record(b"abc"), payload=False).endswith("  3 bytes")


def test_json_says_in_which_form_the_value_is() -> None:
    assert record_as_json(record(b"\xff"))["value_base64"] == "/w=="
    assert record_as_json(record(b"a"), as_hex=True)["value_hex"] == "61"
    assert "value" not in record_as_json(record(b"a"), payload=False)
