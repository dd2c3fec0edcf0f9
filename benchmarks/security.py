"""Rows P39 to P43: what security costs, on a secured cluster beside an open one.

Two sandboxes of this machine, alike but for one switch: ZooKeeper, as many storage nodes, a write proxy. One has
`security=on` (mutual TLS everywhere, rights at the proxy), the other nothing. Windows of both follow each other, the
open one's before and after the secured one's, so that a machine that gets slower does so to both. Beside the time on
the clock stands the processor time of all that takes part: the client's process, storage nodes or proxy.

**P39.** One entry of 100 B at a time, by the ledger client, to as many copies as there are nodes.

**P40.** Bytes through a link (`tls_links`), there and back: under TLS beside the TLS of asyncio, and of uvloop where it
is installed; beside the same link without TLS.

**P41.** New connections to one storage node, each with START_TLS and both certificates, so many at a time by one client
process, and closed again. Beside it the server's half of such a handshake in memory, by OpenSSL alone.

**P42.** The rights door of a proxy, in this process, before a service that does nothing: a request that was allowed
before to this connection and log, and the first one of a new connection to a log that nobody asked for before. There
are a thousand rules. Beside it the time that one record takes of the open proxy's processor.

**P43.** Records of 1 KB through a proxy, frames and gRPC, and one at a time by the thin client.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import tls_links
from benchmarks.cluster import run
from benchmarks.costs import PROCESSOR, Watch
from benchmarks.processes import exact_cpu_s
from benchmarks.proxies import ProxyProcess, write_proxy
from benchmarks.results import Row, Target, percentile
from benchmarks.serving import producer_latencies_us
from benchmarks.storage import LEAST_SAMPLES, SMALL_BYTES, WARM_UP
from benchmarks.thin_clients import (
    CLIENTS,
    STREAMS,
    Load,
    frames_load,
    grpc_whole_load,
    records_per_s,
    security_of,
    security_values,
)
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.process.rights_door import RightsDoor
from dlspark.serving.protocol.operations import Answer, Request, WriteRecords
from dlspark.testing.java_process import free_port
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import check
from metadata.security.audit import NOWHERE
from metadata.security.principals import Principal, Scheme
from metadata.security.rights import LogPattern, Rule, RuleBook, RuleSet, Subject, Verb
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session
from storage_node.client.client import LedgerClient
from storage_node.client.entering import ClientSecurity
from storage_node.settings.client import ClientSettings
from storage_node.transport.tcp import TcpNetwork

NODES: Final = 3
ACKNOWLEDGED: Final = 2
APPEND_GOAL: Final = 1.15
BYTES_GOAL: Final = 0.9
HANDSHAKES_AT_A_TIME: Final = 16
RECORD_BYTES: Final = 1024
RULES: Final = 1_000
DOOR_REQUESTS: Final = 2_000
"""Looked at between two looks at the clock."""
_CONNECT_MS: Final = 10_000
T = TypeVar("T")


class Ground:
    """One of the two clusters, and as whom a client enters it."""

    def __init__(self, sandbox: Sandbox, proxy: ProxyProcess, folder: str) -> None:
        """Take a sandbox and its proxy that run; `folder` is the client's identity folder, empty for the open one."""
        self.sandbox = sandbox
        self.proxy = proxy
        self.folder = folder
        self._count = 0

    def name(self) -> str:
        """Return the name of a new log."""
        self._count += 1
        return f"measured-{self._count}"

    @property
    def security(self) -> SecuritySettings:
        """The client's settings."""
        return security_of(self.folder)

    @property
    def node_pids(self) -> list[int]:
        """The storage nodes' processes."""
        pids = (self.sandbox.node_pid(index) for index in range(self.sandbox.node_count))
        return [pid for pid in pids if pid is not None]


class Grounds:
    """Both clusters, which run until the stack is left.

    Args:
        directory: for both.
        stack: what is ended at last.
        nodes: of each.
        again: whether the open one is measured after the secured one as well as before.
    """

    def __init__(self, directory: Path, stack: ExitStack, *, nodes: int = NODES, again: bool = True) -> None:
        self._again = again
        directory.mkdir(exist_ok=True)
        open_one = stack.enter_context(Sandbox(directory / "open", nodes=nodes))
        secured = stack.enter_context(Sandbox(directory / "secured", nodes=nodes, secure=True))
        proxies = [
            stack.enter_context(write_proxy(one.uri, directory, grpc_port=free_port(), settings=settings))
            for one, settings in ((open_one, {}), (secured, secured.security.settings("proxy")))
        ]
        self.open = Ground(open_one, proxies[0], "")
        self.secured = Ground(secured, proxies[1], str(secured.security.client_folder))
        self.node_folder = secured.security.folder("node")

    def around(self, measure: Callable[[Ground], T]) -> tuple[T, list[T]]:
        """Measure the secured one, and the open one before and after it."""
        around = [measure(self.open)]
        secured = measure(self.secured)
        if self._again:
            around.append(measure(self.open))
        return secured, around


