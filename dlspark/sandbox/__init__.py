"""A cluster on this machine: `Sandbox`, a real ZooKeeper and storage nodes as local processes (docs/operations.md).

It is imported when it is asked for: every program looks for a running one (`state`), and few start one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlspark.sandbox.sandbox import Sandbox

__all__ = ["Sandbox"]


def __getattr__(name: str) -> object:
    if name != "Sandbox":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dlspark.sandbox.sandbox import Sandbox

    return Sandbox
