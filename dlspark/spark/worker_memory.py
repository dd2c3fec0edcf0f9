"""What Spark's Python workers spend on garbage collection, and what we do about it.

Spark uses a worker again and again, and runs a full collection after each use (`pyspark.daemon`). That looks at every
object there is: some 100,000, nearly all of them the modules of pyspark, pyarrow and numpy and what they hold. It takes
tens of milliseconds of processor on a busy machine, four times a micro-batch from our source to our sink
(docs/performance.md, row P8). What is there when a worker is used again stays anyway, so it is moved out of the
collector's sight (`gc.freeze`), which is what that is made for.

Frozen objects are still freed when nothing refers to them any more. Only a ring of objects that is dropped later
stays: so it is done three times a process and no more, right after a collection, and never outside of Spark's workers.
"""

from __future__ import annotations

import gc
import sys

DAEMON = "pyspark.daemon"
FREEZE_AT = (2, 4, 8)
"""Uses of a process by us before which everything there is is frozen: after the first one modules are loaded and
connections are open, later ones find what another kind of use has loaded."""

_uses = 0


def begin_use() -> None:
    """A process begins to do something for one of our queries."""
    global _uses
    _uses += 1
    if due(_uses, main_module()):
        gc.freeze()


def due(uses: int, main: str | None) -> bool:
    """Whether to freeze before this use of a process that runs module `main`: only in what Spark's daemon has forked,
    where the collection has just been."""
    return uses in FREEZE_AT and main == DAEMON


def main_module() -> str | None:
    """The module that this process was started with (`python -m`), as its name; None for a script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if spec is None else spec.name
