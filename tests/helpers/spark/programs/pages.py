"""What Spark's user interface shows of an application, and its REST interface, saved as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from pyspark.sql import SparkSession

_PAGES: Final = ("environment", "SQL", "StreamingQuery", "jobs", "stages", "storage", "executors")
_RESOURCES: Final = ("environment", "sql?details=true&planDescription=true", "jobs", "stages", "allexecutors")
_WAIT_S: Final = 60


def save_pages(spark: SparkSession, folder: Path) -> None:
    """Save the pages, that of each query, and the answers of the REST interface. Raises what cannot be read."""
    folder.mkdir(exist_ok=True)
    base = spark.sparkContext.uiWebUrl
    assert base is not None, "the session has no user interface"
    resources = f"api/v1/applications/{spark.sparkContext.applicationId}"
    for resource in _RESOURCES:
        _save(f"{base}/{resources}/{resource}", folder / f"rest-{resource.partition('?')[0]}")
    queries = [int(one["id"]) for one in json.loads((folder / "rest-sql").read_text())]
    assert queries, "no query is shown"
    for page in (*_PAGES, *(f"SQL/execution/?id={number}" for number in queries)):
        _save(f"{base}/{page}", folder / page.replace("/", "-"))


def _save(address: str, path: Path) -> None:
    with urlopen(address, timeout=_WAIT_S) as answer:
        path.write_bytes(answer.read())
