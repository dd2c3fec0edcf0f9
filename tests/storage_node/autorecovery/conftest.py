"""These tests run on the ledger client's simulated cluster, which lives beside its own tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "client"))
