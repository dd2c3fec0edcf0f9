"""What is in a log, between the Java core and ours: records of every kind, metadata of every version, searches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.interop.java_tool import described, make_payload
from helpers.interop.log_sides import (
    FIRST_TXID,
    RECORD_BYTES,
    TOO_LONG,
    TXID_OUT_OF_ORDER,
    UNCACHED,
    BothErrors,
    Facts,
    JavaLog,
    JavaSide,
    OurSide,
    Pair,
    code_of,
    expected,
    java_view,
    our_log,
    our_view,
    pair_of,
)

from dlspark.core.codec.records import MAX_LOGRECORD_SIZE
from dlspark.core.sync.namespace import Namespace
from dlspark.testing.java_process import JavaTool
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.zookeeper.client import ZooKeeperStore

LARGEST_PAYLOAD = MAX_LOGRECORD_SIZE - 20
MAX_TXID = 2**63 - 1


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, LARGEST_PAYLOAD])
def test_payloads_of_every_size_pass(plain_pair: Pair, size: int) -> None:
    writer = plain_pair.writer.open_writer()
    dlsns = writer.write([1, 2, 3], size=size)
    writer.close()
    found = plain_pair.reader.read(3)
    assert found == [
        {"dlsn": dlsn, "txid": index + 1, "sequence_id": index, **described(make_payload(0, index, size))}
        for index, dlsn in enumerate(dlsns)
    ]


@pytest.mark.parametrize("side", ["ours", "Java"])
def test_what_one_refuses_the_other_refuses_with_the_same_code(
    java: JavaTool, uri: str, log_name: str, side: str
) -> None:
    with pair_of(java, uri, log_name, f"{side} to the other") as pair:
        refusing = pair.ours if side == "ours" else pair.javas
        for txid, size, code in (
            (5, LARGEST_PAYLOAD + 1, TOO_LONG),
            (-1, 10, TXID_OUT_OF_ORDER),
            (MAX_TXID, 10, TXID_OUT_OF_ORDER),
        ):
            writer = refusing.open_writer()
            writer.write([5], size=10)
            with pytest.raises(BothErrors) as refused:
                writer.write([txid], size=size)
            assert code_of(refused.value) == code
            writer.abort()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_record_sets_are_their_members_or_whole(plain_pair: Pair, uri: str, log_name: str, codec: str) -> None:
    pair = plain_pair
    writer = pair.writer.open_writer()
    dlsns = writer.write_numbered(0, 3)
    dlsns += writer.write_set(FIRST_TXID + 3, 3, 5, codec)
    dlsns += writer.write_numbered(8, 2)
    writer.close()
    members = expected(dlsns)
    for member in members[3:8]:
        member["txid"] = FIRST_TXID + 3
    for side in (pair.reader, pair.writer):
        assert side.read(10) == members
        assert side.read(5, dlsn=dlsns[5]) == members[5:]
        assert side.count(dlsns[0]) == 10
    whole = {"deserializeRecordSetOnReads": "false"}
    javas = JavaLog(pair.javas.log.tool, uri, log_name, **UNCACHED, **whole).read(6)
    with our_log(uri, log_name, deserializeRecordSetOnReads=False) as log, log.open_reader() as reader:
        ours = our_view(reader.read_bulk(6))
    assert [record["set"] for record in javas] == [False, False, False, True, False, False]
    assert java_view(javas) == ours
    assert [record["dlsn"] for record in ours] == [*dlsns[:4], *dlsns[8:]]


def test_an_applications_control_records_are_passed_over_by_both(plain_pair: Pair) -> None:
    log = plain_pair.javas.log
    writer = log.call("writer")
    dlsns: list[str] = []
    for index in range(3):
        dlsns += log.call("write", writer=writer, txid=FIRST_TXID + index, first=index, count=1, size=RECORD_BYTES)
        log.call("write", writer=writer, txid=FIRST_TXID + index, count=2, size=20, control=True)
    log.call("close_writer", writer=writer)
    for side in (plain_pair.reader, plain_pair.writer):
        assert side.read(3) == expected(dlsns)
        assert side.facts()["last"] == expected(dlsns)[-1]


@pytest.mark.parametrize("metadata_version", [2, 3, 4, 5])
def test_segments_of_every_metadata_version_pass(
    java: JavaTool, uri: str, log_name: str, way: str, metadata_version: int
) -> None:
    with pair_of(java, uri, log_name, way, ledgerMetadataLayoutVersion=metadata_version) as pair:
        dlsns = pair.writer.write(0, 20) + pair.writer.write(20, 10) + pair.reader.write(30, 10)
        for side in (pair.reader, pair.writer):
            assert without_sequence_ids(side.read(40)) == without_sequence_ids(expected(dlsns))
            assert without_sequence_ids(side.read(20, dlsn=dlsns[20])) == without_sequence_ids(expected(dlsns)[20:])
        assert pair.reader.read(40) == pair.writer.read(40), "sequence ids are the same, known or not"
        assert pair.reader.segments() == pair.writer.segments()
        assert {segment["version"] for segment in pair.reader.segments()} == {metadata_version}


def without_sequence_ids(records: list[Facts]) -> list[Facts]:
    """Segments below version 5 have none."""
    return [{key: value for key, value in record.items() if key != "sequence_id"} for record in records]


def test_a_segment_of_version_1_by_java_is_read_by_both(java: JavaTool, uri: str, log_name: str) -> None:
    """It has no number of its own, and counts as 0. A version 2 segment follows, written by us."""
    old = {"ledgerMetadataSkipMinVersionCheck": "true"}
    settings = {"ledgerMetadataLayoutVersion": 1, "logSegmentNameVersion": 0, **old, **UNCACHED}
    javas = JavaSide(JavaLog(java, uri, log_name, **settings))
    javas.log.call("create")
    dlsns = javas.write(0, 20)
    with our_log(uri, log_name, ledgerMetadataLayoutVersion=2, **old) as log:
        ours = OurSide(log)
        dlsns += ours.write(20, 10)
        assert [segment["lssn"] for segment in ours.segments()] == [0, 1]
        assert ours.segments() == javas.segments()
        for side in (ours, javas):
            assert without_sequence_ids(side.read(30)) == without_sequence_ids(expected(dlsns))
        assert ours.read(30) == javas.read(30)


def test_one_log_has_segments_of_different_metadata_versions(java: JavaTool, uri: str, log_name: str, way: str) -> None:
    dlsns: list[str] = []
    for metadata_version in (2, 3, 4, 5):
        with pair_of(java, uri, log_name, way, ledgerMetadataLayoutVersion=metadata_version) as pair:
            dlsns += pair.writer.write(len(dlsns), 10)
    with pair_of(java, uri, log_name, way) as pair:
        for side in (pair.reader, pair.writer):
            assert without_sequence_ids(side.read(40)) == without_sequence_ids(expected(dlsns))
        assert pair.reader.read(40) == pair.writer.read(40)
        assert pair.reader.segments() == pair.writer.segments()


def test_segments_with_names_of_the_old_kind_pass(java: JavaTool, uri: str, log_name: str, way: str) -> None:
    with pair_of(java, uri, log_name, way, logSegmentNameVersion=0) as pair:
        dlsns = pair.writer.write(0, 20)
        writer = pair.writer.open_writer()
        dlsns += writer.write_numbered(20, 10)
        writer.abort()
        dlsns += pair.reader.write(30, 10)  # recovers the segment by its old name
        for side in (pair.reader, pair.writer):
            assert side.read(40) == expected(dlsns)
        assert pair.reader.segments() == pair.writer.segments()
        names = [segment["name"] for segment in pair.javas.log.call("segments")]
        assert names == [
            "logrecs_%018d_%018d" % (FIRST_TXID + first, FIRST_TXID + last)  # noqa: UP031 (as the format says)
            for first, last in ((0, 19), (20, 29), (30, 39))
        ]


async def bound(zk: str, path: str, **binding: object) -> str:
    """The URI of a namespace on the sandbox's nodes that is bound so."""
    store = await ZooKeeperStore.connect(zk)
    try:
        await NamespaceStore(store, path).bind(replace(Binding.for_cluster(zk, "/ledgers"), **binding))
    finally:
        await store.close()
    return f"distributedlog://{zk}{path}"


