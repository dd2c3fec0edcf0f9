"""Synchronous readers: subscribers, positions, watching segments, and streams of bytes as files, on real nodes."""

from __future__ import annotations

import io
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from dlspark import DLSN, Namespace, Runtime
from dlspark.core.codec.vector_decoding import DecodedBatch
from dlspark.core.reading.decoded_records import SLICE
from dlspark.core.settings.settings import Settings
from dlspark.errors import ReadCancelledError
from dlspark.testing.cluster import InProcessCluster
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.store import SessionState


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    runtime = Runtime("sync-readers")
    settings = Settings(long_poll_ms=300, read_ahead_wait_ms=50, lock_timeout_s=0, rolling_concurrency=0)
    cluster = InProcessCluster(tmp_path_factory.mktemp("nodes"), nodes=3, settings=settings)
    runtime.run(cluster.start())
    with Namespace(runtime, runtime.run(cluster.connect())) as namespace:
        yield namespace
    runtime.run(cluster.stop())
    runtime.close()


@pytest.fixture
def log(namespace, request):
    with namespace.open_log(request.node.name.partition("[")[0]) as log:
        for segment in range(2):
            with log.open_writer() as writer:
                for i in range(5):
                    writer.write(segment * 100 + i, b"%d" % (segment * 5 + i))
        yield log


def test_a_reader_goes_through_positions_back_and_forth(log):
    with log.open_reader("last") as reader:
        assert [record.payload for record in reader.read_bulk(10)] == [b"9"]
        assert reader.skip_to(101) == DLSN(2, 0, 1)
        assert reader.read_next().payload == b"6"
        assert reader.skip_to("earliest") == DLSN.INITIAL
        assert reader.next_batch().num_rows == 5
        assert reader.gaps == []
    assert (log.first_dlsn(), log.last_dlsn()) == (DLSN(1, 0, 0), DLSN(2, 0, 4))
    assert (log.first_txid(), log.last_txid()) == (0, 104)
    assert (log.record_count(), log.record_count(DLSN(1, 0, 3), DLSN(2, 0, 1))) == (10, 3)
    assert (log.sequence_id(DLSN(2, 0, 2)), log.find_sequence_id(7)) == (7, DLSN(2, 0, 2))
    assert log.position("latest") == log.end()


def test_a_subscriber_reads_alone_and_goes_on(log):
    with log.open_reader(subscriber="s", client_id="me") as reader:
        assert reader.subscriber == "s"
        reader.read_bulk(3)
        with pytest.raises(OwnershipAcquireFailedError, match="me"):
            log.open_reader(subscriber="s")
        assert reader.commit_position() == DLSN(1, 0, 3)
        with log.open_reader(exclusive=True) as other:
            assert other.subscriber is None
    with log.open_reader(subscriber="s") as reader:
        assert next(iter(reader)).payload == b"3"
    assert log.commit_position("t", DLSN(2, 0, 0)) == DLSN(2, 0, 0)
    assert log.subscribers() == {"s": DLSN(1, 0, 3), "t": DLSN(2, 0, 0)}
    log.delete_subscriber("s")
    assert list(log.subscribers()) == ["t"]


def test_a_loop_that_is_left_loses_and_repeats_nothing_whatever_reads_on(log):
    with log.open_reader() as reader:
        for record in reader:
            if record.payload == b"1":
                break
        assert reader.position == DLSN(1, 0, 2)
        assert not reader.caught_up
        loop = iter(reader)
        assert next(loop).payload == b"2"
        assert reader.read_next().payload == b"3"
        assert reader.position == DLSN(1, 0, 4)
        assert next(loop).payload == b"4"
        assert reader.position == DLSN(1, 0, 5)
        assert next(iter(reader)).payload == b"5"
        assert reader.next_batch()["value"].to_pylist() == [b"6", b"7", b"8", b"9"]
        assert reader.read_next(non_blocking=True) is None
        assert reader.skip_to(3) == DLSN(1, 0, 3)
        assert next(loop).payload == b"3"


