"""`RunWrite`: many records as one write: checked, queued and issued together, and answered entry by entry.

What becomes of the records is what would become of them if each were written by itself: one that is refused takes none
before it along. So a run is made only of records that will all be accepted (`appending.write_run` sees to that); what
refuses it then concerns the writer, and not one of them.
"""

from __future__ import annotations

from functools import partial

from dlspark.core.writing.acknowledgements import OutcomeCallback, RunEnded
from dlspark.core.writing.queued_writes import QueuedWrite
from dlspark.core.writing.record_runs import RecordRun
from dlspark.core.writing.segment_writer import SegmentWriter
from dlspark.errors import WriteCancelledError
from metadata.foundation.errors import DistributedLogError


def not_tried_error() -> WriteCancelledError:
    """Return the error of a bulk's record behind one that was refused."""
    return WriteCancelledError("A record before it was refused; this one was not written")


class RunWrite(QueuedWrite):
    """Records that are in order, on their way into a segment."""

    __slots__ = ("accepted", "bulk", "ended", "run")

    def __init__(self, run: RecordRun, ended: RunEnded, *, bulk: bool) -> None:
        """`bulk`: whether those behind a refused record are not tried."""
        self.run = run
        self.ended = ended
        self.bulk = bulk
        self.accepted = False
        """Set once it is: what refuses it then does not look at single records."""

    @property
    def first_txid(self) -> int:
        """The first record's."""
        return self.run.first_txid

    @property
    def last_txid(self) -> int:
        """The last record's, or a higher one."""
        return self.run.highest_txid

    @property
    def records(self) -> int:
        """One position for each."""
        return len(self.run)

    @property
    def size(self) -> int:
        """Bytes of an entry."""
        return self.run.size

    def check(self) -> None:
        """Note that its records were checked when the run was made."""

    def check_order(self) -> None:
        """Pass: their order was checked, too."""

    def number(self, txid: int) -> None:
        """Note that one id for all records, where they came without."""
        self.run = self.run.at(txid)

    def issue(self, segment: SegmentWriter) -> None:
        """Hand the records to `segment`."""
        segment.write_run(self.run, self.ended, bulk=self.bulk)

    def fail(self, error: DistributedLogError) -> None:
        """Give `error` to all; or, of a bulk that is not accepted, to the first of them."""
        count = len(self.run)
        wrong = count if self.accepted or not self.bulk else 1
        OutcomeCallback(partial(self.ended, 0, wrong)).set_exception(error)
        if wrong < count:
            OutcomeCallback(partial(self.ended, wrong, count - wrong)).set_exception(not_tried_error())
