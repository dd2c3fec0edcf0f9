"""Ports for what runs in a sandbox, which are chosen once: a storage node's identity is its address."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from dlspark.sandbox.processes import SandboxError
from dlspark.sandbox.state import RegionPlace

# Below the range from which systems hand out ports for outgoing connections: a node that is down for a while must
# find its port free again, and a client that dials it meanwhile must not end up connected to itself.
_PORTS = range(20_000, 32_000)


def region_place(number: int, free: list[int]) -> RegionPlace:
    """Return where region number `number` is; its ports are taken out of `free`."""
    return RegionPlace(f"r{number}", f"127.0.{number}.1", free.pop(), free.pop(), free.pop(), free.pop())


def free_ports(count: int, avoid: set[int], host: str) -> list[int]:
    """Return `count` ports that are free now; all are held open until the last is chosen, so that they differ."""
    with contextlib.ExitStack() as held:
        return list(_bound_ports(count, avoid, host, held))


def _bound_ports(count: int, avoid: set[int], host: str, held: contextlib.ExitStack) -> Iterator[int]:
    candidates = [port for port in _PORTS if port not in avoid]
    random.shuffle(candidates)
    while count > 0:
        if not candidates:
            raise SandboxError(f"no free port between {_PORTS.start} and {_PORTS.stop - 1}")
        probe = held.enter_context(socket.socket())
        with contextlib.suppress(OSError):
            port = candidates.pop()
            probe.bind((host, port))
            count -= 1
            yield port