@dataclass(frozen=True, slots=True)
class Appends:
    """How long did appends take, one after the other?"""

    p50_us: float
    p99_us: float
    cpu_us: float
    """Processor time of the client and of all storage nodes, for one."""


@dataclass(frozen=True, slots=True)
class Proxied:
    """What went through a proxy?"""

    records_per_s: float
    proxy_us: float
    """The proxy's processor time for a record."""


class SecurityBenchmark:
    """Rows P39 to P43.

    Args:
        grounds: the two clusters.
        clients: of a proxy.
        rules: of the rights door.
    """

    def __init__(self, grounds: Grounds, *, clients: int = CLIENTS, rules: int = RULES) -> None:
        self._grounds = grounds
        self._clients = clients
        self._rules = rules
        us, plain = "us: without security", "without security"
        at_most = Target(APPEND_GOAL, at_most=True)
        self._p50 = Row("P39", "append 100 B under TLS, depth 1, p50", "us", us + ", p50", at_most)
        self._p99 = Row("P39", "append 100 B under TLS, depth 1, p99", "us", us + ", p99", None)
        self._append_cpu = Row("P39", "the same: processor of client and nodes, an append", "us", us, None)
        kb = f"{tls_links.BLOCK_BYTES >> 10} KB there and back"
        self._links = {
            tls_links.ASYNCIO_TLS: self._echo_rows(f"link under TLS, {kb}", tls_links.ASYNCIO_TLS, BYTES_GOAL),
            tls_links.UVLOOP_TLS: self._echo_rows(f"link under TLS, {kb}", tls_links.UVLOOP_TLS, None),
            tls_links.OURS_PLAIN: self._echo_rows(f"link under TLS, {kb}", "the link in plain", None),
        }
        self._kinds = [kind for kind in tls_links.kinds() if kind in self._links]
        mutual = f"handshakes with a node, mutual, {HANDSHAKES_AT_A_TIME} at a time"
        self._handshakes = Row("P41", mutual, "1/s", "1/s: both halves in memory, one thread", None)
        self._handshake_cpu = Row(
            "P41", "the same: the node's processor, a handshake", "ms", "ms: OpenSSL's half", None
        )
        door = f"the rights door, {rules:,} rules"
        record = "us: a record of the open proxy's processor"
        self._door = Row("P42", f"{door}: a request like the one before", "us", record, None)
        self._first = Row("P42", f"{door}: a new connection, a new log", "us", record, None)
        many = f"1 KB, {clients} clients, one proxy, TLS"
        self._through = {
            "frames": self._proxied_rows(f"{many}: frames, a record each", plain),
            "gRPC": self._proxied_rows(f"{many}: gRPC, 100 records each, whole", plain),
        }
        self._thin = Row("P43", "append through a proxy under TLS, depth 1, p50", "us", us + ", p50", None)
        self.rows = [
            *(self._p50, self._p99, self._append_cpu),
            *(row for kind in self._kinds for row in self._links[kind]),
            *(self._handshakes, self._handshake_cpu, self._door, self._first),
            *(row for rows in self._through.values() for row in rows),
            self._thin,
        ]

    @staticmethod
    def _echo_rows(what: str, beside: str, goal: float | None) -> tuple[Row, Row]:
        target = None if goal is None else Target(goal)
        return (
            Row("P40", what, "MB/s", f"MB/s: {beside}", target),
            Row("P40", "the same: processor of both ends", "s/GB", f"s/GB: {beside}", None),
        )

    @staticmethod
    def _proxied_rows(what: str, plain: str) -> tuple[Row, Row]:
        return (
            Row("P43", what, "k/s", f"k/s: {plain}", None),
            Row("P43", "the same: the proxy's processor, a record", "us", f"us: {plain}", None),
        )

    def round(self, seconds: float) -> None:
        """Measure every row once."""
        secured, around = self._grounds.around(lambda ground: run(appends(ground, seconds)))
        self._p50.add(secured.p50_us, *(one.p50_us for one in around))
        self._p99.add(secured.p99_us, *(one.p99_us for one in around))
        self._append_cpu.add(secured.cpu_us, *(one.cpu_us for one in around))
        self._round_of_links(seconds)
        self._round_of_handshakes(seconds)
        open_us = self._round_of_proxies(seconds)
        known_us, first_us = door_times_us(self._rules, seconds / 2)
        self._door.add(known_us, open_us)
        self._first.add(first_us, open_us)

    def _round_of_links(self, seconds: float) -> None:
        folder = self._grounds.node_folder
        kinds = [*self._kinds, tls_links.OURS_TLS, *reversed(self._kinds)]
        found = list(zip(kinds, tls_links.echoes(kinds, folder, seconds / 2), strict=True))
        ours = dict(found)[tls_links.OURS_TLS]
        for kind in self._kinds:
            around = [one for other, one in found if other == kind]
            rate, cpu = self._links[kind]
            rate.add(ours.bytes_per_s / 1e6, *(one.bytes_per_s / 1e6 for one in around))
            cpu.add(ours.cpu_s_per_gb, *(one.cpu_s_per_gb for one in around))

    def _round_of_handshakes(self, seconds: float) -> None:
        server_s, both_s = tls_links.handshake_times_s(self._grounds.node_folder, seconds / 4)
        rate, cpu_s = run(handshakes(self._grounds.secured, seconds))
        server_after, both_after = tls_links.handshake_times_s(self._grounds.node_folder, seconds / 4)
        self._handshakes.add(rate, 1 / both_s, 1 / both_after)
        self._handshake_cpu.add(cpu_s * 1e3, server_s * 1e3, server_after * 1e3)

    def _round_of_proxies(self, seconds: float) -> float:
        """Return microseconds of the open proxy's processor for a record by frames."""
        loads: dict[str, tuple[Load, Callable[[Ground], str]]] = {
            "frames": (frames_load, lambda ground: ground.proxy.address),
            "gRPC": (grpc_whole_load, lambda ground: ground.proxy.grpc_address or ""),
        }
        open_us = 0.0
        for how, (load, address) in loads.items():

            def measure(ground: Ground, load: Load = load, address: Callable[[Ground], str] = address) -> Proxied:
                return proxied(ground, load, address(ground), self._clients, seconds)

            secured, around = self._grounds.around(measure)
            rate, cpu = self._through[how]
            rate.add(secured.records_per_s / 1e3, *(one.records_per_s / 1e3 for one in around))
            cpu.add(secured.proxy_us, *(one.proxy_us for one in around))
            if how == "frames":
                open_us = statistics.mean(one.proxy_us for one in around)
        thin, thin_around = self._grounds.around(lambda ground: run(_thin_p50_us(ground, seconds)))
        self._thin.add(thin, *thin_around)
        return open_us


