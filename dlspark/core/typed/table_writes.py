"""`TableWrites`: tables of a program as records, by what the log declares at the time.

**Which version.** The declaration is looked up by the first table, again once it is SCHEMA_AGE_S old, and at once where
rows are refused: the column that is missing may just have been added. In between a newer version may be there. Nothing
is lost by that: by the rules of evolution every reader reads records of older versions, and rows that an older one
takes are whole. So no request is made for each table, and no watch is kept. Where the metadata store cannot be reached,
the writer goes on with the version that it knows, for the same reason.

**Transaction ids.** Where a column gives them, each record's id is the latest time of its rows, raised to the highest
so far: a row that comes late does not stop its writer, and no id is below its record's time, on which readers that look
for rows from a time on rely. Ids of the caller's, or the current time, are raised likewise.

Everything is checked and encoded before anything is sent: rows that are refused have written nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.records import MAX_PAYLOAD_BYTES, MAX_TXID
from dlspark.core.metrics.structured_logging import about
from dlspark.core.services import Services
from dlspark.core.typed.declarations import Declarations, Declared
from dlspark.tables.errors import RowRefusedError
from metadata.foundation.errors import CallerError, MetadataUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from dlspark.tables.codecs import EncodedRows, RecordEncoder

SCHEMA_AGE_S: Final = 10.0
"""A declaration is looked up again when it was read this long ago."""
CHUNK_ROWS: Final = 32_768
"""Rows that are encoded at once: between chunks other tasks of the event loop have their turn."""

_HIGHEST_TXID: Final = MAX_TXID - 1
"""Of a record that is not the last one of its log."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableRecords:
    """Which records does a table become?

    Args:
        payloads: The records, a large_binary array.
        wanted: The transaction id that each of them must not be below.
        given: Whether these are the caller's.
    """

    payloads: pa.Array
    wanted: npt.NDArray[np.int64]
    given: bool

    def txids(self, last: int) -> npt.NDArray[np.int64]:
        """Return the records' transaction ids in a log whose highest one is `last`: none is below one before it."""
        if self.given:
            return self.wanted  # a caller's ids stay as they are, or are refused
        found: npt.NDArray[np.int64] = np.maximum.accumulate(np.maximum(self.wanted, last))
        return found


class TableWrites:
    """How does a writer make records of tables? One for each writer.

    Args:
        services: Where declarations are, and which time it is.
        name: The log's name.
    """

    def __init__(self, services: Services, name: str) -> None:
        self._declarations = Declarations(services.logs, name)
        self._services = services
        self._name = name
        self._known: Declared | None = None
        self._encoder: RecordEncoder | None = None
        self._due_s = 0.0
        self.turn = asyncio.Lock()
        """Held from the lookup until the records are handed over, so that tables stay in order."""

    async def encode(
        self, table: pa.Table | pa.RecordBatch, txids: Sequence[int] | npt.NDArray[np.int64] | None
    ) -> TableRecords:
        """Return the records of a table. Raises RowRefusedError, NoSchemaError, CallerError: nothing was written."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise CallerError(
                f"{type(table).__name__} is not a table of Arrow's; nothing was written",
                log=self._name,
                advice="Give a pyarrow.Table or RecordBatch: pa.table({...}), pa.Table.from_pandas(frame)",
            )
        encoder, fresh = await self._current()
        ids = None if txids is None else self._checked(txids, table, encoder)
        try:
            return await self._encode(encoder, table, ids)
        except RowRefusedError as error:
            error.log = self._name
            if fresh or (newer := await self._look(encoder)) is encoder:
                raise
        return await self._encode(newer, table, ids)

    async def _current(self) -> tuple[RecordEncoder, bool]:
        """Return the encoder, and whether it is by what the log declares at this moment."""
        encoder = self._encoder
        if encoder is not None and asyncio.get_running_loop().time() < self._due_s:
            return encoder, False
        return await self._look(encoder), True

    async def _look(self, before: RecordEncoder | None) -> RecordEncoder:
        """Look up what the log declares; returns the encoder before if that is the same."""
        found: Declared | None
        try:
            found = await self._declarations.get(self._known)
        except (MetadataUnavailableError, OutcomeUnknownError) as error:
            if before is None:
                raise
            _log.warning(
                "log %s: what it declares cannot be looked up (%s); the writer goes on with version %d of the schema",
                self._name,
                error,
                before.declaration.current.id,
                extra=about(log=self._name),
            )
            found = self._known
        self._due_s = asyncio.get_running_loop().time() + SCHEMA_AGE_S
        if before is not None and found is self._known:
            return before
        from dlspark.tables.codecs import RecordEncoder

        assert found is not None
        self._known, self._encoder = found, RecordEncoder(found.declaration, max_bytes=MAX_PAYLOAD_BYTES)
        return self._encoder

    def _checked(
        self, txids: Sequence[int] | npt.NDArray[np.int64], table: pa.Table, encoder: RecordEncoder
    ) -> npt.NDArray[np.int64]:
        """Return a transaction id of the caller's for each row."""
        declaration = encoder.declaration
        column = declaration.timestamp_field(declaration.current)
        if column is not None:
            raise CallerError(
                f"the log takes transaction ids from column {column.name}, and others were given; nothing was written",
                log=self._name,
                advice="Leave txids out",
            )
        ids = np.asarray(txids)
        if ids.shape != (table.num_rows,) or (len(ids) and ids.dtype.kind not in "iu"):
            raise CallerError(
                f"txids are not {table.num_rows} whole numbers, one for each row; nothing was written", log=self._name
            )
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > _HIGHEST_TXID):
            raise CallerError(f"transaction ids are from 0 to {_HIGHEST_TXID}; nothing was written", log=self._name)
        ids = ids.astype(np.int64)
        if (np.diff(ids) < 0).any():
            raise CallerError(
                "txids decrease within the table, and never do in a log; nothing was written",
                log=self._name,
                advice="Sort the table by them",
            )
        return ids

    async def _encode(self, encoder: RecordEncoder, table: pa.Table, ids: npt.NDArray[np.int64] | None) -> TableRecords:
        encoded = []
        for batch in table.to_batches(max_chunksize=CHUNK_ROWS) or _nothing(table):
            encoded.append(encoder.encode(batch))
            await asyncio.sleep(0)
        payloads = pa.concat_arrays([one.payloads for one in encoded])
        return TableRecords(payloads, self._wanted(encoded, ids, len(payloads)), ids is not None)

    def _wanted(
        self, encoded: list[EncodedRows], ids: npt.NDArray[np.int64] | None, records: int
    ) -> npt.NDArray[np.int64]:
        times = [one.times for one in encoded if one.times is not None]
        if times:
            return np.concatenate([one.to_numpy() for one in times])
        if ids is None:
            return np.full(records, self._services.clock.now_ms(), np.int64)
        counts = [one.counts.to_numpy() for one in encoded if one.counts is not None]
        if not counts or not records:
            return ids
        # A record of many rows has the highest of their ids.
        highest: npt.NDArray[np.int64] = ids[np.cumsum(np.concatenate(counts)) - 1]
        return highest


def _nothing(table: pa.Table) -> list[pa.RecordBatch]:
    """Return a table without rows as a batch: its columns are checked all the same."""
    return [pa.RecordBatch.from_arrays([pa.array([], one.type) for one in table.schema], schema=table.schema)]