def test_regions_and_the_first_number_of_a_binding_are_kept_by_both(java: JavaTool, zk: str, uri: str) -> None:
    """Both follow the binding: Java where its own setting says otherwise, we if either does."""
    uri = asyncio.run(bound(zk, "/regions", encode_region_id=True, first_lssn=1000))
    javas = JavaSide(JavaLog(java, uri, "log", region=9, **UNCACHED))
    with Namespace.open(uri, region_id=3) as namespace:
        namespace.create_log("log")
        namespace.create_log("of-java")
        with namespace.open_log("log") as log, namespace.open_log("of-java") as other:
            ours = OurSide(log)
            dlsns = ours.write(0, 10) + javas.write(10, 10)
            for side in (ours, javas):
                assert [(segment["lssn"], segment["region"]) for segment in side.segments()] == [(1000, 3), (1001, 9)]
                assert side.read(20) == expected(dlsns)
            assert ours.segments() == javas.segments()
            JavaSide(JavaLog(java, uri, "of-java", region=9, **UNCACHED)).write(0, 1)
            assert [(segment.lssn, segment.region) for segment in other.segments()] == [(1000, 9)]


def written(pair: Pair, segments: Sequence[Sequence[int]]) -> list[tuple[int, str]]:
    """Segments of records with these ids, seven to an entry; the id and DLSN of each."""
    found: list[tuple[int, str]] = []
    for txids in segments:
        writer = pair.writer.open_writer()
        for start in range(0, len(txids), 7):
            batch = txids[start : start + 7]
            found += zip(batch, writer.write(batch, size=20), strict=True)
        writer.close()
    return found


