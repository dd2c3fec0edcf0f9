"""A schema as the command line takes it, of a file or standard input: SQL's columns, Iceberg's JSON, an Avro schema."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dlspark.tables.types import Schema


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """What does a file say of columns?

    Args:
        schema: The columns.
        by_ids: Whether they are known by ids, as in what `show` prints in JSON; else by names.
        avro: Whether it is an Avro schema.
    """

    schema: Schema
    by_ids: bool
    avro: bool


def read_schema(file: Path) -> SchemaFile:
    """Return what a file says; `-` is standard input. Raises CallerError."""
    from dlspark.tables.avro_schema import schema_from_avro
    from dlspark.tables.ddl import schema_from_ddl
    from dlspark.tables.types import schema_from_json

    text = _text(file)
    if not text.lstrip().startswith("{"):
        return SchemaFile(schema_from_ddl(text), by_ids=False, avro=False)
    found = _json(text, file)
    found = found.get("schema", found) if isinstance(found, dict) else found  # the whole of what `show` prints
    if isinstance(found, dict) and found.get("type") == "record":
        return SchemaFile(schema_from_avro(found).schema, by_ids=False, avro=True)
    return SchemaFile(schema_from_json(found), by_ids=True, avro=False)


def read_registered(given: Iterable[str]) -> dict[int, object]:
    """Return the Avro schemas of a registry that options name, `7=orders.avsc`. Raises CallerError."""
    found: dict[int, object] = {}
    for one in given:
        number, sign, file = one.partition("=")
        if not sign or not number.isdecimal() or not file:
            raise CallerError(
                f"--confluent {one!r} does not name a schema; nothing was changed",
                advice="Give its number and its file: --confluent 7=orders.avsc",
            )
        found[int(number)] = _json(_text(Path(file)), Path(file))
    return found


def _text(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise CallerError(f"{file} cannot be read: {error.strerror}; nothing was changed") from error
    except UnicodeDecodeError as error:
        raise CallerError(f"{file} is not text in UTF-8: {error.reason}; nothing was changed") from error


def _json(text: str, file: Path) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CallerError(f"{file} is not JSON: {error}; nothing was changed") from error
