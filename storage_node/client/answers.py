"""What bookies answer, as errors."""

from __future__ import annotations

from metadata.foundation.errors import DistributedLogError
from storage_node.errors import ERROR_OF_STATUS
from storage_node.protocol.messages import Status


def answer_error(status: Status, bookie: str, ledger_id: int | None, entry_id: int | None) -> DistributedLogError:
    """The error that a status other than EOK stands for."""
    kind = ERROR_OF_STATUS[int(status)]
    what = (kind.__doc__ or status.name).split(" (E")[0].split(";")[0].rstrip(".")
    return kind(f"{what} ({status.name})", node=bookie, ledger_id=ledger_id, entry_id=entry_id)
