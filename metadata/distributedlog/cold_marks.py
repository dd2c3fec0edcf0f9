"""`ColdMarks`: all that a log's marks name, read so that what is missing is known to be missing.

Who deletes an object asks here first, because absence is easily seen wrongly: a log that is renamed between two reads
has neither units nor attempts under its old name, and one that is made anew there has only its own. A rename is one
transaction that makes the log's znodes again under the other name. So `P/cold` is read before and after the rest: where
it is the same znode (by the transaction that made it), everything that was read between was of this very log.

It changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_steps import ColdSteps
from metadata.distributedlog.cold_units import ColdAttempt, ColdLog, ColdUnit
from metadata.distributedlog.log_names import LogPaths
from metadata.foundation.errors import NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class ColdMarks:
    """What do the marks of one log name, all of them its own?

    Args:
        log: what is said of it; it is not being deleted.
        attempts: read before the units, so one that became a unit meanwhile is in one of the two at least.
        units: oldest first.
    """

    log: ColdLog
    attempts: list[Versioned[ColdAttempt]]
    units: list[Versioned[ColdUnit]]

    def names(self, url: str) -> bool:
        """Return whether an object may still be wanted: it is a copy under way, or a file of a unit, or was one."""
        files = [file for one in self.units for file in (one.value.file, *one.value.replaced)]
        return any(one.value.url == url for one in self.attempts) or any(
            file is not None and file.url == url for file in files
        )

    def names_copy(self, url: str) -> bool:
        """Return whether an object in a mirror may still be wanted: a copy has the name of its file."""
        name = url.rpartition("/")[2]
        files = [file for one in self.units for file in (one.value.file, *one.value.replaced)]
        return any(one.value.url.endswith(f"/{name}") for one in self.attempts) or any(
            file is not None and file.url.endswith(f"/{name}") for file in files
        )

    def owns(self, url: str) -> bool:
        """Return whether an object's address says that it is this log's: the log's id is the name of its folder."""
        return url.rpartition("/")[0].endswith(f"/{self.log.namespace_id}/{self.log.log_id}")

    def dead(self, url: str) -> bool:
        """Return whether an object that was to become a file of this log certainly is none, and never will be."""
        return self.owns(url) and not self.names(url)

    def dead_copy(self, url: str) -> bool:
        """Return the same of an object in a mirror, where copies of adopted files lie in their first log's folder."""
        return (self.owns(url) or self._adopted(url)) and not self.names_copy(url)

    def _adopted(self, url: str) -> bool:
        folder = url.rsplit("/", 3)[1:3]
        files = [file for one in self.units for file in (one.value.file, *one.value.replaced)]
        return any(file is not None and not file.borrowed and file.url.rsplit("/", 3)[1:3] == folder for file in files)


async def read_marks(store: MetadataStore, paths: LogPaths) -> ColdMarks | None:
    """Return the marks of the log that is at `paths`; None where none is certain to have been there all the while, or
    where it is being deleted: then nothing may be concluded from what is not there."""
    await repeat(store, lambda: store.sync(paths.partition))
    steps = ColdSteps(store)
    before = await _made(store, paths)
    attempts = await steps.all(paths.cold_attempts, ColdAttempt.decode)
    units = await steps.all(paths.cold_units, ColdUnit.decode)
    after = await _made(store, paths)
    if before is None or after is None or before[0] != after[0] or before[1].log_id != after[1].log_id:
        return None
    return None if after[1].deleted else ColdMarks(after[1], attempts, units)


async def _made(store: MetadataStore, paths: LogPaths) -> tuple[int, ColdLog] | None:
    try:
        data, stat = await repeat(store, lambda: store.get(paths.cold))
    except NoNodeError:
        return None
    return stat.czxid, ColdLog.decode(data, paths.cold)
