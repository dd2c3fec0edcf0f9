"""`AsyncStreamMonitor`: a heartbeat to each of many streams every so often, and what became of them.

It shows from a client's side whether streams can be written, without writing to them: a heartbeat makes a proxy own the
stream, and puts no record into it. Streams are split between instances by their hash, upstream's, so that several
monitors of the same list ask each stream once.

Fault model: whatever a stream's heartbeat meets is counted, and asked again at the next interval. A stream that does
not answer holds up no other, and is not asked twice at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from dlspark.serving.client.requests import Cancellable
from dlspark.serving.protocol.operations import Answer, Heartbeat, Refusal
from dlspark.serving.routing.hosts import hash_int
from metadata.foundation.errors import CallerError
from metadata.foundation.opened_here import OnOneLoop

INTERVAL_MS: Final = 100


class HeartbeatSender(Protocol):
    """Sends a heartbeat through proxies; `AsyncClient.monitor` gives it."""

    def __call__(self, request: Heartbeat, settle: Callable[[Answer], None]) -> Cancellable:
        """Send; `settle` is called once, perhaps before this returns."""
        ...


@dataclass(slots=True)
class StreamHealth:
    """The health of one stream: whether it can be written, by its heartbeats so far."""

    answered: int = 0
    refused: int = 0
    last_ms: float = 0.0
    """How long the last one took, in milliseconds."""
    longest_ms: float = 0.0
    failing: int = 0
    """How many in a row were refused; 0 where the last one was answered."""
    last_refusal: str = ""


def is_mine(stream: str, instance: int, instances: int) -> bool:
    """Return whether this instance of several monitors `stream`."""
    return abs(hash_int(stream)) % instances == instance


class AsyncStreamMonitor(OnOneLoop):
    """Shows whether streams can be written, and how fast, without writing to them: see `health`.

    Open it with `AsyncClient.monitor`, and close it.

    Args:
        send: sends a heartbeat through proxies.
        streams: the streams of all instances.
        instance: which of the instances this one is, counted from 0.
        instances: how many share the streams.
        interval_ms: between two heartbeats of a stream.
        to_readers: heartbeats are control records that readers see.

    Raises CallerError for an instance that cannot be, or an interval that is not above 0.
    """

    def __init__(
        self,
        send: HeartbeatSender,
        streams: Iterable[str],
        *,
        instance: int = 0,
        instances: int = 1,
        interval_ms: int = INTERVAL_MS,
        to_readers: bool = False,
    ) -> None:
        if not 0 <= instance < instances or interval_ms <= 0:
            raise CallerError(f"instance {instance} of {instances}, every {interval_ms} ms, cannot be")
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._interval_s = interval_ms / 1000
        self._to_readers = to_readers
        self._instance, self._instances = instance, instances
        self._health: dict[str, StreamHealth] = {}
        self._beats: dict[str, Cancellable] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self.watch(streams)

    @property
    def health(self) -> dict[str, StreamHealth]:
        """Of each stream of this instance, by name."""
        return dict(self._health)

    def watch(self, streams: Iterable[str]) -> None:
        """Note that these are the streams from now on; those of other instances are passed over."""
        self._check_loop()
        wanted = (
            {one for one in streams if is_mine(one, self._instance, self._instances)} if not self._closed else set()
        )
        for stream in self._health.keys() - wanted:
            self._stop(stream)
            del self._health[stream]
        new = sorted(wanted - self._health.keys())
        for number, stream in enumerate(new):
            self._health[stream] = StreamHealth()
            # Spread over an interval: thousands of streams are not asked in one step of the loop.
            self._plan(stream, self._interval_s * number / len(new))

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        self._check_loop()
        self._closed = True
        for stream in list(self._health):
            self._stop(stream)

    def _stop(self, stream: str) -> None:
        timer = self._timers.pop(stream, None)
        if timer is not None:
            timer.cancel()
        beat = self._beats.pop(stream, None)
        if beat is not None:
            beat.cancel()

    def _plan(self, stream: str, delay_s: float) -> None:
        self._timers[stream] = self._loop.call_later(delay_s, self._beat, stream)

    def _beat(self, stream: str) -> None:
        del self._timers[stream]
        began = self._loop.time()
        beat = self._send(Heartbeat(stream, self._to_readers), partial(self._settled, stream, began))
        if stream not in self._timers:  # else it was settled at once, and the next one is planned
            self._beats[stream] = beat

    def _settled(self, stream: str, began: float, answer: Answer) -> None:
        self._beats.pop(stream, None)
        health = self._health.get(stream)
        if health is None or self._closed:
            return
        now = self._loop.time()
        health.last_ms = (now - began) * 1000
        health.longest_ms = max(health.longest_ms, health.last_ms)
        if isinstance(answer, Refusal):
            health.refused += 1
            health.failing += 1
            health.last_refusal = f"{answer.code.name}: {answer.message}"
        else:
            health.answered += 1
            health.failing = 0
        self._plan(stream, max(began + self._interval_s - now, 0.0))
