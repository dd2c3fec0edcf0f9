"""Repeating requests."""

from __future__ import annotations

import asyncio

import pytest

from metadata.foundation.errors import BadVersionError, ConnectionLossError, MetadataUnavailableError
from metadata.retry import repeat
from metadata.store import RetryPolicy
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree


class Flaky:
    """A store whose first `failures` reads befalls `fault`; `reads` counts them all."""

    def __init__(self, fault: Fault, failures: int, policy: RetryPolicy | None) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.store.retry_policy = policy
        self.reads = 0

        def inject(session_id: int, name: str, path: str) -> Fault | None:
            self.reads += 1
            return fault if self.reads <= failures else None

        self.tree.inject = inject

    async def read(self) -> object:
        return await repeat(self.store, lambda: self.store.exists("/x"))


def policy(retries: int) -> RetryPolicy:
    return RetryPolicy(retries=retries, start_backoff_ms=1, max_backoff_ms=4)


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_request_is_repeated_as_often_as_the_policy_says(fault: Fault) -> None:
    flaky = Flaky(fault, 3, policy(3))
    assert await flaky.read() is None
    assert flaky.reads == 4


@pytest.mark.parametrize("fault", list(Fault))
async def test_after_the_last_repetition_the_error_is_told(fault: Fault) -> None:
    flaky = Flaky(fault, 3, policy(2))
    with pytest.raises((ConnectionLossError, MetadataUnavailableError)):
        await flaky.read()
    assert flaky.reads == 3


async def test_no_retries_means_one_attempt() -> None:
    flaky = Flaky(Fault.LOSE_REPLY, 1, policy(0))
    with pytest.raises(ConnectionLossError):
        await flaky.read()
    assert flaky.reads == 1


async def test_without_a_policy_a_request_outlives_more_losses_than_upstreams_three() -> None:
    flaky = Flaky(Fault.LOSE_REPLY, 8, None)
    assert await flaky.read() is None


async def test_what_is_no_lost_connection_is_not_repeated() -> None:
    flaky = Flaky(Fault.REFUSE, 0, policy(3))
    await flaky.store.create("/x")
    with pytest.raises(BadVersionError):
        await repeat(flaky.store, lambda: flaky.store.put("/x", b"", 7))
    assert flaky.reads == 2


async def test_a_repetition_goes_as_soon_as_the_connection_is_back_whatever_the_backoff() -> None:
    flaky = Flaky(Fault.REFUSE, 0, RetryPolicy(retries=1, start_backoff_ms=10**9, max_backoff_ms=10**9))
    flaky.tree.disconnect(flaky.store.session_id)
    reading = asyncio.ensure_future(flaky.read())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not reading.done()
    flaky.tree.reconnect(flaky.store.session_id)
    assert await asyncio.wait_for(reading, 60) is None


async def test_a_connection_that_stays_away_uses_the_repetitions_up() -> None:
    flaky = Flaky(Fault.REFUSE, 0, policy(2))
    flaky.tree.disconnect(flaky.store.session_id)
    await asyncio.sleep(0)  # the session hears of it
    with pytest.raises(MetadataUnavailableError):
        await flaky.read()
    assert flaky.reads == 0


async def test_a_closed_session_is_not_waited_for() -> None:
    flaky = Flaky(Fault.REFUSE, 0, RetryPolicy(retries=3, start_backoff_ms=10**9, max_backoff_ms=10**9))
    await flaky.store.close()
    with pytest.raises(MetadataUnavailableError):
        await flaky.read()


def test_the_backoff_doubles_up_to_its_bound() -> None:
    upstream = RetryPolicy(retries=3, start_backoff_ms=5_000, max_backoff_ms=30_000)
    assert [upstream.backoff_ms(n) for n in (1, 2, 3, 4, 5, 100)] == [5_000, 10_000, 20_000, 30_000, 30_000, 30_000]


@pytest.mark.parametrize("given", [None, RetryPolicy(retries=20, start_backoff_ms=1, max_backoff_ms=100)])
async def test_a_loss_of_which_the_session_has_not_heard_yet_does_not_use_up_the_repetitions(
    given: RetryPolicy | None,
) -> None:
    """Each repetition fails at once until the session's own event has come, on a busy machine after a while."""
    store, loop = MemoryStore(MemoryTree()), asyncio.get_running_loop()
    store.retry_policy = given
    heard_at = loop.time() + 0.2

    async def operation() -> str:
        if loop.time() < heard_at:
            raise ConnectionLossError("children: the connection was lost")
        return "answered"

    assert await repeat(store, operation) == "answered"
