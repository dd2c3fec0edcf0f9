"""The synchronous classes, driven from the background loop; once over a real ZooKeeper server too."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pyarrow as pa
import pytest
from helpers.security.secured_runs import role_security, zookeeper_security

from dlspark import DLSN, Namespace, Runtime
from dlspark.core.settings.settings import Settings
from dlspark.core.sync.writer import LogWriter
from dlspark.errors import (
    AlreadyClosedError,
    EndOfStreamError,
    RecordTooLongError,
    TransactionIdOutOfOrderError,
    WriteError,
)
from dlspark.testing.cluster import InProcessCluster
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.securing import open_session
from storage_node.bookie.node.bookie import Bookie
from storage_node.settings.bookie import BookieSettings


def test_the_story_of_the_readme(namespace):
    with namespace.open_log("events") as log:
        with log.open_writer() as writer:
            first = writer.write(writer.last_txid + 1, b"first").result()
            assert writer.last_txid == 0  # It was -1: an empty log has no id.
            writer.write(2, b"second")
        with log.open_reader() as reader:
            assert [record.payload for record in reader.read_bulk(10)] == [b"first", b"second"]
            assert reader.read_next() is None
            assert reader.read_next(non_blocking=True) is None
            assert reader.position == DLSN(1, 1, 1)
        assert first == DLSN(1, 0, 0)
        assert log.find_txid(2) == DLSN(1, 1, 0)
        assert log.end() == DLSN(2, 0, 0)
        assert (log.first_record().txid, log.last_record().txid) == (0, 2)
    assert namespace.logs() == ["events"]
    namespace.delete_log("events")
    assert not namespace.log_exists("events")


def test_a_log_is_truncated_purged_and_looked_at_on_real_storage_nodes(namespace):
    with namespace.open_log("lives") as log:
        for payload in (b"a", b"b", b"c"):
            with log.open_writer() as writer:
                writer.write(1, payload)
        with log.open_writer() as writer:
            assert writer.truncate("2:0:0") == DLSN(2, 0, 0)
        assert log.truncate(DLSN(3, 0, 0)) == DLSN(3, 0, 0)
        assert log.purge_older_than(2) == 2
        assert [segment.lssn for segment in log.status().segments] == [3]
        with log.open_reader() as reader:
            assert [record.payload for record in reader.read_bulk(10)] == [b"c"]


def test_dynamic_settings_are_looked_at_when_asked_to(runtime, tmp_path):
    file = tmp_path / "all.conf"
    file.write_text("perWriterOutstandingWriteLimit=5\n")
    cluster = InProcessCluster(tmp_path, nodes=3, settings=Settings(stream_config_default=str(file)))
    runtime.run(cluster.start())
    with Namespace(runtime, runtime.run(cluster.connect())) as namespace:
        file.write_text("nonsense=1\n")
        namespace.reload_settings()
        assert namespace.counters["configuration-file-rejected"] == 1
    runtime.run(cluster.stop())


def test_a_result_waits_for_no_buffer_that_nobody_fills(namespace):
    with namespace.open_log("pending") as log, log.open_writer() as writer:
        pending = [writer.write(i, b"x") for i in range(3)]
        assert not any(write.done() for write in pending)
        assert [write.result(60) for write in pending] == [DLSN(1, 0, i) for i in range(3)]
        bulk = writer.write_bulk([(3, b"a"), (4, b"b")])
        assert bulk[1].result(60) == DLSN(1, 1, 1)
        (entry,) = writer.write_batch(np.array([5, 6]), pa.array([b"c", b"d"])).result(60)
        assert (entry.dlsn, entry.record_count) == (DLSN(1, 2, 0), 2)
        writer.flush()
        writer.commit()


def test_record_sets_flush_and_commit_on_real_storage_nodes(namespace):
    with namespace.open_log("sets") as log, log.open_writer() as writer:
        assert writer.flush() == -1
        members = writer.write_record_set(7, [b"a" * 1000, b"b", b"c"], "lz4")
        assert [member.result() for member in members] == [DLSN(1, 0, 0), DLSN(1, 0, 1), DLSN(1, 0, 2)]
        with pytest.raises(RecordTooLongError):
            writer.write_record_set(8, [b"x" * 2_000_000])
        writer.write(9, b"d")
        assert writer.flush() == writer.commit() == 9
        with log.open_reader(members[1].result()) as reader:
            assert [record.payload for record in reader.read_bulk(10)] == [b"b", b"c", b"d"]


def test_a_writer_need_not_wait_and_takes_its_ledgers_from_a_pool(runtime, tmp_path):
    settings = {"isDurableWriteEnabled": False, "enableLedgerAllocatorPool": True, "ledgerAllocatorPoolName": "mine"}
    cluster = InProcessCluster(tmp_path, nodes=3, settings=Settings(long_poll_ms=300).with_values(settings))
    runtime.run(cluster.start())
    with Namespace(runtime, runtime.run(cluster.connect())) as namespace:
        with namespace.open_log("fast") as log, log.open_writer() as writer:
            assert writer.write(1, b"one").result() == DLSN.INVALID
            assert writer.commit() == 1
            assert log.last_record().payload == b"one"
        assert namespace.delete_allocator_pool("mine") > 0
    runtime.run(cluster.stop())


def test_a_refusal_is_raised_where_the_record_is_written(namespace):
    with namespace.open_log("refused") as log, log.open_writer() as writer:
        writer.write(5, b"x")
        with pytest.raises(TransactionIdOutOfOrderError):
            writer.write(4, b"y")
        with pytest.raises(TransactionIdOutOfOrderError):
            writer.write_bulk([(6, b"z"), (4, b"y")])


def test_what_fails_after_it_was_taken_is_no_refusal_however_late_the_thread_that_wrote_it(runtime, monkeypatch):
    class Failing:
        """Takes everything, and fails it at the loop's next step."""

        async def wait_for_room(self):
            pass

        def write(self, txid, payload):
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            loop.call_soon(future.set_exception, WriteError("later"))
            return future

        def write_bulk(self, records):
            return [self.write(*record) for record in records]

    run = runtime.run

    def run_and_be_late(coroutine):
        result = run(coroutine)
        run(asyncio.sleep(0))
        run(asyncio.sleep(0))
        return result

    monkeypatch.setattr(runtime, "run", run_and_be_late)
    writer = LogWriter(runtime, Failing())
    for pending in [writer.write(1, b"x"), *writer.write_bulk([(2, b"y"), (3, b"z")])]:
        assert pending.done()
        with pytest.raises(WriteError, match="later"):
            pending.result()


