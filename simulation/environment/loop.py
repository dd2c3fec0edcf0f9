"""`SimulatedLoop`: asyncio's event loop on virtual time, and `Process`: a program that can be killed or paused in it.

Nothing is ever waited for: when no callback is ready, time jumps to the next timer. There are no sockets, no threads
and no clock behind it, so that a run is a function of its seed. Callbacks keep asyncio's order within a process; which
of several processes goes first in a turn is drawn, because nothing in the world promises it.

Every callback belongs to the process in whose context it was scheduled. A paused process's callbacks are kept until it
goes on (SIGSTOP); a killed one's are never run. What a dead process still holds is kept until the end of the run: its
`finally` clauses must not run while other processes live.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from random import Random
from typing import TypeVar

T = TypeVar("T")

START_S = 1_000.0
TICK_S = 1e-9
"""Time moves with every jump, as clocks do: a wait that ends a rounding error too early must not last for ever."""
MAX_STEPS = 1_000_000
"""More callbacks than any run needs: a livelock is reported as such."""
SHUFFLE_SHARE = 0.2
PRUNE_TASKS = 512

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)


class SimulationStuckError(Exception):
    """The run waits for something that will never happen, or never stops doing something."""


class Process:
    """One run of a program on a host, from its start to its end. A restart is another `Process`."""

    __slots__ = ("context", "dead", "halted", "held", "host", "name", "paused", "steps", "tasks", "trap", "trap_at")

    def __init__(self, host: str, name: str) -> None:
        self.host = host
        self.name = name
        self.dead = False
        self.paused = False
        self.halted = False
        """Dead or paused: no callback runs."""
        self.held: deque[_ScheduledCall] = deque()
        self.tasks: list[asyncio.Task[object]] = []
        self.steps = 0
        self.trap_at = -1
        self.trap: Callable[[], None] | None = None
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"Process({self.name})"

    def at_step(self, count: int, trap: Callable[[], None]) -> None:
        """Call `trap` right before this process's callback number `count` from now: any await point can be met."""
        self.trap_at = self.steps + max(count, 1)
        self.trap = trap

    def keep(self, task: asyncio.Task[object]) -> None:
        """Hold a task, so that its end is decided by its own coroutine and by nothing else."""
        self.tasks.append(task)
        if len(self.tasks) >= PRUNE_TASKS and not self.dead:
            self.tasks = [task for task in self.tasks if not task.done()]


