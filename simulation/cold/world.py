"""`ColdWorld`: storage nodes, metadata, and a bucket with S3's manners, all on virtual time.

Two things differ from other runs. The lists of segments change without their owners' locks, so the checkers of owners
and of ledgers are not asked: other runs are for these. `checker` looks at what cold storage may do. And what goes to
threads (Parquet, hashes) is done at once: it takes no virtual time, and no fault can meet it in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from dlspark.core.cold.reading.cold_files import ColdFiles
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.objects.addresses import root_of
from dlspark.objects.memory import MemoryBucket, MemoryObjectStore
from dlspark.objects.memory_faults import ObjectFaults
from dlspark.objects.opened_store import ReadPolicy
from dlspark.objects.store import ObjectStore
from metadata.store import Op
from simulation.cluster import EPOCH_MS, ClientMachine, World
from simulation.cold.checker import ColdChecker
from simulation.environment.loop import SimulatedLoop
from simulation.tier import open_namespace

T = TypeVar("T")

ROOT = "s3://simulated/cold"
PART_BYTES = 2 << 10
"""Files of a run are small: with these most are uploads of some parts."""


class ColdWorld(World):
    """Everything of one run with cold storage."""

    def __init__(self, seed: int | str, *, trace: bool = False) -> None:
        super().__init__(seed, trace=trace)
        _run_at_once(self.loop)
        self.fabric.on_frame = lambda *_: None
        self.faults = ObjectFaults(self.rng("bucket"))
        self.bucket = MemoryBucket(lambda: EPOCH_MS + int(self.loop.time() * 1000), self.faults)
        self.cold_checker = ColdChecker(self, self.bucket)
        self._pauses = self.rng("pauses of the bucket")

    def _applied(self, ops: Sequence[Op]) -> None:
        self.trace.note(f"metadata {[(type(op).__name__, op.path) for op in ops]}")
        self.cold_checker.metadata_applied(ops)

    def open_store(self, address: str, options: Mapping[str, str] | None = None) -> ObjectStore:
        """Return a store of the bucket, for the process that asks."""
        return MemoryObjectStore(
            self.bucket,
            root_of(address).url,
            part_bytes=PART_BYTES,
            policy=ReadPolicy(attempts=4, first_pause_s=0.02, longest_pause_s=0.2),
            pause=lambda: asyncio.sleep(self._pauses.uniform(0.0, 0.01)),
        )

    async def namespace(self, machine: ClientMachine, settings: Settings) -> AsyncNamespace:
        """Return the namespace in a process of the machine, which has begun; its readers find the bucket."""
        if machine.process is None:
            raise RuntimeError("the machine was not started")
        namespace = await open_namespace(machine, machine.process, machine.session, settings)
        namespace.services.shared.cold = ColdFiles(self.open_store).hold()
        return namespace


def _run_at_once(loop: SimulatedLoop) -> None:
    """Have what is meant for threads run where it is asked for."""

    def run(executor: object, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        future: asyncio.Future[T] = loop.create_future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    loop.run_in_executor = run  # type: ignore[method-assign,assignment]


def drawn_settings(rng: Random) -> Settings:
    """Return the settings of a run: small files and short times, so that units come and go within seconds."""
    never = rng.random() < 0.15
    return Settings(
        cold_path=ROOT,
        cold_freshness_s=rng.choice((0, 1, 2, 5)),
        cold_max_delay_s=rng.choice((1, 2)),
        cold_target_bytes=rng.choice((1 << 10, 8 << 10, 128 << 20)),
        cold_hot_retention_s=-1 if never else rng.choice((0, 0, 1, 4)),
        cold_retention_hours=-1 if never or rng.random() < 0.5 else rng.choice((5, 9)),
        retention_hours=rng.choice((0, 4)),
        output_buffer_bytes=rng.choice((0, 300)),
        rolling_minutes=0,
        max_segment_bytes=rng.choice((200, 900)),
        rolling_concurrency=0,
        lock_timeout_s=8,
        zk_session_timeout_s=2,
        long_poll_ms=300,
        read_ahead_wait_ms=50,
    )
