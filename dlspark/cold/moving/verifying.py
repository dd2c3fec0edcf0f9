"""Verifying files: every byte read as a reader would, alone or against what a log's marks say. It changes nothing.

A file alone says what it holds and seals that, so damage shows without any metadata; a file that is another one, or was
replaced whole, shows only against its mark.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.cold.moving.copying import read_whole
from dlspark.core.cold.files.verifying import WholeFile
from dlspark.objects.store import ObjectStore
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation


@dataclass(frozen=True, slots=True)
class FileReport:
    """What is in a file, and is it right?

    Args:
        url: its address.
        bytes, sha256: of the object.
        log, first, last: the log's name when it was written, and the numbers of its segments.
        records, rows: how many it has.
        wrong: what is not as it must be, in words; None: nothing.
    """

    url: str
    bytes: int = 0
    sha256: str = ""
    log: str = ""
    first: int = 0
    last: int = 0
    records: int = 0
    rows: int = 0
    wrong: str | None = None


async def verify_object(store: ObjectStore, url: str, expected: ColdFile | None = None) -> FileReport:
    """Read a whole file; compare it with what a mark says of it, where that is given. What is wrong is in the result;
    raises CallerError only."""
    try:
        info = await store.head(url)
        whole = await read_whole(store, ColdFile(url, info.bytes, "", "", 0, 0))
    except (CallerError, InvariantViolation):
        raise
    except DistributedLogError as error:
        return FileReport(url, wrong=str(error))
    segments = whole.footer.segments
    return FileReport(
        url,
        whole.bytes,
        whole.sha256,
        whole.footer.identity.log,
        segments[0].lssn if segments else 0,
        segments[-1].lssn if segments else 0,
        whole.records,
        whole.rows,
        None if expected is None else _difference(whole, expected),
    )


def _difference(whole: WholeFile, expected: ColdFile) -> str | None:
    for what, there, wanted in (
        ("bytes", whole.bytes, expected.bytes),
        ("the SHA-256", whole.sha256, expected.sha256),
        ("the digest of records", whole.digest, expected.digest),
        ("rows", whole.rows, expected.rows),
        ("entries", whole.entries, expected.entries),
    ):
        if there != wanted:
            return f"it has {what} {there}, and the log's mark says {wanted}"
    return None