class _ScheduledCall(asyncio.TimerHandle):
    """A callback and when it is due. There are tens of thousands in a run: it has nothing of asyncio's debugging."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: contextvars.Context | None,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._context = contextvars.copy_context() if context is None else context

    def __repr__(self) -> str:
        return f"_ScheduledCall({self._callback!r})"

    def cancel(self) -> None:
        """Drop the call. It leaves the heap when its time comes."""
        self._cancelled = True
        # Dropped at once: it may hold a whole process that is dead, and the heap keeps the call until its time.
        self._callback, self._args = _nothing, ()


def _nothing() -> None:
    """Do what a cancelled call does: nothing."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module's docstring. Made by a `World`; `finish` must be called at last."""

    _ready: deque[_ScheduledCall]
    _scheduled: list[tuple[float, int, _ScheduledCall]]

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.set_debug(False)
        self._now = START_S
        self._rng = rng
        self._finished = False
        self._timers = count()
        """Of timers that are due at the same time, the one that was set first goes first."""
        self.steps = 0
        self.graveyard: list[object] = []
        self.processes: list[Process] = []
        self.unhandled: list[str] = []
        """Errors that would have gone to the loop's exception handler."""
        self.outside = Process("", "world")
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # 3.10 has fewer options
        self.set_exception_handler(self._note_unhandled)

    # ------------------------------------------------------------------------------------ processes

    def process(self, host: str, name: str) -> Process:
        """Return a new process on a host. What is started in its context belongs to it."""
        process = Process(host, name)
        self.processes.append(process)
        return process

    def start(self, process: Process, work: Coroutine[object, None, T]) -> asyncio.Task[T]:
        """Start a task in a process, from outside of it."""
        return process.context.run(self.create_task, work)

    def kill(self, process: Process) -> None:
        """End a process: nothing of it runs any more."""
        # Its calls are kept, not dropped: freeing them closes coroutines, whose clauses would run code of the dead.
        process.dead = process.halted = True
        self.graveyard.extend(process.held)
        process.held.clear()

    def pause(self, process: Process) -> None:
        """Keep callbacks of this process until `resume`, as SIGSTOP does."""
        process.paused = process.halted = True

    def resume(self, process: Process) -> None:
        """Run what was kept first, in its order, as SIGCONT does. A dead process stays dead."""
        process.paused = False
        process.halted = process.dead
        if not process.dead:
            # Before what is ready: these callbacks were due while it was stopped, and a kernel would run them first.
            self._ready.extendleft(reversed(process.held))
            process.held.clear()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[object, None, T], **options: object
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=loop, **options)  # type: ignore[arg-type]
        # A task that nothing refers to is collected at a moment that is not the seed's.
        (PROCESS.get() or self.outside).keep(task)
        return task

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        if self._finished:
            return  # what dead processes leave behind is taken apart
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")
        # An error that reached no caller is a bug of the code under test: the run ends where it shows.
        self.stop()

    # ------------------------------------------------------------------------------------ turns

    def time(self) -> float:
        """Return virtual seconds since the loop began."""
        return self._now

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run the callback as `call_soon` does: the simulation has one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run the callback in the next turn, whose order is shuffled at times; after the run's end nothing is
        scheduled."""
        call = _ScheduledCall(self._now, callback, args, context)
        if not self._finished:
            self._ready.append(call)
        return call

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run the callback in so many virtual seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run the callback at this virtual time; after the run's end nothing is scheduled."""
        call = _ScheduledCall(when, callback, args, context)
        if not self._finished:
            heapq.heappush(self._scheduled, (when, next(self._timers), call))
        return call

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Refuse: a simulation has no threads. Raises SimulationStuckError."""
        raise SimulationStuckError("there are no threads in a simulation")

    def _run_once(self) -> None:
        """Run one turn: what is ready now, in order; with nothing ready, go on to the next timer."""
        ready = self._ready
        if not ready:
            self._jump()
        turn = len(ready)
        if turn > 1 and self._rng.random() < SHUFFLE_SHARE:
            self._shuffle()
        self.steps += turn
        if self.steps > MAX_STEPS:
            raise SimulationStuckError(f"more than {MAX_STEPS} callbacks: a livelock")
        for _ in range(turn):  # what these callbacks schedule belongs to the next turn, as in asyncio
            call = ready.popleft()
            if call._cancelled:
                continue
            context = call._context
            process = context.get(PROCESS)
            if process is not None:
                if process.halted:
                    self._hold(process, call)
                    continue
                process.steps += 1
                if process.steps == process.trap_at and process.trap is not None:
                    trap, process.trap = process.trap, None
                    trap()
                    if process.halted:  # by the trap
                        self._hold(process, call)  # type: ignore[unreachable]
                        continue
            try:
                context.run(call._callback, *call._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in {call!r}", "exception": error})

    def _hold(self, process: Process, call: _ScheduledCall) -> None:
        if process.dead:
            self.graveyard.append(call)
        else:
            process.held.append(call)

    def _jump(self) -> None:
        """Move the clock on to the next timer and make ready all that are due."""
        timers = self._scheduled
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise SimulationStuckError("nothing is scheduled and nothing is ready: the run would wait for ever")
        self._now = max(self._now + TICK_S, timers[0][0])
        while timers and timers[0][0] <= self._now:
            call = heapq.heappop(timers)[2]
            if not call._cancelled:
                self._ready.append(call)

    def _shuffle(self) -> None:
        """Draw which process goes first; the order within each stays."""
        # Between processes no order is promised; within one, asyncio promises that of the calls.
        groups: dict[Process | None, list[_ScheduledCall]] = {}
        for call in self._ready:
            groups.setdefault(call._context.get(PROCESS), []).append(call)
        if len(groups) > 1:
            order = list(groups.values())
            self._rng.shuffle(order)
            self._ready.clear()
            for group in order:
                self._ready.extend(group)

    # ------------------------------------------------------------------------------------ the end

    def leftovers(self) -> list[str]:
        """Return the tasks of living processes that have not ended (I16)."""
        return [repr(task) for p in self.processes if not p.dead for task in p.tasks if not task.done()]

    def finish(self) -> None:
        """End the loop; coroutines that still wait are closed, and what they raise by that is dropped."""
        self._finished = True
        asyncio._set_running_loop(self)  # the clauses of the closed ones may look for it
        with unheard():
            for process in (*self.processes, self.outside):
                for task in process.tasks:
                    if not task.done():
                        _close(task)
                process.tasks.clear()
                process.held.clear()
            self._ready.clear()
            self._scheduled.clear()
            self.graveyard.clear()
            asyncio._set_running_loop(None)
            self.close()


def _close(task: asyncio.Task[object]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    if coroutine is not None:
        with suppress(BaseException):  # its clauses may want a loop that is gone
            coroutine.close()


@contextmanager
def unheard() -> Iterator[None]:
    """Drop warnings, errors and log lines while the remains of dead processes are taken apart: those of their clauses
    mean nothing then.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    disabled_level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled_level)
        sys.unraisablehook = hook
