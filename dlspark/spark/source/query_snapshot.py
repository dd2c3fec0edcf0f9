"""What one query sees of its logs: where each began and ended when the query looked at it first.

Spark plans the scans of a query one after the other, each in a process of its own, and answers some of them (a count)
from metadata while it still optimizes the others. All must see the same records, whatever is appended meanwhile. So
what one of them finds out is handed on to the next as JSON, and a log is looked at once:

    {"distributedlog://...": {"logs": {"flights": "1:0:0 3:1200:0 3:17@6c5d"}, "matched": {"fl.*": {"flights": ""}}}}

For each log its first position, the position behind its last record, and the ledger (and cluster) by which it is told
from a later one of its name (`LogIdentity`), if there is one; for each pattern the logs that matched. There are no
lists in it: the connector's Java side, which finds it in a pickled partition, takes a bracket for its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.source.offsets import LogIdentity
from metadata.foundation.errors import of_class

_LOGS: Final = "logs"
_MATCHED: Final = "matched"


@dataclass(frozen=True, slots=True)
class SeenLog:
    """One log: the first position that was there, and the position behind the last record."""

    begin: DLSN
    end: DLSN
    identity: LogIdentity | None

    def __str__(self) -> str:
        return " ".join(map(str, (self.begin, self.end, *([] if self.identity is None else [self.identity]))))

    @classmethod
    def parse(cls, text: str) -> SeenLog:
        """Read back what `str` gave."""
        begin, end, *identity = text.split(" ")
        first, behind = (DLSN(*map(int, part.split(":"))) for part in (begin, end))
        return cls(first, behind, LogIdentity.parse(identity[0]) if identity else None)


@dataclass
class QuerySnapshot:
    """What a query has seen of one namespace; filled while the query is planned."""

    logs: dict[str, SeenLog] = field(default_factory=dict)
    matched: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the logs that there were under each pattern."""

    @classmethod
    def of(cls, all_: Mapping[str, object], uri: str) -> QuerySnapshot:
        """Return the part of what was handed on that is about the namespace of this URI."""
        found = of_class(all_.get(uri, {}), dict, "what was seen of a namespace is an object")
        return cls(
            {name: SeenLog.parse(text) for name, text in found.get(_LOGS, {}).items()},
            {pattern: tuple(names) for pattern, names in found.get(_MATCHED, {}).items()},
        )

    def within(self, all_: Mapping[str, object], uri: str) -> dict[str, object]:
        """Return what was handed on, with this in it."""
        return {
            **all_,
            uri: {
                _LOGS: {name: str(seen) for name, seen in self.logs.items()},
                _MATCHED: {pattern: dict.fromkeys(names, "") for pattern, names in self.matched.items()},
            },
        }


def packed(all_: Mapping[str, object]) -> str:
    """Return the text of what is handed on, without a closing bracket in it."""
    return json.dumps(all_).replace("]", "\\u005d")  # there are none but in texts