async def appends(ground: Ground, seconds: float) -> Appends:
    """Time appends of the ledger client, each of which waits for the one before."""
    store = await open_session(ground.sandbox.zookeeper_address, ground.security)
    client = LedgerClient(
        LedgerStore(store, LEDGERS_PATH),
        BookieRegistry(store, LEDGERS_PATH),
        settings=ClientSettings(security=ground.security),
    )
    try:
        copies = len(ground.node_pids)
        writer = await client.create(ensemble_size=copies, write_quorum=copies, ack_quorum=min(copies, ACKNOWLEDGED))
        payload = bytes(SMALL_BYTES)
        latencies: list[float] = []
        spent_s, counted_from = 0.0, 0
        begin = time.perf_counter()
        count = 0
        while (now := time.perf_counter()) - begin < seconds or len(latencies) < LEAST_SAMPLES:
            counted = now - begin > seconds * WARM_UP
            if counted and not latencies:
                spent_s, counted_from = _cpu_s(ground.node_pids), count
                now = time.perf_counter()
            await writer.add(payload)
            count += 1
            if counted:
                latencies.append((time.perf_counter() - now) * 1e6)
        cpu_s = _cpu_s(ground.node_pids) - spent_s
        await writer.close()
        await client.delete(writer.ledger_id)
    finally:
        await client.close()
        await store.close()
    return Appends(percentile(latencies, 0.5), percentile(latencies, 0.99), cpu_s / (count - counted_from) * 1e6)


def _cpu_s(pids: Sequence[int]) -> float:
    """Return the processor time of these and of this process, so far."""
    return time.process_time() + sum(map(exact_cpu_s, pids))