def test_two_loops_over_one_reader_share_its_records(log):
    with log.open_reader() as reader:
        one, other = iter(reader), iter(reader)
        assert [next(loop).payload for loop in (one, other, other, one, other)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("interrupted", [1, 2])
def test_a_loop_goes_on_after_another_one_was_interrupted_while_records_were_made(namespace, monkeypatch, interrupted):
    slices = 0
    made = DecodedBatch.records

    def records(batch, *part):
        nonlocal slices
        if threading.current_thread() is threading.main_thread():
            slices += 1
            if slices == interrupted:
                raise KeyboardInterrupt
        return made(batch, *part)

    total = 3 * SLICE + 1
    with namespace.open_log(f"interrupted-{interrupted}") as log:
        with log.open_writer() as writer:
            writer.write_batch(np.arange(total), pa.array([b"%032d" % i for i in range(total)]))
            writer.mark_end_of_stream()
        with log.open_reader() as reader:
            monkeypatch.setattr(DecodedBatch, "records", records)
            delivered = []
            with pytest.raises(KeyboardInterrupt):
                delivered.extend(record.txid for record in reader)
            assert reader.position == DLSN(1, 0, len(delivered))
            loans = iter(range(10))  # A loop that asks for ever and is given nothing ends here.
            lend = reader._inner.lend
            monkeypatch.setattr(reader._inner, "lend", lambda: (next(loans), lend())[1])
            delivered += [record.txid for record in reader]
            assert delivered == list(range(total))


def test_a_loop_ends_at_the_end_of_a_sealed_log(log):
    with log.open_writer() as writer:
        writer.mark_end_of_stream()
    with log.open_reader() as reader:
        assert [int(record.payload) for record in reader] == list(range(10))
        assert list(reader) == []


def test_a_loop_over_a_reader_that_is_closed_delivers_nothing_more(log):
    reader = log.open_reader()
    loop = iter(reader)
    assert next(loop).payload == b"0"
    reader.close()
    assert reader.position == DLSN(1, 0, 1)
    with pytest.raises(ReadCancelledError):
        next(loop)


def test_a_loop_whose_lock_is_lost_delivers_nothing_more_and_knows_how_far_it_was(log, namespace):
    reader = log.open_reader(subscriber="lost")
    loop = iter(reader)
    assert next(loop).payload == b"0"
    assert next(loop).payload == b"1"

    async def lose():
        reader._inner._session_changed(SessionState.EXPIRED)

    reader._runtime.run(lose())
    assert reader.position == DLSN(1, 0, 2)
    with pytest.raises(LockingError):
        next(loop)
    reader.close()


def test_a_closed_reader_commits_nothing(log):
    reader = log.open_reader(subscriber="s")
    reader.close()
    with pytest.raises(LockingError):
        reader.commit_position()


def test_changes_of_segments_come_to_an_iterator(log, namespace):
    seen = []
    finished = threading.Event()

    def watch():
        try:
            for segments in log.watch_segments():
                seen.append([(s.lssn, s.in_progress) for s in segments])
                if len(seen) == 1:
                    finished.set()
        except LogNotFoundError:
            seen.append("deleted")

    thread = threading.Thread(target=watch)
    thread.start()
    assert finished.wait(60)
    with log.open_writer() as writer:
        writer.write(1000, b"more").result()
    namespace.delete_log(log.name)
    thread.join(60)
    assert seen[0] == [(1, False), (2, False)]
    assert seen[-1] == "deleted"


def test_batches_end_with_the_stream(log):
    with log.open_writer() as writer:
        writer.mark_end_of_stream()
    with log.open_reader() as reader:
        assert [batch.num_rows for batch in reader.batches()] == [5, 5]
    assert log.last_record(with_end_of_stream=True).is_end_of_stream
    assert log.is_sealed()


def test_a_log_is_a_file_of_bytes(namespace):
    text = "".join(f"line {i}\n" for i in range(1000))
    with namespace.open_log("file") as log:
        with log.open_append_stream() as stream, io.TextIOWrapper(io.BufferedWriter(stream), "utf-8") as file:
            file.write(text)
        with log.open_append_reader() as reader, io.TextIOWrapper(io.BufferedReader(reader), "utf-8") as file:
            assert file.read() == text
        with log.open_append_stream() as stream:
            assert stream.tell() == stream.durable_position == len(text)
            assert stream.write(b"tail") == 4
            stream.flush()
            assert stream.durable_position == len(text) + 4
        with log.open_append_reader(5) as reader:
            assert (reader.tell(), reader.read(2)) == (5, b"0\n")
            assert (reader.seek(-2, io.SEEK_CUR), reader.read(1)) == (5, b"0")
            assert reader.seek(len(text)) == len(text)
            assert reader.readall() == b"tail"
            assert reader.seek(-3, io.SEEK_END) == len(text) + 1
            assert reader.readall() == b"ail"
            with pytest.raises(io.UnsupportedOperation, match="whence 7"):
                reader.seek(0, 7)
        assert reader.closed
        with pytest.raises(ValueError, match="closed"):
            reader.read()


def test_libraries_that_take_files_read_a_log(namespace):
    table = pa.table({"flight": ["KL1", "KL2", "AF3"], "minutes": [5, 0, 71]})
    with namespace.open_log("parquet") as log:
        with log.open_append_stream() as stream:
            pq.write_table(table, stream)
        with log.open_append_reader() as reader:
            assert pq.read_table(reader) == table  # it begins at the file's end
    with namespace.open_log("csv") as log:
        with log.open_append_stream() as stream:
            pc.write_csv(table, stream)
        with log.open_append_reader() as reader:
            assert pc.read_csv(reader) == table
        with log.open_append_reader() as reader:
            assert pd.read_csv(reader).to_dict("list") == table.to_pydict()


def test_a_stream_that_is_left_by_an_error_keeps_what_was_flushed(namespace):
    with namespace.open_log("aborted") as log:
        stream = log.open_append_stream()
        stream.write(b"kept")
        stream.flush()
        with pytest.raises(RuntimeError), stream:
            raise RuntimeError("left")
        assert stream.closed
        with log.open_append_reader() as reader:
            assert reader.readall() == b"kept"
