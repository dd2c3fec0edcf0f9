"""Arrow arrays over memory that there is already are those that pyarrow makes, and pandas stays away."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa

from dlspark.core.codec.arrow_arrays import binary_array, bool_array, int64_array, numbers_of, repeated_text

PROGRAM = """
import sys
import io
import numpy as np
from dlspark.cli.record_forms import RecordInput, RecordOutput, splitter_of
from dlspark.cli.record_printing import RecordPrinter
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.codec.vector_decoding import record_rows
from dlspark.core.codec.vector_encoding import encode_entries
payloads = splitter_of(RecordInput.RAW, None, keep_txids=False).feed(b"one\\ntwo\\xff\\n").payloads
assert len(list(encode_entries(np.ones(2, np.int64), payloads, first_position=1))) == 1
rows = record_rows("log", [LogRecord(1, one, DLSN(1, 0, 0), 1, 0, 0) for one in payloads.to_pylist()])
for form in RecordOutput:
    RecordPrinter(io.BytesIO(), "utf-8", form, None).print(rows)
assert "pandas" not in sys.modules
"""


def test_arrays_are_those_that_pyarrow_makes() -> None:
    numbers = np.array([1, -2, 2**62, 0], np.int64)
    valid = np.array([True, False, True, True])
    assert int64_array(numbers[::2]) == pa.array(numbers[::2])
    assert int64_array(numbers, valid=valid) == pa.array(numbers, mask=~valid)
    times = pa.timestamp("us", tz="UTC")
    assert int64_array([5, 6], times) == pa.array([5, 6], times)
    assert numbers_of(int64_array(numbers).slice(1, 2)).tolist() == [-2, 2**62]
    assert bool_array(valid) == pa.array(valid)
    assert binary_array([b"a", b"", b"\xff"]) == pa.array([b"a", b"", b"\xff"], pa.binary())
    assert binary_array(["zwölf".encode()] * 2, pa.string()) == pa.array(["zwölf"] * 2)
    for text, count in (("zwölf", 3), ("zwölf", 0), ("", 3), ("", 0)):
        repeated = repeated_text(text, count)
        repeated.validate(full=True)
        assert repeated == pa.array([text] * count, pa.string())
    assert [len(one) for one in (binary_array([]), int64_array([]), bool_array(valid[:0]))] == [0, 0, 0]


def test_lines_go_in_and_out_without_pandas() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
