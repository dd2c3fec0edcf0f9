"""What the connector's jar is told of small batches, and what of it comes back; no cluster."""

from __future__ import annotations

import json
import os
import pickle

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.append.clients import folder_of
from dlspark.spark.sink.append.folders import RUNTIME_VARIABLE, own_folder
from dlspark.spark.sink.columns import SinkColumns, columns_of, routing_of
from dlspark.spark.sink.commit_modes import commit_way
from dlspark.spark.sink.inline_rows import gather_inline
from dlspark.spark.sink.messages import JobId, SinkMessage
from dlspark.spark.sink.small_batches import mark, message_of
from metadata.foundation.errors import InvariantViolation

URI = "distributedlog://127.0.0.1:1/n"
VALUE = StructField("value", StringType())
QUERY = "f41f73f9-7a74-4866-8f87-e2af0198116a"


def options(**more: str) -> Options:
    return Options({"uri": URI, "log": "flights", **more}, Scope.SINK_STREAM)


def columns(given: Options, *fields: StructField) -> SinkColumns:
    routing = routing_of(given)
    return columns_of(StructType(list(fields)), given.one_log() if routing is None else None, routing)


def said_of(given: Options, *fields: StructField) -> str:
    return mark(given, columns(given, *fields), len(fields))


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_a_frame_of_values_for_one_log_is_announced_in_text_that_stays_whole_in_a_pickle(
    kind: StringType | BinaryType,
) -> None:
    given = options(appendMaxBytes="200000", appendIdleRelease="7s")
    text = said_of(given, StructField("value", kind))
    pickled = cloudpickle.dumps((lambda: text, StructType([VALUE])))
    begin = pickled.index(b"dlspark-small[") + len(b"dlspark-small[")
    said = json.loads(pickled[begin : pickled.index(b"]", begin)])
    folder = folder_of(given)
    way = commit_way(given, numbered=True)
    shares = [max(said["least"], said["bytes"] // (1 + partition)) for partition in range(12)]
    assert shares == [way.share(partition) for partition in range(12)]
    assert said["row"] == 20
    assert (said["log"], said["idle"]) == ("flights", 7000)
    assert (said["socket"], said["secret"]) == (str(folder.socket), str(folder.secret))
    assert (said["home"], said["user"]) == (str(own_folder()), os.getuid())


def test_other_frames_and_ways_are_pythons() -> None:
    txid = StructField("transaction_id", LongType())
    log = StructField("log", StringType())
    assert said_of(options(), VALUE)
    assert said_of(options(commitMode="append"), VALUE)
    assert not said_of(options(), VALUE, txid)
    assert not said_of(Options({"uri": URI}, Scope.SINK_STREAM), VALUE, log)
    assert not said_of(options(commitMode="segments"), VALUE)
    assert not said_of(options(proxy="proxy:1"), VALUE)


def test_a_folder_that_java_has_no_way_to_is_not_announced(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x" * 100, "a]b"):
        place = tmp_path_factory.mktemp("runtime") / name
        place.mkdir(mode=0o700)
        monkeypatch.setenv(RUNTIME_VARIABLE, str(place))
        assert not said_of(options(), VALUE)


def as_the_jar(words: object, rows: bytes) -> bytes:
    """Return the pickle that the jar makes (`SmallRows.java`)."""
    text = json.dumps(words).encode()
    parts = [b"\x80\x03cdlspark.spark.sink.small_batches\nmessage_of\n"]
    parts += [b"B" + len(one).to_bytes(4, "little") + one for one in (text, rows)]
    return b"".join(parts) + b"\x86R."


def test_rows_that_come_back_are_a_tasks_message() -> None:
    batch = pa.record_batch({"value": pa.array(["one", "two"])})
    (made,), _ = gather_inline(columns(options(), VALUE), 3, 1000, 10_000, [batch])  # type: ignore[misc]
    part = ["flights", 3, 1000, 1000, 2, made.size, 1000]
    found = pickle.loads(as_the_jar({"job": [QUERY, 7, "a"], "part": part}, made.rows))
    assert found == SinkMessage(JobId(QUERY, 7, "a"), inline=(made,))
    nothing = pickle.loads(as_the_jar({"job": [QUERY, 7, "a"], "part": ["flights", 3, 5, 5, 0, 0, 5]}, b""))
    assert nothing == SinkMessage(JobId(QUERY, 7, "a"))
    with pytest.raises(InvariantViolation, match="2 rows of task 3"):
        message_of(json.dumps({"job": [QUERY, 7, "a"], "part": part}).encode(), b"")
