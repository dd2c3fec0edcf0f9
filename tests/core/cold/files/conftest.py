"""Tests of files take the random schemas and rows of the tests of tables, whose programs import them by their names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "tables"))
