"""What tests see of log lines does not depend on which tests ran before them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger

NAME = "tests.captured_logs.pyspark"


@pytest.fixture
def pyspark_logger() -> Iterator[None]:
    """What PySpark leaves behind once it has raised an error with a query's context."""
    PySparkLogger.getLogger(NAME).propagate = False
    yield
    del logging.root.manager.loggerDict[NAME]


@pytest.mark.usefixtures("pyspark_logger")
def test_lines_are_captured_in_pytests_own_format(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("tests.captured_logs").error("it failed", exc_info=ValueError("why"))
    assert "it failed" in caplog.text
    assert "ValueError: why" in caplog.text
