"""Clients of proxies, in processes of their own: what rows P18 to P23 load proxies with.

Each function with a `Connection` is a child: it connects, says which process it is, waits for "go", loads for a window,
sends what it counted and waits until it has been looked at. Loads are closed: each answer starts the client's next
request. An error ends the run: a figure with refusals in it would be of nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from benchmarks.cluster import run
from benchmarks.costs import Window, within
from benchmarks.limits import child_process
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.client.producing import AsyncProducer
from dlspark.serving.protocol.operations import Answer, Handshake, ProxyInfo, Refusal, WriteRecords
from dlspark.serving.security.credentials import client_credentials
from metadata.foundation.descriptors import raise_limit
from metadata.foundation.errors import check
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.settings import SecuritySettings
from storage_node.transport.tcp import TcpNetwork

WARM_UP = 0.25
"""Share of a window that is not counted."""
PROCESSES = 2
CLIENTS = 100
FRAMES_DEPTH = 8
"""Requests under way of each client."""
BATCH_RECORDS = 100
STREAMS = 10
_DIALS = 100
"""Connections that are made at a time."""
Load: TypeAlias = "Callable[[Connection, str, list[str], int, int, float, str], None]"


class Counted:
    """Records that were acknowledged within the counted part of a window.

    The window ends with the first of them at the earliest: however slow a machine is, its rate is above nothing.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        now = clock()
        self.begin, self.end = now + WARM_UP * seconds, now + (1 + WARM_UP) * seconds
        self.records = 0
        self.all_records = 0
        """Warm-up and all that was under way at the end too."""

    def add(self, records: int) -> bool:
        """Count them; whether the window goes on."""
        now = self._clock()
        self.all_records += records
        if now >= self.begin and (now < self.end or not self.records):
            self.records += records
            self.end = max(self.end, now)
        return now < self.end

    @property
    def per_second(self) -> float:
        """The rate within the counted part."""
        return self.records / (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Written:
    """How fast did clients write, and how much in all?"""

    per_second: float
    """Within the counted part of the window."""
    all_records: int


def records_per_s(
    load: Load,
    address: str,
    streams: list[str],
    record_bytes: int,
    seconds: float,
    folder: str = "",
    *,
    clients: int = CLIENTS,
    window: Callable[[list[int]], Window] | None = None,
) -> float:
    """Return how much `clients` clients in `PROCESSES` processes at most get written together; with an identity folder
    under TLS. `window` makes a window of the processes' ids: it begins when they do, and ends before they do.
    """
    processes = min(PROCESSES, clients)
    share = clients // processes
    with ExitStack() as stack:
        ends = [
            stack.enter_context(child_process(load, address, streams, share, record_bytes, seconds, folder))
            for _ in range(processes)
        ]
        pids = [int(end.recv()) for end in ends]
        looking = None if window is None else window(pids)
        with within(looking):
            for end in ends:
                end.send("go")
            written: list[Written] = [end.recv() for end in ends]
        if looking is not None:
            looking.units = sum(each.all_records for each in written)
        for end in ends:
            end.send("end")
        return sum(each.per_second for each in written)


def frames_load(
    end: Connection, address: str, streams: list[str], clients: int, record_bytes: int, seconds: float, folder: str = ""
) -> None:
    """Write, in a child, one record a request, over the connection of each client."""
    run(_frames_load(end, address, streams, clients, record_bytes, seconds, folder))


async def _frames_load(
    end: Connection, address: str, streams: list[str], clients: int, record_bytes: int, seconds: float, folder: str
) -> None:
    network = TcpNetwork()
    credentials = client_credentials(security_of(folder))
    connected = [await FramesClient.connect(network, address, credentials=credentials) for _ in range(clients)]
    payload = os.urandom(record_bytes)
    for stream in streams:
        # Uncounted: the proxy takes the log over with the first record.
        await _own(connected[0], stream)
    _wait_for_go(end)
    counted = Counted(seconds)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    under_way = 0

    def write(client: FramesClient, request: WriteRecords) -> None:
        nonlocal under_way
        under_way += 1

        def answered(answer: Answer) -> None:
            nonlocal under_way
            under_way -= 1
            if isinstance(answer, Refusal):
                if not ended.done():
                    ended.set_exception(RuntimeError(f"a write was refused: {answer.message}"))
            elif counted.add(1):
                write(client, request)
            elif not under_way and not ended.done():
                ended.set_result(None)

        client.submit(request, answered)

    for number, client in enumerate(connected):
        request = WriteRecords(streams[number % len(streams)], (payload,))
        for _ in range(FRAMES_DEPTH):
            write(client, request)
    await ended
    _tell(end, counted)
    await asyncio.gather(*(client.close() for client in connected))


async def _own(client: FramesClient, stream: str) -> None:
    answer = await client.call(WriteRecords(stream, (b"first",)))
    check(not isinstance(answer, Refusal), f"the first record was refused: {answer}")


def library_load(
    end: Connection, address: str, streams: list[str], clients: int, record_bytes: int, seconds: float, folder: str = ""
) -> None:
    """Write, in a child, by clients of the library, idempotent producers as they are by default, as many records under
    way.
    """
    run(_library_load(end, address, streams, clients, record_bytes, seconds, folder))


async def _library_load(
    end: Connection, address: str, streams: list[str], clients: int, record_bytes: int, seconds: float, folder: str
) -> None:
    connected = [await AsyncClient.connect(address, security_values(folder)) for _ in range(clients)]
    payload = os.urandom(record_bytes)
    producers = [client.producer(streams[number % len(streams)]) for number, client in enumerate(connected)]
    await asyncio.gather(*(producer.write(payload) for producer in producers))
    _wait_for_go(end)
    counted = Counted(seconds)

    async def writing(producer: AsyncProducer) -> None:
        await producer.write(payload)
        while counted.add(1):
            await producer.write(payload)

    await asyncio.gather(*(writing(producer) for producer in producers for _ in range(FRAMES_DEPTH)))
    _tell(end, counted)
    await asyncio.gather(*(client.close() for client in connected))


def grpc_load(
    end: Connection, address: str, streams: list[str], clients: int, record_bytes: int, seconds: float, folder: str = ""
) -> None:
    """Send, in a child, a Write of `BATCH_RECORDS` records at a time for each client, each record of a fate of its own;
    `grpc.aio` with the generated messages.
    """
    run(_grpc_load(end, address, streams, clients, record_bytes, seconds, folder, whole=False))


def grpc_whole_load(
    end: Connection, address: str, streams: list[str], clients: int, record_bytes: int, seconds: float, folder: str = ""
) -> None:
    """Do the same, in a child, with each batch written whole or not at all (`atomic`)."""
    run(_grpc_load(end, address, streams, clients, record_bytes, seconds, folder, whole=True))


async def _grpc_load(
    end: Connection,
    address: str,
    streams: list[str],
    clients: int,
    record_bytes: int,
    seconds: float,
    folder: str,
    *,
    whole: bool,
) -> None:
    import grpc  # only here: no process that has it may fork

    from dlspark.serving.bindings.grpc_server import client_options
    from dlspark.serving.protocol import distributedlog_pb2 as pb

    path = "/dlspark.serving.v1.DistributedLog/Write"
    payloads = [os.urandom(record_bytes) for _ in range(BATCH_RECORDS)]
    success = pb.Status.Code.SUCCESS
    options = client_options()
    if folder:
        files = TlsIdentity(TlsFiles.of_folder(folder)).material
        credentials = grpc.ssl_channel_credentials(files.authorities, files.key, files.chain)
        opened = grpc.aio.secure_channel(address, credentials, options=options)
    else:
        opened = grpc.aio.insecure_channel(address, options=options)
    async with opened as channel:
        call = channel.unary_unary(
            path,
            request_serializer=pb.WriteRequest.SerializeToString,
            response_deserializer=pb.WriteResponse.FromString,
        )

        async def write(request: pb.WriteRequest) -> None:
            response = await call(request, timeout=30)
            if response.status.code != success or any(one.HasField("refusal") for one in response.results):
                raise RuntimeError(f"a batch was refused: {response.status.message}")

        async def one_client(number: int) -> None:
            request = pb.WriteRequest(stream=streams[number % len(streams)], payloads=payloads, atomic=whole)
            await write(request)
            while counted.add(BATCH_RECORDS):
                await write(request)

        for stream in streams:
            await write(pb.WriteRequest(stream=stream, payloads=payloads[:1]))
        _wait_for_go(end)
        counted = Counted(seconds)
        await asyncio.gather(*(one_client(number) for number in range(clients)))
        _tell(end, counted)


def idle_clients(end: Connection, address: str, clients: int) -> None:
    """Open, in a child, connections that ask one handshake and nothing more, raw frames and no client around them. It
    begins when it is told to, and says how many are connected then, and before it ends."""
    raise_limit()
    run(_idle_clients(end, address, clients))


async def _idle_clients(end: Connection, address: str, clients: int) -> None:
    network = TcpNetwork()
    connected: list[FramesClient] = []

    async def connect() -> FramesClient:
        client = await FramesClient.connect(network, address, timeout_ms=30_000)
        answer = await client.call(Handshake(ownerships=False))
        check(isinstance(answer, ProxyInfo), f"a handshake was answered with {answer}")
        return client

    _wait_for_go(end)
    while len(connected) < clients:
        # So many at a time: dials beyond the listener's backlog would be repeated only after a second.
        count = min(_DIALS, clients - len(connected))
        connected += await asyncio.gather(*(connect() for _ in range(count)))
    end.send(sum(not client.closed for client in connected))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(end.fileno(), stopped.set)
    await stopped.wait()
    loop.remove_reader(end.fileno())
    end.recv()
    end.send(sum(not client.closed for client in connected))
    await asyncio.gather(*(client.close() for client in connected))


def security_values(folder: str) -> dict[str, str]:
    """Return the settings, by their keys, of one whom this identity folder proves; none for no folder."""
    return {"security": "on", "securityDirectory": folder} if folder else {}


def security_of(folder: str) -> SecuritySettings:
    """Return the same as settings are read."""
    return SecuritySettings(security="on", security_directory=folder) if folder else SecuritySettings()


def _wait_for_go(end: Connection) -> None:
    """Wait until all processes of a load begin together. Nothing runs on the loop yet that must not wait."""
    end.send(os.getpid())
    check(end.recv() == "go", "the run has ended")


def _tell(end: Connection, counted: Counted) -> None:
    """Say what was written, and wait until this process was looked at. Nothing is under way any more."""
    end.send(Written(counted.per_second, counted.all_records))
    check(end.recv() == "end", "the run has ended")
