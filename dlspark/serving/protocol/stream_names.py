"""How long a stream's name may be that a client says. No I/O.

What a name may consist of is the namespace's to say (`metadata.distributedlog.log_names`); it sets no length. A proxy
does: a name is kept, logged and shown as long as the stream is known, and each component of it is a question to
ZooKeeper.
"""

from __future__ import annotations

from typing import Final

from metadata.distributedlog.log_names import InvalidLogNameError

MAX_STREAM_BYTES: Final = 1024
MAX_STREAM_PARTS: Final = 32
"""Each component of a new log's name is a znode, which ZooKeeper keeps in memory with its whole path, and which stays
when the log is deleted. Of a name of 500, which is a request of a kilobyte, it keeps a third of a megabyte."""
SHOWN_CHARS: Final = 64
"""What an error repeats of a longer name."""


def check_stream_length(name: str) -> None:
    """Raise InvalidLogNameError for a name of more than MAX_STREAM_BYTES in UTF-8."""
    length = len(name.encode("utf-8", "surrogatepass"))
    if length > MAX_STREAM_BYTES:
        raise InvalidLogNameError(
            f"the name {name[:SHOWN_CHARS]!r}... has {length} bytes, proxies take {MAX_STREAM_BYTES}",
            advice="Choose a shorter name",
        )


def check_stream_parts(name: str) -> None:
    """Raise InvalidLogNameError for a name of more than MAX_STREAM_PARTS components."""
    parts = name.count("/") + 1
    if parts > MAX_STREAM_PARTS:
        raise InvalidLogNameError(
            f"the name {name[:SHOWN_CHARS]!r}... has {parts} components, write proxies take {MAX_STREAM_PARTS}",
            advice="Choose a name with fewer slashes",
        )
