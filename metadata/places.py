"""Where a namespace's logs are: the znodes below which they have their own (`LogPlaces`).

A plain namespace keeps all of them below its own znode (`PlainPlaces`). A federated one spreads them
(`metadata.federation`). Logs with the same first component of their names are in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from metadata.foundation.errors import CorruptDataError
from metadata.store import Op, Watcher


class DuplicateLogError(CorruptDataError):
    """A log is in two sub-namespaces of a federated namespace: neither can be told to be the right one."""

    code: ClassVar[int] = 600


@dataclass(frozen=True, slots=True)
class Place:
    """Where to create a log. `guard` joins the transaction that creates the first component of its name, and fails it
    where somebody else may have created that elsewhere meanwhile: then choose again."""

    folder: str
    guard: tuple[Op, ...] = ()


class LogPlaces(Protocol):
    """Finds the znode below which a log is. Names are normalised ones."""

    @property
    def root(self) -> str:
        """The namespace's own znode."""
        ...

    def known(self, name: str) -> str | None:
        """Where the log is, as far as that is known without asking."""
        ...

    async def find(self, name: str) -> str | None:
        """Where the log is; None where it is not. Raises DuplicateLogError."""
        ...

    async def choose(self, name: str) -> Place:
        """Where to create the log: where it is, if it is, however much of it. Raises NotBoundError."""
        ...

    async def folders(self, watch: Watcher | None = None) -> list[str]:
        """All places, the namespace's own first. The watch is heard once when there may be others."""
        ...


class PlainPlaces(LogPlaces):
    """All logs are below the namespace's own znode."""

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def root(self) -> str:
        return self._root

    def known(self, name: str) -> str | None:
        return self._root

    async def find(self, name: str) -> str | None:
        return self._root

    async def choose(self, name: str) -> Place:
        return Place(self._root)

    async def folders(self, watch: Watcher | None = None) -> list[str]:
        return [self._root]