def first_not_below(records: list[tuple[int, str]], txid: int) -> str:
    return next(dlsn for found, dlsn in records if found >= txid)


@pytest.mark.parametrize(
    "segments",
    [
        pytest.param([range(100, 200, 3), range(200, 300, 3), range(500, 540)], id="gaps within and between segments"),
        pytest.param([range(100, 150)], id="one segment"),
        pytest.param([[n // 2 for n in range(200, 260)], range(130, 150)], id="every id twice"),
    ],
)
def test_searches_by_transaction_id_end_at_the_same_dlsn(plain_pair: Pair, segments: list[Sequence[int]]) -> None:
    records = written(plain_pair, segments)
    txids = [*range(records[0][0], records[-1][0] + 1), 0, records[0][0] - 1]
    wanted = [first_not_below(records, txid) for txid in txids]
    assert plain_pair.ours.find(txids) == wanted
    assert plain_pair.javas.find(txids) == wanted


@pytest.mark.parametrize("txid", [99, 150])
def test_a_reader_past_the_end_waits_for_the_same_record(plain_pair: Pair, txid: int) -> None:
    """Where nothing is so high yet, Java names the slot behind the last record and we the next segment's first."""
    written(plain_pair, [range(100, 140)] if txid == 150 else [])
    later = written(plain_pair, [range(150, 155)])
    for side in (plain_pair.reader, plain_pair.writer):
        found: list[Any] = [(record["txid"], record["dlsn"]) for record in side.read(5, txid=txid)]
        assert found == later


def test_streams_of_bytes_pass(plain_pair: Pair, way: str) -> None:
    log, java_log = plain_pair.ours.log, plain_pair.javas.log
    pieces = [make_payload(0, index, 1000) for index in range(12)]
    if way == "ours to Java":
        for half in (pieces[:6], pieces[6:]):
            with log.open_append_stream() as stream:
                for piece in half:
                    stream.write(piece)
    else:
        assert java_log.call("append", first=0, count=6, size=1000) == 6_000
        assert java_log.call("append", first=6, count=6, size=1000) == 12_000
    whole = b"".join(pieces)
    for position, size in ((0, 12_000), (2_500, 4_000), (6_000, 6_000)):
        wanted = described(whole[position : position + size])
        assert java_log.call("append_read", position=position, size=size) == wanted
        with log.open_append_reader(position) as reader:
            assert described(reader.read(size) or b"") == wanted


def test_readers_follow_a_writer_that_rolls(java: JavaTool, uri: str, log_name: str, way: str) -> None:
    rolling: dict[str, Any] = {
        "logSegmentRollingMinutes": 0,
        "maxLogSegmentBytes": 6_000,
        "logSegmentRollingConcurrency": 0,
    }
    with pair_of(java, uri, log_name, way, **rolling) as pair, pair.reader.following() as follower:
        writer = pair.writer.open_writer()
        dlsns: list[str] = []
        for batch in range(0, 240, 20):
            dlsns += writer.write_numbered(batch, 20)
            found = follower.next(20)
            if isinstance(pair.reader, OurSide):
                assert found == expected(dlsns)[batch:]
            else:  # Java knows no sequence ids of a segment that it has seen before the one before it was completed
                assert without_sequence_ids(found) == without_sequence_ids(expected(dlsns)[batch:])
        writer.close()
        assert len(pair.reader.segments()) >= 4
        assert pair.reader.segments() == pair.writer.segments()
        assert pair.reader.read(240) == expected(dlsns)
