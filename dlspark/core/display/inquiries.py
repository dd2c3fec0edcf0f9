"""What is asked to be shown: a log's picture, a namespace's overview. Bounded in number, and in time where unasked for.

A notebook asks an object for its HTML without being told to, so that must neither hang nor raise: `shown` gives the
question `REPR_TIMEOUT_S`, and the reason instead of the object where it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from dlspark.core.codec.dlsn_range import DLSNRange
from dlspark.core.display.objects import LogPicture, Overview
from dlspark.core.display.picture import MAX_DRAWN, Unit
from dlspark.core.display.text import failure
from dlspark.core.lifecycle.status import LogStatus, log_status
from dlspark.core.runtime import Runtime
from dlspark.core.services import Services
from dlspark.errors import CallerError, DistributedLogError, LogNotFoundError, NotAppliedError
from metadata.foundation.errors import NoNodeError
from metadata.logs import SegmentMetadata

MAX_LOGS: Final = 50
"""Logs of a namespace that its overview looks at."""
REPR_TIMEOUT_S: Final = 5.0
"""How long a notebook waits for an object that it shows."""
OVERVIEW_S: Final = 3.0
"""How long an overview looks at logs unless told otherwise."""
_AT_ONCE: Final = 16


async def log_picture(services: Services, name: str, by: Unit, mark: DLSNRange | None) -> LogPicture:
    """Look at a log for a picture of it. Raises LogNotFoundError, CallerError for another unit.

    Bytes are asked of each drawn segment's ledger: one request each, `MAX_DRAWN` at most.
    """
    if by not in ("records", "bytes"):
        raise CallerError(f"a picture has no scale of {by!r}", advice="Give by='records' or by='bytes'")
    status = await log_status(services, name)
    sizes = await _bytes(services, status.segments[-MAX_DRAWN:]) if by == "bytes" else None
    return LogPicture(status, by, sizes, mark)


async def _bytes(services: Services, segments: tuple[SegmentMetadata, ...]) -> dict[int, int]:
    """Bytes of the segments' ledgers, as the ledgers' metadata has them: entries with their envelopes, one replica."""

    async def one(segment: SegmentMetadata) -> int | None:
        try:
            ledger = (await services.ledger_store.read(segment.ledger_id)).value
        except NoNodeError:
            return None  # purged meanwhile
        return ledger.length if ledger.is_closed else None

    found = await asyncio.gather(*map(one, segments))
    return {segment.lssn: size for segment, size in zip(segments, found, strict=True) if size is not None}


async def overview(services: Services, uri: str, seconds: float = OVERVIEW_S) -> Overview:
    """Look at the namespace's first `MAX_LOGS` logs, for at most `seconds`; what was not seen by then is said so."""
    names = sorted(await services.logs.list(""))
    limit = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str) -> LogStatus | str:
        async with limit:
            try:
                return await log_status(services, name)
            except LogNotFoundError:
                return "holds other logs"
            except DistributedLogError as error:
                return f"{type(error).__name__}: {error.message}"

    tasks = [asyncio.ensure_future(look(name)) for name in names[:MAX_LOGS]]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        found = [task.result() if task.done() else f"not seen within {seconds:g} s" for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Overview(uri, tuple(zip(names, found, strict=False)), max(len(names) - MAX_LOGS, 0))


def shown(
    runtime: Runtime,
    title: str,
    question: Callable[[], Coroutine[object, object, LogPicture | Overview]],
    seconds: float = REPR_TIMEOUT_S,
) -> str:
    """The HTML of what `question` finds within `seconds`, else of the reason why not. Never raises an Exception."""

    async def limited() -> LogPicture | Overview:
        try:
            return await asyncio.wait_for(question(), seconds)
        except asyncio.TimeoutError as error:
            raise NotAppliedError(f"it took longer than {seconds:g} s, the most that a display waits") from error

    try:
        return runtime.run(limited())._repr_html_()
    except Exception as error:
        return failure(title, error)
