"""How a lock's owner is recognised by its name: a Spark query, a write proxy, or any other client.

    1;<shard>;<host>:<port>              a write proxy
    dlspark-sink/<host>/<pid>            a Spark query that publishes a batch: it gives the lock up in a moment
    dlspark-sink/<host>/<pid>/appends    a query's process, which keeps its logs for the next batch until one waits
    anything else                        a writer of this library or of Java's, which keeps its log until it closes it

A name is a hint for a client that waits, and never decides which one owns a log.
"""

from __future__ import annotations

from typing import Final

_SINK: Final = "dlspark-sink/"
_APPENDS: Final = "/appends"
_PROXY: Final = "1;"


def sink_owner(host: str, pid: int, *, appending: bool = False) -> str:
    """Return the name of a Spark query's process. It must not look like an address: a client that a proxy sends to a
    log's owner would dial it."""
    return f"{_SINK}{host}/{pid}{_APPENDS if appending else ''}"


def gives_way(owner: str) -> bool:
    """Return whether the owner gives its lock up in a moment if another client waits in the lock's queue."""
    return owner.startswith(_SINK)


def appends(owner: str) -> bool:
    """Return whether it is a query's process that keeps its logs for the next batch."""
    return gives_way(owner) and owner.endswith(_APPENDS)


def is_proxy(owner: str) -> bool:
    """Return whether it is a write proxy, which keeps a log until a client or another proxy asks for it."""
    return owner.startswith(_PROXY)


def process_of(owner: str) -> int | None:
    """Return the number of such a process, on the host that the name has."""
    number = owner.removesuffix(_APPENDS).rpartition("/")[2]
    return int(number) if appends(owner) and number.isascii() and number.isdecimal() else None


def what_to_do(owner: str) -> str:
    """Return the advice for a caller that cannot have the lock."""
    if gives_way(owner):
        return "A Spark query has it, and gives it up between two batches for who waits in the queue: wait for longer"
    if is_proxy(owner):
        return (
            "A write proxy has it (dlspark proxy owners): write through that, in Python by dlspark.Client, or have it "
            "give the log up: dlspark proxy release LOG"
        )
    return "One writer at a time: close that one; if it has died, wait until its session has ended"


def how_to_free(owner: str) -> str:
    """Return the advice for a caller that would take the log away from its owner, which gives way to no other."""
    if gives_way(owner):
        return (
            "A Spark query has it: stop it; its process gives the log up appendIdleRelease (1 minute) after the last "
            "batch, or when the driver ends"
        )
    if is_proxy(owner):
        return "A write proxy has it: have that one delete it, or give it up first: dlspark proxy release LOG"
    return "Close that writer; if it has died, wait until its session has ended"
