"""What the table of bad input is held against: a sandbox with data in it, and the proof that a case lost nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.core.sync.writer import LogWriter
from dlspark.sandbox.sandbox import Sandbox
from helpers.bookie.wire_bytes import send
from helpers.waiting import wait_until
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.securing import open_session
from storage_node.client.client import LedgerClient
from storage_node.protocol.digests import master_key
from storage_node.protocol.encoding import encode_bookie_info_request, encode_read_request
from storage_node.protocol.values import BookieInfoResponse

T = TypeVar("T")
CANARY = "canary"
CANARY_RECORDS = 300
VICTIM = 3
"""The node whose files are damaged."""
NODE_SETTINGS = {"zkTimeout": 3000, "flushInterval": 3_600_000}
"""A node that was killed cannot register again before its former session has expired. Checkpoints are made only at
start and end, so that a case knows what is in the journal."""


def canary_payload(index: int) -> bytes:
    return b"canary %06d " % index + b"sings" * 40


class Rig:
    """A running sandbox; `canary` holds records that must stay readable, `pulse` takes a new one after each case."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sandbox = Sandbox(directory / "sandbox", nodes=4, node_settings=NODE_SETTINGS)
        self.sandbox.start()
        self.namespace = Namespace.open(self.sandbox.uri, SETTINGS)
        self._write_canary()
        self.namespace.create_log("pulse")
        self._pulse_log = self.namespace.open_log("pulse")
        self._pulse: LogWriter = self._pulse_log.open_writer()
        self._beats = 0

    def close(self) -> None:
        try:
            self._pulse.close()
            self._pulse_log.close()
            self.namespace.close()
        finally:
            self.sandbox.stop()

    def _write_canary(self) -> None:
        """Write three ledgers with a copy of every entry on all four nodes: any node that is attacked holds all."""
        self.namespace.create_log(CANARY)
        with self.namespace.open_log(CANARY, EVERYWHERE) as log:
            for first in range(0, CANARY_RECORDS, 100):
                with log.open_writer() as writer:
                    futures = [writer.write(index, canary_payload(index)) for index in range(first, first + 100)]
                    writer.flush()
                    for future in futures:
                        future.result(60)

    # ---- places to attack -------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return self.sandbox.uri

    @property
    def port(self) -> int:
        """Return the port of node 0."""
        return self.sandbox.state.node_ports[0]

    def log(self, name: str = CANARY) -> Log:
        return self.namespace.open_log(name)

    @property
    def canary_ledger(self) -> int:
        """Return a closed (not fenced) ledger that node 0 holds."""
        return self._ledger_on(0)

    def _ledger_on(self, node: int) -> int:
        bookie = self.sandbox.node_ids[node]
        with self.log() as log:
            ledgers = [segment.ledger_id for segment in log.segments()]
        for ledger_id in ledgers:
            metadata: LedgerMetadata = self.with_store(partial(_read_ledger, ledger_id=ledger_id))
            if bookie in metadata.last_ensemble.bookies:
                return ledger_id
        raise AssertionError(f"no ledger of the canary lies on node {node}")

    @property
    def key(self) -> bytes:
        """Return the master key of all ledgers of the canary."""
        return master_key(b"")

    def with_store(self, use: Callable[[ZooKeeperStore], Coroutine[object, object, T]]) -> T:
        """Run `use` with a ZooKeeper session of its own."""

        async def run() -> T:
            store = await open_session(self.sandbox.zookeeper_address, SecuritySettings())
            try:
                return await use(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def with_ledgers(self, use: Callable[[LedgerClient], Coroutine[object, object, T]]) -> T:
        """Run `use` with a ledger client of its own."""

        async def run(store: ZooKeeperStore) -> T:
            client = LedgerClient(LedgerStore(store), BookieRegistry(store))
            try:
                return await use(client)
            finally:
                await client.close()

        return self.with_store(run)

    @contextmanager
    def overwritten(self, path: str, data: bytes) -> Iterator[None]:
        """Put other bytes into a znode for the length of a block."""
        before = self.with_store(lambda store: store.get(path))[0]
        self.with_store(lambda store: store.put(path, data, -1))
        try:
            yield
        finally:
            self.with_store(lambda store: store.put(path, before, -1))

    @contextmanager
    def node_down(self, node: int = VICTIM, *, in_order: bool = False) -> Iterator[Path]:
        """Kill a node (or end it in order), so that its files can be damaged; put them back and start it at the end."""
        if in_order:
            self._end_in_order(node)
        else:
            self.sandbox.kill_node(node)
        place, copy = self.sandbox.node_directory(node), self.directory / "undamaged"
        shutil.copytree(place, copy)
        try:
            yield place
        finally:
            if self.sandbox.node_pid(node) is not None:
                self.sandbox.kill_node(node)
            shutil.rmtree(place)
            copy.rename(place)
            self.sandbox.start_node(node)

    def fill_journals(self, batches: int = 12) -> None:
        """Let every node's journal hold at least so many batches that no checkpoint has made superfluous."""

        async def add(client: LedgerClient) -> None:
            writer = await client.create(ensemble_size=4, write_quorum=4, ack_quorum=4)
            for index in range(batches):
                await writer.add(b"batch %d" % index)
            await writer.close()

        self.with_ledgers(add)

    def _end_in_order(self, node: int) -> None:
        pid = self.sandbox.node_pid(node)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: self.sandbox.node_pid(node) is None, "the node does not end")

    def read_from_node(self, node: int) -> None:
        """Read each entry of the canary that a node holds from that node alone; raises what it answers."""
        bookie = self.sandbox.node_ids[node]
        with self.log() as log:
            segments = log.segments()
        for segment in segments:
            metadata: LedgerMetadata = self.with_store(partial(_read_ledger, ledger_id=segment.ledger_id))
            if bookie not in metadata.last_ensemble.bookies:
                continue
            for entry_id in range(metadata.last_entry + 1):
                send(self.sandbox.state.node_ports[node], encode_read_request(1, segment.ledger_id, entry_id))

    # ---- proof ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that every node serves, every record of the canary is there, and a new record can be written."""
        for port in self.sandbox.state.node_ports:
            answer = send(port, encode_bookie_info_request(1))
            assert isinstance(answer, BookieInfoResponse)
            assert answer.free_disk_space
        with self.log() as log, log.open_reader() as reader:
            records = reader.read_bulk(CANARY_RECORDS + 1)
        assert [(r.txid, bytes(r.payload)) for r in records] == [(i, canary_payload(i)) for i in range(CANARY_RECORDS)]
        self._pulse.write(self._beats, b"beat").result(60)
        self._beats += 1


SETTINGS = {"lockTimeoutSeconds": 0, "periodicFlushFrequencyMilliSeconds": 5}
EVERYWHERE = {"bkcEnsembleSize": 4, "bkcWriteQuorumSize": 4, "bkcAckQuorumSize": 2}


async def _read_ledger(store: ZooKeeperStore, ledger_id: int) -> LedgerMetadata:
    return (await LedgerStore(store).read(ledger_id)).value
