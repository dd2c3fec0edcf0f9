"""Verifying files: every byte read as a reader would, alone or against what a log's marks say. It changes nothing.

A file alone says what it holds and seals that, so damage shows without any metadata; a file that is another one, or was
replaced whole, shows only against its mark.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from dlspark.cold.moving.copying import hash_object
from dlspark.core.cold.files.digests import RecordDigest
from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.reading.file_reader import ColdFileReader, KnownParts
from dlspark.objects.store import ObjectStore
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation


@dataclass(frozen=True, slots=True)
class VerifiedFile:
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


async def verify_file(store: ObjectStore, url: str, expected: ColdFile | None = None) -> VerifiedFile:
    """Read a whole file; compare it with what a mark says of it, where that is given. What is wrong is in the result;
    raises CallerError only."""
    known = KnownParts()
    try:
        info = await store.head(url)
        file = ColdFile(url, info.bytes, "", "", 0, 0)
        sha256 = await hash_object(store, file)
        reader = ColdFileReader(store, file, known)
        footer = await reader.footer()
        digest, records = RecordDigest(), 0
        async with aclosing(reader.all_records(range(len(footer.row_groups)))) as groups:
            async for _, found in groups:
                await asyncio.get_running_loop().run_in_executor(None, digest.update, found)
                records += len(found)
        rows = sum(group.rows for group in footer.row_groups)
        wrong = _difference(footer, digest.hexdigest(), rows, info.bytes, sha256, expected)
        return VerifiedFile(
            url,
            info.bytes,
            sha256,
            footer.identity.log,
            footer.segments[0].lssn if footer.segments else 0,
            footer.segments[-1].lssn if footer.segments else 0,
            records,
            rows,
            wrong,
        )
    except (CallerError, InvariantViolation):
        raise
    except DistributedLogError as error:
        return VerifiedFile(url, wrong=str(error))
    finally:
        await known.close()


def _difference(
    footer: Footer, digest: str, rows: int, size: int, sha256: str, expected: ColdFile | None
) -> str | None:
    if digest != footer.digest:
        return f"its records have the digest {digest}, and its footer says {footer.digest}"
    if expected is None:
        return None
    for what, there, wanted in (
        ("bytes", size, expected.bytes),
        ("the SHA-256", sha256, expected.sha256),
        ("the digest of records", digest, expected.digest),
        ("rows", rows, expected.rows),
    ):
        if there != wanted:
            return f"it has {what} {there}, and the log's mark says {wanted}"
    return None