def test_iterating_ends_when_the_log_is_sealed(namespace):
    with namespace.open_log("sealed") as log:
        seen: list[bytes] = []

        def follow() -> None:
            with log.open_reader() as reader:
                seen.extend(record.payload for record in reader)

        with log.open_writer() as writer:
            writer.write(1, b"one")
            writer.commit()
            thread = threading.Thread(target=follow)
            thread.start()
            writer.write(2, b"two")
            writer.mark_end_of_stream()
        thread.join(60)
        assert seen == [b"one", b"two"]
        assert log.is_sealed()
        with log.open_reader() as reader:
            rows = 0
            while rows < 2:
                rows += reader.next_batch().num_rows
            with pytest.raises(EndOfStreamError):
                reader.next_batch()


def test_closing_the_runtime_completes_what_was_left_open(runtime, tmp_path):
    cluster = InProcessCluster(tmp_path, nodes=3)
    runtime.run(cluster.start())
    namespace = Namespace(runtime, runtime.run(cluster.connect()))
    writer = namespace.open_log("left").open_writer()
    pending = writer.write(1, b"x")

    async def stop() -> None:
        await cluster.stop()

    runtime._closers.insert(0, stop)  # closers run last first: the cluster outlives the namespace
    runtime.close()
    assert pending.done()
    assert pending.result() == DLSN(1, 0, 0)
    with pytest.raises(AlreadyClosedError):
        namespace.logs()
    namespace.close()
    writer.close()


@pytest.mark.processes
def test_a_namespace_is_bound_and_used_over_a_real_zookeeper(runtime, tmp_path):
    from metadata.bookkeeper.ledgers import LedgerStore
    from metadata.zookeeper.embedded import EmbeddedZooKeeper

    with EmbeddedZooKeeper(tmp_path / "zookeeper", security=zookeeper_security()) as zookeeper:
        uri = f"distributedlog://{zookeeper.address}/logs"
        nodes: list[tuple[Bookie, ZooKeeperStore]] = []

        async def start() -> None:
            for i in range(3):
                store = await open_session(zookeeper.address, SecuritySettings())
                if not i:
                    await LedgerStore(store).format()
                settings = BookieSettings(
                    journal_directories=(str(tmp_path / f"journal-{i}"),),
                    ledger_directories=(str(tmp_path / f"ledgers-{i}"),),
                    bookie_port=0,
                    listening_address="127.0.0.1",
                    journal_max_size_mb=16,
                    min_usable_size_for_entry_log_creation=0,
                    security=role_security("node"),
                )
                nodes.append((Bookie(settings, store), store))
                await nodes[-1][0].start()

        async def stop() -> None:
            for bookie, store in nodes:
                await bookie.stop()
                await store.close()

        runtime.run(start())
        try:
            Namespace.bind(uri)
            with Namespace.open(uri, {"readAheadWaitTime": 50}, runtime=runtime) as namespace:
                with namespace.open_log("real") as log:
                    for i in range(2):
                        with log.open_writer() as writer:
                            writer.write(i, b"%d" % i)
                    with log.open_reader() as reader:
                        records = reader.read_bulk(10)
                assert [(r.dlsn, r.payload) for r in records] == [(DLSN(1, 0, 0), b"0"), (DLSN(2, 0, 0), b"1")]
                namespace.delete_log("real")
                assert namespace.logs() == []
        finally:
            runtime.run(stop())
            Runtime.shared().close()
