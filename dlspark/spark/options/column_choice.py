"""Option `columns`: whether a frame has a log's records as bytes, or as rows of what the log declares.

raw       the records, as every log has them
typed     the log's own columns; a source adds `_log` and `_error`
both      a source's typed columns, and the bytes of each record as `value`
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from metadata.foundation.settings import Kind

COLUMNS: Final = "columns"


class ColumnChoice(Enum):
    """Which columns does a frame have?"""

    RAW = "raw"
    TYPED = "typed"
    BOTH = "both"


def _read(text: str) -> ColumnChoice:
    return ColumnChoice(text.strip().lower())


CHOICES: Final[Kind[ColumnChoice]] = Kind("raw, typed or both", _read, ColumnChoice)
