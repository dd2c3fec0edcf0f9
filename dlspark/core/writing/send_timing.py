"""`SendTimers`: when a segment sends without being asked.

It sends what is buffered, or a control record that makes entries visible:

    transmit     the buffer is full, and a minimum delay between two sends has not passed yet
    publish      an entry was acknowledged, with the immediate flush on: another one has to follow it
    flush        the periodic flush; twice in its time
    keep-alive   nothing was sent for long

Each has a timer of its name, and at most one of each waits. A control record makes entries visible because it carries
a later LAC than they could; it costs an entry, so buffered records are sent in its place where there are any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from dlspark.core.codec.records import KEEPALIVE_PAYLOAD
from dlspark.core.metrics.catalog import Measures
from dlspark.core.settings.settings import Settings


class SendingSegment(Protocol):
    """A segment as the timers use it."""

    last_sent: float
    """When an entry was sent last, by the event loop's clock."""

    @property
    def has_buffered(self) -> bool:
        """True if records wait to be sent."""
        ...

    @property
    def publish_needed(self) -> bool:
        """True if entries are acknowledged that no reader can see yet, and the segment takes others."""
        ...

    def send(self) -> None:
        """Send what is buffered, without waiting. A failure is the segment's."""
        ...

    def write_control(self, payload: bytes = ...) -> None:
        """Send what is buffered, then a control record in an entry of its own."""
        ...


def _timing(settings: Settings) -> tuple[int, int, bool, bool]:
    """Return what decides which timers run, and how often."""
    return settings.periodic_flush_ms, settings.keep_alive_ms, settings.immediate_flush, _at_once(settings)


def _at_once(settings: Settings) -> bool:
    """Return whether every record is sent by itself."""
    return settings.output_buffer_bytes == 0


class SendTimers:
    """The timers of one segment, from its beginning to `stop`."""

    def __init__(self, segment: SendingSegment, settings: Settings, measures: Measures) -> None:
        self._segment = segment
        self._settings = settings
        self._measures = measures
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False
        self._start()

    def use_settings(self, settings: Settings) -> None:
        """Use `settings` from the next record or timer on. Timers whose times have changed begin anew."""
        before, self._settings = self._settings, settings
        if not self._stopped and _timing(before) != _timing(settings):
            self._cancel("flush")
            self._cancel("keep-alive")
            self._start()

    def _start(self) -> None:
        """Start the timers that the settings ask for, and that do not run."""
        if self._settings.periodic_flush_ms > 0:
            self._every("flush", self._flush_period_s, self._flush)
        if self._settings.keep_alive_ms > 0:
            self._every("keep-alive", lambda: self._settings.keep_alive_ms / 1000, self._keep_alive)

    def stop(self) -> None:
        """End all timers, for good: nothing is sent any more unless a caller asks for it."""
        self._stopped = True
        for name in list(self._timers):
            self._cancel(name)

    # ------------------------------------------------------------------ sending, publishing

    def send_soon(self) -> None:
        """Send now; or, with a minimum delay between sends set, when it has passed."""
        wait = self._wait_s()
        if wait <= 0:
            self._segment.send()
        else:
            self._later("transmit", wait, self._segment.send)

    def sending(self) -> None:
        """Note that what is buffered is being sent: the send that waited for it is not needed any more."""
        if self._timers:  # called for every entry: mostly there are none
            self._cancel("transmit")

    def acknowledged(self) -> None:
        """Note that nothing is under way any more: with the immediate flush, have an entry follow those that readers
        cannot see yet."""
        if not self._settings.immediate_flush or not self._segment.publish_needed:
            return
        wait = self._wait_s()
        if wait <= 0:
            self._publish()
        else:
            self._later("publish", wait, self._publish)

    def _wait_s(self) -> float:
        """Return how long the minimum delay between sends still lasts."""
        delay_s = 0.0
        if self._settings.immediate_flush and _at_once(self._settings):
            delay_s = max(self._settings.immediate_flush_delay_ms, 0) / 1000
        return self._segment.last_sent + delay_s - self._loop.time()

    def _publish(self) -> None:
        """Have an entry follow the acknowledged ones: what is buffered, else a control record."""
        self._cancel("publish")
        if self._segment.publish_needed:
            # Readers see an entry once a later one carries its number as the LAC (I6): any entry will do.
            if self._segment.has_buffered:
                self._segment.send()
            else:
                self._segment.write_control()

    # ------------------------------------------------------------------ timers

    def _flush_period_s(self) -> float:
        if self._settings.immediate_flush and _at_once(self._settings):
            return 0.0
        return self._settings.periodic_flush_ms / 2000  # half of it, as upstream has it: a record waits no longer

    def _flush(self) -> None:
        segment, measures = self._segment, self._measures
        due = segment.has_buffered or segment.publish_needed
        (measures.flush_periodic_success if due else measures.flush_periodic_miss).inc()
        if segment.has_buffered:
            segment.send()
        else:
            self._publish()

    def _keep_alive(self) -> None:
        if self._loop.time() - self._segment.last_sent >= self._settings.keep_alive_ms / 1000:
            self._segment.write_control(KEEPALIVE_PAYLOAD)

    def _every(self, name: str, period_s: Callable[[], float], tick: Callable[[], None]) -> None:
        """Run `tick` again and again, for as long as `period_s` is above 0."""

        def again() -> None:
            self._every(name, period_s, tick)  # before `tick`, which may stop all timers
            tick()

        seconds = period_s()
        if seconds > 0:
            self._later(name, seconds, again)

    def _later(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        if name not in self._timers:
            self._timers[name] = self._loop.call_later(seconds, self._run, name, action)

    def _run(self, name: str, action: Callable[[], None]) -> None:
        del self._timers[name]
        action()

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
