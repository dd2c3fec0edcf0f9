"""Data loss: the position of a query does not exist any more. The option `failOnDataLoss` decides what it does (I8)."""

from __future__ import annotations

import logging

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import DataLossError, DeletedDataLossError, RecreatedDataLossError, TruncatedDataLossError
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.offsets import LogIdentity

_log = logging.getLogger(__name__)


class DataLossPolicy:
    """The policy of one query for lost records: it fails, or goes on with the records that are left and says so once.

    Args:
        fail: the value of `failOnDataLoss`.
    """

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._warned: set[str] = set()

    def lost(self, kind: type[DataLossError], log: str, position: DLSN, what: str, mend: str) -> None:
        """Raise a `kind`, or warn that `mend` is done instead: nothing is ever passed over in silence (I8)."""
        if self._fail:
            raise kind(
                f"Records from this position on are gone: {what}; nothing was read",
                advice="Set failOnDataLoss to false to go on with what is there, or start a query at another position, "
                "with a new checkpoint location",
                log=log,
                dlsn=position,
            )
        # Once each: an idle query finds the same loss every few milliseconds.
        text = f"log {log}: records from {position} on are gone: {what}; failOnDataLoss is false, so {mend}"
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def deleted(self, log: str, position: DLSN, mend: str) -> None:
        """Raise or warn that the log with this position does not exist any more."""
        self.lost(DeletedDataLossError, log, position, "the log does not exist any more", mend)

    def recreated(self, view: DriverLogView, position: DLSN, identity: LogIdentity, mend: str) -> None:
        """Raise or warn that the log of this name is another one than `identity` says, created later."""
        cluster = "" if identity.same_cluster(view.cluster) else f", with its whole cluster: this is {view.cluster}"
        what = f"the log was deleted and created again{cluster} ({identity.words})"
        self.lost(RecreatedDataLossError, view.name, position, what, mend)

    async def begin(self, view: DriverLogView, position: DLSN | None, identity: LogIdentity | None) -> DLSN:
        """Return where reading a log really begins: at the position, or, where that is lost, at the first record still
        there.

        A log without a position is new to the query and begins at its first record.
        """
        earliest = view.earliest()
        if position is None:
            return earliest
        mend = f"the query goes on at {earliest}"
        # The identity first: a log that was made again may have grown past the position, and then nothing else shows.
        if identity is not None and view.differs(identity):
            self.recreated(view, position, identity, mend)
            return earliest
        if position < earliest and view.lost_before(position):
            self.lost(TruncatedDataLossError, view.name, position, f"the log now begins at {earliest}", mend)
            return earliest
        if await view.beyond_end(position):
            what = f"the log ends at {await view.latest()}: was it deleted and created again?"
            self.lost(RecreatedDataLossError, view.name, position, what, mend)
            return earliest
        return max(position, earliest)
