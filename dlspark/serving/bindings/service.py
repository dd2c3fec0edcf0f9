"""The seam between a proxy and its bindings: what is asked goes to one `ProxyService`, whichever way it came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dlspark.serving.protocol.operations import Answer, Request

Reply: TypeAlias = Callable[[Answer], None]
"""Takes the answer to one request, once, from the loop."""


@dataclass(eq=False, slots=True)
class Caller:
    """Who asks: one connection (frames) or one call's peer (gRPC). Compared by identity."""

    address: str
    """`host:port`, for messages."""
    principal: str | None = None
    """Who it has proved to be; None where nothing is proved."""
    grpc: bool = False
    """Whether it speaks gRPC, and can be sent to proxies that do alone."""


class ProxyService(Protocol):
    """A write proxy, a read proxy, or both in one process."""

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Begin `request`; `reply` is called exactly once, perhaps before this returns. Never raises.

        Requests of one caller on one stream are written in the order in which they are submitted.
        """
        ...

    def caller_gone(self, caller: Caller) -> None:
        """Note that the connection is closed: what was kept for it goes. What it asked for may still be done,
        unanswered."""
        ...