async def handshakes(ground: Ground, seconds: float) -> tuple[float, float]:
    """Make connections to the first storage node; return how many a second, and the node's processor seconds of one."""
    security = ClientSecurity(ground.security)
    check(security.identity is not None, "only a secured node shakes hands")
    network = TcpNetwork()
    node = ground.sandbox.node_ids[0]
    host, _, port = node.rpartition(":")
    pid = ground.node_pids[0]
    count = 0
    end = time.perf_counter() + seconds

    async def connecting() -> None:
        nonlocal count
        while time.perf_counter() < end or count < tls_links.LEAST_HANDSHAKES:
            link, _ = await security.connect(network, host, int(port), _Nobody(), timeout_ms=_CONNECT_MS, node=node)
            count += 1
            link.close()

    spent_s, begin = exact_cpu_s(pid), time.perf_counter()
    try:
        await asyncio.gather(*(connecting() for _ in range(HANDSHAKES_AT_A_TIME)))
    finally:
        await security.close()
    took_s = time.perf_counter() - begin
    return count / took_s, (exact_cpu_s(pid) - spent_s) / count


class _Nobody:
    """Takes a link that nothing is asked on."""

    def frame_received(self, frame: memoryview) -> None:
        """Fail: nothing was asked."""
        raise RuntimeError("a node answered what nobody asked")

    def batch_done(self) -> None:
        """Do nothing."""

    def link_closed(self, error: Exception | None) -> None:
        """Do nothing: it was closed here."""


def door_times_us(rules: int, seconds: float) -> tuple[float, float]:
    """Return the microseconds of a request at the rights door: like the one before it; and of a new connection to a log
    that nobody asked for before."""
    # Half of them speak of this very principal.
    said = [f"allow user:alice write elsewhere-{number}-*" for number in range(rules // 2)]
    said += [f"deny role:{number} write *" for number in range(rules - len(said) - 1)]
    book = RuleBook(RuleSet.of(_rule(text) for text in [*said, "allow user:alice write measured-*"]))
    door = RightsDoor(_AtOnce(), lambda: book, demands_proof=True, noted=NOWHERE)
    alice = Principal("alice", Scheme.TLS, frozenset({"client"}), time.time() + 3600)
    request = WriteRecords("measured-1", (bytes(RECORD_BYTES),))
    answered = _Counting()
    numbers = itertools.count()
    known = Caller("127.0.0.1:1", alice, session="1")
    known_s, known_count = _timed(lambda: door.submit(request, known, answered), seconds)

    def first() -> None:
        caller = Caller("127.0.0.1:1", alice, session="2")
        door.submit(WriteRecords(f"measured-{next(numbers)}", request.payloads), caller, answered)
        door.caller_gone(caller)

    first_s, first_count = _timed(first, seconds)
    check(answered.count == known_count + first_count, "a request was refused at the rights door, or not answered")
    return known_s / known_count * 1e6, first_s / first_count * 1e6


def _timed(step: Callable[[], None], seconds: float) -> tuple[float, int]:
    count = 0
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds or not count:
        for _ in range(DOOR_REQUESTS):
            step()
        count += DOOR_REQUESTS
    return elapsed, count


def _rule(text: str) -> Rule:
    effect, who, verb, logs = text.split(" ")
    return Rule(effect == "allow", Subject.parse(who), frozenset({Verb.parse(verb)}), LogPattern.parse(logs))


_DONE: Final = object()


class _AtOnce:
    """A service that has written before it was asked: what is measured is the door."""

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Answer it."""
        reply(_DONE)  # type: ignore[arg-type]  # told from a refusal by what it is

    def caller_gone(self, caller: Caller) -> None:
        """Do nothing."""


class _Counting:
    """Counts what was let through."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, answer: Answer) -> None:
        self.count += answer is _DONE


def proxied(ground: Ground, load: Load, address: str, clients: int, seconds: float) -> Proxied:
    """Write through the cluster's proxy by many clients."""
    streams = [ground.name() for _ in range(STREAMS)]
    watch = Watch({"proxy": [ground.proxy.pid]})
    rate = records_per_s(
        load, address, streams, RECORD_BYTES, seconds, ground.folder, clients=clients, window=lambda _: watch
    )
    return Proxied(rate, watch.figures["proxy"][PROCESSOR])


async def _thin_p50_us(ground: Ground, seconds: float) -> float:
    async with await AsyncClient.connect(ground.proxy.address, security_values(ground.folder)) as client:
        return percentile(await producer_latencies_us(client.producer(ground.name()), seconds), 0.5)
