"""What the rounds stream: the rows of a `Plan`, cut into batches and tasks as the options say.

What a batch holds is a function of the plan and of `stride` alone; how it is cut into tasks differs with `cuts`, so
that a query that is started again plans its batches anew (D14). A batch without rows often has no task at all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from helpers.spark.sink_driver import Plan, arrow_batches

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("log", StringType()),
        StructField("transaction_id", LongType()),
    ]
)


class Rows(InputPartition):
    """Rows `begin` to `end` of the batches `first` to before `past`."""

    def __init__(self, first: int, past: int, begin: int, end: int) -> None:
        self.first, self.past, self.begin, self.end = first, past, begin, end


class RoundsSource(DataSource):
    """Format `rounds`; options: plan (JSON), limit (a file: batches that are there), stride (in one of Spark), cuts."""

    @classmethod
    def name(cls) -> str:
        return "rounds"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> RoundsReader:
        return RoundsReader(dict(self.options))


class RoundsReader(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._plan = Plan(**json.loads(options["plan"]))
        self._limit = Path(options["limit"])
        self._stride = int(options["stride"])
        self._cuts = options["cuts"]

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        there = int(self._limit.read_text())
        return {"batch": max(start["batch"], min(start["batch"] + self._stride, there))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        first, past = start["batch"], end["batch"]
        rng = random.Random(f"{self._cuts}/{first}/{past}")
        count = len(self._rows(first, past))
        if count == 0 and rng.random() < 0.5:
            return []
        cuts = sorted(rng.randrange(count + 1) for _ in range(rng.randrange(4)))
        return [Rows(first, past, begin, end) for begin, end in zip([0, *cuts], [*cuts, count], strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        rows = self._rows(partition.first, partition.past)[partition.begin : partition.end]
        yield from arrow_batches(rows, stamped=False)

    def commit(self, end: dict[str, int]) -> None:
        return None

    def _rows(self, first: int, past: int) -> list[tuple[int, str, bytes]]:
        return [row for batch in range(first, past) for row in self._plan.batch_rows(batch)]
