"""The file in which a node remembers whether it was read-only (docs/reference/node-files.md#bookie_status).

`BOOKIE_STATUS` lies in every ledger directory, one line as BookKeeper writes it: `1,READ_ONLY,<milliseconds>` or
`1,READ_WRITE,<milliseconds>`, where `persistBookieStatusEnabled` is on. The newest one counts. Nothing depends on it: a
node that cannot write it goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from storage_node.edge import Disk

logger = logging.getLogger(__name__)

FILE_NAME = "BOOKIE_STATUS"
LAYOUT = "1"
READ_ONLY, READ_WRITE = "READ_ONLY", "READ_WRITE"


def write_status(disk: Disk, directories: Sequence[str], *, read_only: bool, now_ms: int) -> None:
    """Leave the mode in every directory (`current` folders)."""
    data = f"{LAYOUT},{READ_ONLY if read_only else READ_WRITE},{now_ms}\n".encode()
    for directory in directories:
        try:
            disk.write_file(f"{directory}/{FILE_NAME}", data)
        except OSError as error:
            logger.warning("the node's mode could not be written to %s: %s", directory, error)


def was_read_only(disk: Disk, directories: Sequence[str]) -> bool:
    """What the newest readable file says; False where there is none."""
    found: list[tuple[int, bool]] = []
    for directory in directories:
        data = disk.read_file(f"{directory}/{FILE_NAME}")
        if data is None:
            continue
        layout, mode, stamp = ([*data.decode("ascii", "replace").strip().split(","), "", ""])[:3]
        if layout == LAYOUT and mode in (READ_ONLY, READ_WRITE) and stamp.isdecimal():
            found.append((int(stamp), mode == READ_ONLY))
        else:
            logger.warning("%s/%s is not readable and left out", directory, FILE_NAME)
    return max(found)[1] if found else False
