"""Rows of the metadata tables that belong to the cluster: `bookies`, `ledgers`, `sinks`."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import unquote

from dlspark.core.administration.cluster import NodeStatus, node_statuses
from dlspark.core.administration.ledger_entries import FoundLedger, ledgers_named
from dlspark.core.administration.references import Use
from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.metadata_tables.logs import LogTables, Row, distinct_nodes, micros
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.replication import ReplicationStore
from metadata.distributedlog.sink_marks import NO_BATCH
from metadata.distributedlog.sinks import APPLICATION_PREFIX, JOB_PREFIX, SinkStore
from metadata.foundation.errors import CorruptDataError, NoNodeError
from metadata.foundation.pacing import for_each
from metadata.retry import repeat
from metadata.store import Stat

_AT_ONCE: Final = 32


# ---------------------------------------------------------------------- bookies


async def bookie_rows(namespace: AsyncNamespace) -> list[Row]:
    """Return a row a storage node, by id. All that are registered are asked for their space at once."""
    return [_bookie_row(node) for node in await node_statuses(namespace.ledgers)]


def _bookie_row(node: NodeStatus) -> Row:
    cookie, registration, space = node.cookie, node.registration, node.space
    row: Row = {
        "bookie": node.bookie_id,
        "state": node.state.value,
        "ledger_directories": None if cookie is None else list(cookie.ledger_dirs),
        "journal_directories": None if cookie is None else list(cookie.journal_dirs),
        "error": node.error,
    }
    if registration is not None:
        row |= {"registered_at": micros(registration.since_ms), "answers": space is not None}
        if registration.address is not None:
            row |= {"host": registration.address.host, "port": registration.address.port}
    if space is not None:
        row |= {"free_bytes": space.free, "total_bytes": space.total}
    return row


# ---------------------------------------------------------------------- ledgers


class LedgerRows:
    """Makes the rows of one query."""

    def __init__(self, namespace: AsyncNamespace, logs: LogTables) -> None:
        self._services = namespace.services
        self._logs = logs
        ledgers = self._services.ledger_store
        self._replication = ReplicationStore(ledgers.store, ledgers.root)
        self._marked: set[int] | None = None

    async def of_log(self, name: str) -> list[Row]:
        """Return a row a ledger of the log's segments, in their order. Raises LogNotFoundError, CorruptDataError."""
        # A segment that lies in a cold file alone has no ledger any more.
        listed = [one for one in await self._services.logs.segments(name) if one.cold is None or one.cold.listed]
        named: list[Row] = [{"use": Use.SEGMENT.value, "log": name, "segment": one.lssn} for one in listed]
        return list(
            await asyncio.gather(*(self._row(one.ledger_id, use) for one, use in zip(listed, named, strict=True)))
        )

    async def all(self) -> list[Row]:
        """Return a row a ledger of the cluster, by id, with what names it in this namespace."""
        ledgers = self._services.ledger_store
        await repeat(ledgers.store, lambda: ledgers.store.sync(ledgers.root))
        # In this order: a ledger that is made and named in between would otherwise be shown as one that nothing names.
        ids = [ledger_id async for ledger_id in ledgers.ids()]
        named, unreadable = await ledgers_named(self._services)
        doubt = (
            f"{len(unreadable)} znodes that may name it cannot be read, as {unreadable[0].path}" if unreadable else None
        )
        rows: dict[int, Row] = {}

        async def add(ledger_id: int) -> None:
            use: Row = _use(named[ledger_id]) if ledger_id in named else {"error": doubt}
            row = await self._row(ledger_id, use)
            if row.get("state") or row.get("error") != doubt:  # else it was deleted since it was listed
                rows[ledger_id] = row

        await for_each(ids, _AT_ONCE, add)
        return [rows[ledger_id] for ledger_id in sorted(rows)]

    async def _row(self, ledger_id: int, use: Row) -> Row:
        try:
            ledger = await self._logs.ledger(ledger_id)
        except CorruptDataError as error:
            return {"ledger": ledger_id, **use, "error": error.message}
        row: Row = {"ledger": ledger_id, **use}
        return row if ledger is None else row | _described(ledger) | await self._found(ledger_id)

    async def _found(self, ledger_id: int) -> Row:
        """Return what the store knows besides: when the ledger was made, and what auto-recovery misses of it."""
        ledgers = self._services.ledger_store
        stat = await repeat(ledgers.store, lambda: ledgers.store.exists(ledgers.path(ledger_id)))
        if self._marked is None:
            self._marked = {one async for one in self._replication.marked()}
        mark = await self._replication.read(ledger_id) if ledger_id in self._marked else None
        return {
            "created_at": None if stat is None else micros(stat.ctime_ms),
            "missing": [] if mark is None else list(mark.value.missing),
        }


def _described(ledger: LedgerMetadata) -> Row:
    return {
        "state": ledger.state.name,
        "last_entry": ledger.last_entry if ledger.is_closed else None,
        "bytes": ledger.length if ledger.is_closed else None,
        "ensemble_size": ledger.ensemble_size,
        "write_quorum": ledger.write_quorum,
        "ack_quorum": ledger.ack_quorum,
        "digest": None if ledger.digest_type is None else ledger.digest_type.name,
        "fragments": len(ledger.ensembles),
        "nodes": distinct_nodes(ledger),
    }


def _use(named: list[FoundLedger]) -> Row:
    """Return what uses a ledger. Where several znodes name it, the segment counts: it is being completed, or published,
    at this moment."""
    one = next((found for found in named if found.reference.segment is not None), named[0])
    segment = one.reference.segment
    return {"use": one.reference.use.value, "log": one.log, "segment": None if segment is None else segment.lssn}


# ---------------------------------------------------------------------- sinks


async def sink_rows(namespace: AsyncNamespace) -> list[Row]:
    """Return a row a sink, by id. One that is removed meanwhile has none."""
    sinks = SinkStore(namespace.store, namespace.uri.path)
    found: dict[str, Row] = {}

    async def add(sink_id: str) -> None:
        row = await _sink_row(sinks, sink_id)
        if row is not None:
            found[sink_id] = row

    await for_each(await sinks.sinks(), _AT_ONCE, add)
    return [found[sink_id] for sink_id in sorted(found)]


async def _sink_row(sinks: SinkStore, sink_id: str) -> Row | None:
    stat = await sinks.stat(sink_id)
    if stat is None:
        return None
    staged = await sinks.staged(sink_id)
    row: Row = {
        **_sink_name(sink_id),
        "staged": len(staged),
        "staged_from": min((one.batch for one in staged), default=None),
        "created_at": micros(stat.ctime_ms),
    }
    try:
        return row | await _published(sinks, sink_id, stat)
    except NoNodeError:
        return None
    except CorruptDataError as error:
        return row | {"error": error.message}


async def _published(sinks: SinkStore, sink_id: str, stat: Stat) -> Row:
    state = await sinks.read(sink_id)
    if state is None or state.value.batch == NO_BATCH:
        return {}
    return {"batch": state.value.batch, "attempt": state.value.attempt, "published_at": micros(stat.mtime_ms)}


def _sink_name(sink_id: str) -> Row:
    for kind, prefix in (("application", APPLICATION_PREFIX), ("job", JOB_PREFIX)):
        if sink_id.startswith(prefix):
            return {"sink": sink_id, "kind": kind, "name": unquote(sink_id[len(prefix) :])}
    return {"sink": sink_id, "kind": "query", "name": unquote(sink_id)}
