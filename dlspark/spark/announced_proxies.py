"""`announced_proxies`: where the proxies that are announced in a namespace listen, for queries with `proxy=discover`.

Only a driver asks: it has the namespace open, and hands the addresses on with what it plans, so that tasks need no
ZooKeeper. Fault model: none may be announced, or none that speaks frames, or not yet: that is an error that says what
to start. What is announced may be gone by now: who is given the addresses finds out by asking.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.client.fleet import NoProxiesError
from dlspark.serving.process.membership import READ_PROXIES, WRITE_PROXIES, read_members
from dlspark.spark.options.proxies import DISCOVER, MAX_ADDRESSES, PROXY
from metadata.store import join

LOOK_AGAIN_S: Final = 0.2
_WORDS: Final = {READ_PROXIES: "read", WRITE_PROXIES: "write"}


async def announced_proxies(namespace: AsyncNamespace, folder: str, wait_ms: int = 0) -> tuple[str, ...]:
    """Return where the namespace's proxies of one kind (`READ_PROXIES`, `WRITE_PROXIES`) take frames; one at least.

    Waits up to `wait_ms` for the first. Raises NoProxiesError, MetadataUnavailableError or an OutcomeUnknownError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    while True:
        members = await read_members(namespace.store, join(namespace.uri.path, folder))
        addresses = tuple(dict.fromkeys(str(member.frames) for member in members if member.frames is not None))
        if addresses:
            return addresses[:MAX_ADDRESSES]
        if loop.time() >= deadline:
            raise _no_proxies_error(namespace, folder, len(members), wait_ms)
        await asyncio.sleep(LOOK_AGAIN_S)


def _no_proxies_error(namespace: AsyncNamespace, folder: str, others: int, wait_ms: int) -> NoProxiesError:
    kind = _WORDS[folder]
    spoken = f" that takes frames ({others:,} are announced that do not)" if others else ""
    waited = f" (waited {wait_ms / 1000:g} s for one)" if wait_ms else ""
    return NoProxiesError(
        f"Option {PROXY}={DISCOVER}: no {kind} proxy{spoken} is announced in {namespace.uri}{waited}",
        advice=f"Start one (`dlspark proxy {kind}`, or `dlspark sandbox start --proxies 2`), list the addresses of "
        f"proxies that are not announced, or leave out option {PROXY}",
    )
