"""`Runtime`: one background thread with an event loop, from which the synchronous classes drive the asynchronous ones.

A process normally has one, `Runtime.shared()`. It starts on first use and is closed at exit: what was opened on it and
not closed (`on_close`) is closed then, tasks are cancelled, the loop and the thread end (I16).

Fork: a child process has none of its parent's threads. `shared()` notices the new process id and makes a new runtime
there; an object of the parent's runtime refuses to be used in the child instead of hanging.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import ClassVar, Generic, TypeVar

from dlspark.errors import AlreadyClosedError
from metadata.foundation.errors import CallerError, OpenedElsewhereError
from metadata.foundation.opened_here import OpenedHere
from metadata.foundation.tasks import end_tasks

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
"""How long the thread may take to run its loop."""
CANCEL_TIMEOUT_S = 5.0
"""How long an interrupted call waits for its coroutine to clean up."""
CLOSE_TIMEOUT_S = 20.0
"""How long `close` waits for what is open to close, and then for the thread to end."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop loop where the extra `speed` is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Runtime(OpenedHere):
    """Runs coroutines for programs without an event loop: a daemon thread with a loop, until `close()`."""

    _shared: ClassVar[Runtime | None] = None
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str = "dlspark") -> None:
        self._pid = os.getpid()
        self._loop = new_event_loop()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._closing = threading.Lock()
        self._closed = False
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), name=name, daemon=True)
        self._thread.start()
        if not started.wait(START_TIMEOUT_S):
            raise CallerError("the background thread did not start", advice="The machine may be out of threads")

    @classmethod
    def shared(cls) -> Runtime:
        """Return the runtime of this process; a new one after a fork or a close."""
        with cls._shared_lock:
            current = cls._shared
            if current is None or current._closed or current._pid != os.getpid():
                current = cls._shared = cls()
            return current

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that its thread runs."""
        return self._loop

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closed

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        """Run `coroutine` on the loop, wait, and return its result or raise its error.

        An interrupt (Ctrl-C) cancels the coroutine, waits for it to clean up, and is raised again.
        Raises AlreadyClosedError or CallerError, with the coroutine not started.
        """
        try:
            self.check_usable()
        except CallerError:
            coroutine.close()  # Python would warn of a coroutine that was never awaited.
            raise
        call = _Call(self._loop, coroutine)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.wait()
        except (KeyboardInterrupt, SystemExit):
            call.interrupt()
            raise

    def submit(self, coroutine: Coroutine[object, object, _T]) -> concurrent.futures.Future[_T]:
        """Start `coroutine` on the loop without waiting. Cancelling the future before it is done cancels the task.

        Raises as `run` does, with the coroutine not started.
        """
        try:
            self.check_usable()
        except CallerError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Have `closer` awaited on the loop when the runtime closes; returns a function that forgets it again."""
        self._closers.append(closer)

        def forget() -> None:
            if closer in self._closers:
                self._closers.remove(closer)

        return forget

    def close(self) -> None:
        """Close what is open, cancel what still runs, end loop and thread. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._pid != os.getpid():
                return  # The parent's thread does not exist here; there is nothing of ours to end.
            done = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
            try:
                done.result(CLOSE_TIMEOUT_S)
            except concurrent.futures.TimeoutError:
                _log.warning("closing did not end within %s s; the rest is dropped", CLOSE_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    def check_usable(self) -> None:
        """Raise AlreadyClosedError or CallerError unless `run` may be called from here: in this process and thread."""
        if self._pid != os.getpid():
            raise OpenedElsewhereError(
                "this object was opened before the process forked",
                advice="Open the namespace, or the client, again in the child process",
            )
        if self._closed:
            raise AlreadyClosedError("the background event loop is closed", advice="Open the namespace again")
        if threading.current_thread() is self._thread:
            raise CallerError(
                "a synchronous call was made from the event loop that would have to serve it",
                advice="Use the asynchronous classes there",
            )

    async def _shut_down(self) -> None:
        # The newest first: it may use what was opened before it.
        for closer in reversed(self._closers[:]):
            try:
                await closer()
            except Exception:
                _log.exception("closing at exit failed; going on with the rest")
        self._closers.clear()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await end_tasks(others, drop_errors=True)
        await self._loop.shutdown_asyncgens()
        try:
            await self._loop.shutdown_default_executor()
        except RuntimeError as error:
            # At interpreter exit no thread can be started to wait for the pool's; they end with the process.
            _log.debug("no wait for the loop's thread pool: %s", error)


def iterated(runtime: Runtime, items: AsyncGenerator[_T, None]) -> Iterator[_T]:
    """Yield the items of an asynchronous generator, for a thread that waits for each.

    The generator is closed when the iteration ends, unless the runtime was closed, which ends it as well.
    """

    async def following() -> tuple[_T] | None:
        async for item in items:
            return (item,)
        return None

    try:
        while (found := runtime.run(following())) is not None:
            yield found[0]
    finally:
        if not runtime.closed:
            runtime.run(items.aclose())


class _Call(Generic[_T]):
    """One coroutine run for a thread that waits: unlike a cancelled concurrent future, it ends only with its task."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, _T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[_T] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def start(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[_T]) -> None:
        if task.cancelled():
            self._outcome.set_exception(concurrent.futures.CancelledError())
            return
        error = task.exception()
        if error is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())

    def wait(self) -> _T:
        """Return the coroutine's result or error. Waits in slices, so that signals are handled on every platform."""
        while True:
            try:
                return self._outcome.result(timeout=1.0)
            except concurrent.futures.TimeoutError:
                if self._outcome.done():  # The coroutine's own.
                    return self._outcome.result()

    def interrupt(self) -> None:
        """Cancel the task and wait until it has cleaned up."""
        self._loop.call_soon_threadsafe(self._cancel)
        done, _ = concurrent.futures.wait([self._outcome], timeout=CANCEL_TIMEOUT_S)
        if not done:
            _log.warning("an interrupted call did not end within %s s", CANCEL_TIMEOUT_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._ending = self._loop.create_task(end_tasks([self._task]))


def _close_shared() -> None:
    runtime = Runtime._shared
    if runtime is not None and runtime._pid == os.getpid():
        runtime.close()


atexit.register(_close_shared)
