"""Repeating what is safe to repeat across a lost connection, and creating missing parents.

A store raises at the first lost connection, because only the caller knows whether a repetition is safe. Reads and
idempotent updates are; they go through `repeat`, which waits for the connection instead of polling for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from metadata.foundation.errors import (
    ConnectionLossError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from metadata.store import Create, MetadataStore, RetryPolicy, SessionState, ancestors

T = TypeVar("T")

REPEAT_TIMEOUT_MS: Final = 30_000
MAX_REPEATS: Final = 20
_UNHEARD_PAUSE_S: Final = 0.02
"""Where a request has failed by a lost connection and the session's own event is not heard yet: on a busy machine that
takes a while, and each repetition would fail at once."""
_PARENT_ROUNDS: Final = 20
_TRANSIENT: Final = (ConnectionLossError, SessionExpiredError, MetadataUnavailableError)


async def reconnected(store: MetadataStore, timeout_ms: int) -> bool:
    """Wait until `store` is CONNECTED; False when `timeout_ms` passed first or the store was closed."""
    if store.state is SessionState.CONNECTED:
        return True
    if store.state is SessionState.CLOSED:
        return False
    heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def listen(state: SessionState) -> None:
        if state in (SessionState.CONNECTED, SessionState.CLOSED) and not heard.done():
            heard.set_result(state is SessionState.CONNECTED)

    unsubscribe = store.on_session(listen)
    try:
        return await asyncio.wait_for(heard, max(timeout_ms, 0) / 1000)
    except asyncio.TimeoutError:
        return False
    finally:
        unsubscribe()


async def repeat(store: MetadataStore, operation: Callable[[], Awaitable[T]], timeout_ms: int = REPEAT_TIMEOUT_MS) -> T:
    """Run `operation` until it is not stopped by a lost connection: at most MAX_REPEATS times and `timeout_ms`, or as
    the store's own policy says, where it has one, and within `timeout_ms` if that is below REPEAT_TIMEOUT_MS.

    `operation` must be harmless to run again. Raises its last error where it never came through.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    if store.retry_policy is not None:
        limit = deadline if timeout_ms < REPEAT_TIMEOUT_MS else float("inf")
        return await _repeat_by_policy(store, store.retry_policy, operation, limit)
    for _ in range(MAX_REPEATS - 1):
        try:
            return await operation()
        except _TRANSIENT:
            await asyncio.sleep(0)  # let the session's own event be heard before its state is read
            left_ms = int((deadline - loop.time()) * 1000)
            if left_ms <= 0 or not await _heard_and_reconnected(store, left_ms):
                raise
    return await operation()


async def _heard_and_reconnected(store: MetadataStore, timeout_ms: int) -> bool:
    """Do as `reconnected`, behind a pause where the store still counts as CONNECTED."""
    if store.state is SessionState.CONNECTED:
        await asyncio.sleep(min(_UNHEARD_PAUSE_S, timeout_ms / 1000))
    return await reconnected(store, timeout_ms)


async def _repeat_by_policy(
    store: MetadataStore, policy: RetryPolicy, operation: Callable[[], Awaitable[T]], deadline: float
) -> T:
    loop = asyncio.get_running_loop()
    for repetition in range(1, policy.retries + 1):
        try:
            return await operation()
        except _TRANSIENT as error:
            await asyncio.sleep(0)  # let the session's own event be heard before its state is read
            left_s = deadline - loop.time()
            wait_s = min(policy.backoff_ms(repetition) / 1000, left_s)
            refused = isinstance(error, MetadataUnavailableError) and store.state is SessionState.CONNECTED
            if store.state is SessionState.CLOSED or left_s <= 0:
                raise
            if refused:
                await asyncio.sleep(wait_s)
            else:
                await _heard_and_reconnected(store, int(wait_s * 1000))
    return await operation()


async def create_with_parents(create: Callable[[Create], Awaitable[str]], op: Create) -> str:
    """Create `op` by `create`; where a parent is missing, create the parents first, empty and persistent.

    Parents may be deleted again in between (docs/reference/znodes.md#parents), so this goes round a bounded number
    of times.
    """
    for _ in range(_PARENT_ROUNDS):
        try:
            return await create(op)
        except NoNodeError:
            pass
        for parent in ancestors(op.path):
            try:
                await create(Create(parent))
            except (NodeExistsError, NoNodeError):
                continue
    return await create(op)
