"""Logs that declare their columns, for tests of typed frames: a declaration, and records by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.typed.declarations import Declarations, declaration_of
from dlspark.tables.codecs import RecordEncoder
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import Change


class TypedLog:
    """Declares what a log of an open namespace holds, changes that, and writes rows by it.

    Args:
        namespace: Where the log is, or is to be.
        name: Its name.
    """

    def __init__(self, namespace: AsyncNamespace, name: str) -> None:
        self.namespace = namespace
        self._declared = Declarations(namespace.logs_store, name)
        self.name = name
        self.declaration: Declaration

    async def declare(
        self,
        columns: pa.Schema,
        format_: RecordFormat = RecordFormat.JSON,
        *,
        timestamp: str | None = None,
        strict: bool = False,
    ) -> None:
        """Create the log unless it is there, and declare its columns."""
        if not await self.namespace.log_exists(self.name):
            await self.namespace.create_log(self.name)
        made = declaration_of(columns, format_, timestamp=timestamp, strict=strict)
        await self._declared.declare(made)
        self.declaration = made

    async def change(self, *changes: Change) -> None:
        """Make another version current."""
        self.declaration = await self._declared.change(changes)

    async def withdraw(self) -> None:
        """Take the declaration away."""
        await self._declared.withdraw()

    async def write(self, rows: Sequence[dict[str, object]], *, first_id: int = 0) -> None:
        """Append rows as records of the current version, whose ids rise from `first_id`, or are as the column says."""
        names = [one.name for one in self.declaration.current.fields]
        given = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        encoded = RecordEncoder(self.declaration).encode(given.combine_chunks().to_batches()[0])
        ids = range(first_id, first_id + len(encoded.payloads)) if encoded.times is None else encoded.times.to_pylist()
        await self.write_bytes(encoded.payloads.to_pylist(), ids)

    async def write_bytes(self, payloads: Sequence[bytes], ids: Sequence[int]) -> None:
        """Append records of these bytes, two an entry, as a segment of their own."""
        writer = await (await self.namespace.open_log(self.name)).open_writer()
        highest = max(writer.last_txid, 0)
        for at in range(0, len(payloads), 2):
            some = [highest := max(highest, one) for one in ids[at : at + 2]]
            await writer.write_batch(np.array(some, dtype=np.int64), pa.array(payloads[at : at + 2], pa.binary()))
        await writer.commit()
        await writer.close()
