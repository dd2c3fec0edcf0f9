"""How long a stream's name may be that a client says. No I/O.

What a name may consist of is the namespace's to say (`metadata.distributedlog.log_names`); it sets no length. A proxy
does: a name is kept, logged and shown as long as the stream is known, and each component of it is a question to
ZooKeeper.
"""

from __future__ import annotations

from typing import Final

from metadata.distributedlog.log_names import InvalidLogNameError

MAX_STREAM_BYTES: Final = 1024
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
