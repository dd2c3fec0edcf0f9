"""Where things are in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent.parent
ROOT: Final = TESTS.parent
CONF: Final = ROOT / "conf"
DOCS: Final = ROOT / "docs"
SPARK_PROGRAMS: Final = TESTS / "helpers" / "spark" / "programs"
"""Programs with a session of their own, which tests run as users do: by their path."""
