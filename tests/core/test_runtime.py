"""The background event loop: results, errors, interrupts, forks, and nothing left after close."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from dlspark.core.runtime import Runtime
from dlspark.errors import AlreadyClosedError
from metadata.foundation.errors import CallerError


async def _double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_run_returns_the_result_of_a_coroutine(runtime):
    assert runtime.run(_double(21)) == 42


def test_run_raises_the_error_of_a_coroutine(runtime):
    async def fail() -> None:
        raise TimeoutError("the coroutine's own")

    with pytest.raises(TimeoutError, match="own"):
        runtime.run(fail())


def test_threads_share_one_loop(runtime):
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(runtime.run(_double(n)))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_call_from_the_loop_itself_is_refused_instead_of_hanging(runtime):
    async def nested() -> int:
        return runtime.run(_double(1))

    with pytest.raises(CallerError, match="event loop"):
        runtime.run(nested())


def test_close_cancels_what_runs_closes_what_is_open_and_ends_the_thread():
    runtime = Runtime("to-close")
    seen: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async def closer() -> None:
        seen.append("closed")

    pending = runtime.submit(forever())
    runtime.run(_double(1))
    runtime.on_close(closer)
    runtime.close()
    runtime.close()
    assert seen == ["closed", "cancelled"]
    assert pending.cancelled()
    assert "to-close" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(AlreadyClosedError):
        runtime.run(_double(1))


def test_a_closed_shared_runtime_is_replaced():
    first = Runtime.shared()
    assert Runtime.shared() is first
    first.close()
    second = Runtime.shared()
    assert second is not first
    assert second.run(_double(4)) == 8


_INTERRUPTED = """
import asyncio, os, signal
from dlspark.core.runtime import Runtime

async def wait():
    os.kill(os.getpid(), signal.SIGINT)  # The main thread is in `run` by now.
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
        print("cleaned up", flush=True)

runtime = Runtime.shared()
try:
    runtime.run(wait())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_cancels_the_coroutine_and_waits_for_its_clean_up():
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["cleaned up", "interrupted"]
    assert done.returncode == 0


_FORKED = """
import asyncio, os, sys
from dlspark.core.runtime import Runtime
from dlspark.errors import CallerError

async def one():
    return 1

parent = Runtime.shared()
assert parent.run(one()) == 1
child = os.fork()
if child == 0:
    try:
        parent.run(one())
    except CallerError as error:
        assert "forked" in str(error)
    else:
        os._exit(1)
    assert Runtime.shared() is not parent
    os._exit(0 if Runtime.shared().run(one()) == 1 else 2)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert parent.run(one()) == 1
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_a_runtime_of_its_own():
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
