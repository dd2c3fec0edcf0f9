"""`dlspark write` and `dlspark read`: a log from and to a terminal or a pipe."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from dlspark.cli.common import ConfOption, NameArgument, SetOption, UriOption, open_sync
from dlspark.cli.records import record_as_json, record_as_text
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from dlspark.core.codec.records import LogRecord
    from dlspark.core.sync.readers import LogReader
    from dlspark.core.sync.writer import LogWriter, PendingWrite

_EARLIEST, _LATEST = "earliest", "latest"
_READ_RECORDS = 1_000
_MAX_PENDING = 10_000
_MS_PER_S = 1000


class Output(str, Enum):
    """How `read` prints a record: for people, one JSON object a line, or the payload's bytes and a line feed."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"


def write(name: NameArgument, uri: UriOption = None, conf: ConfOption = None, values: SetOption = None) -> None:
    """Append the lines of standard input, one record each, with the time as transaction id; creates a missing log."""
    with (
        open_sync(uri, conf, values) as namespace,
        namespace.open_log(name) as log,
        log.open_writer() as writer,
    ):
        written, last = _write_lines(writer, sys.stdin.buffer)
    typer.echo(f"{counted(written, 'record')} acknowledged" + (f", the last one at {last}" if last else ""), err=True)


def read(
    name: NameArgument,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, a DLSN (3:1200:0), epoch milliseconds or an ISO-8601 time.")
    ] = _EARLIEST,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")] = False,
    output: Annotated[Output, typer.Option(help="How records are printed.")] = Output.TABLE,
    limit: Annotated[int | None, typer.Option("--limit", "-l", help="Stop after so many records.", min=1)] = None,
    as_hex: Annotated[bool, typer.Option("--hex", "-x", help="Payloads in hexadecimal.")] = False,
    skip_payload: Annotated[bool, typer.Option("--skip-payload", help="Records without their payloads.")] = False,
    uri: UriOption = None,
    conf: ConfOption = None,
    values: SetOption = None,
) -> None:
    """Print a log's records, from any position."""
    position = parse_start(start)
    if output is Output.RAW and (as_hex or skip_payload):
        raise CallerError("--output raw prints payloads as they are", advice="Leave out --hex and --skip-payload")
    with (
        open_sync(uri, conf, values) as namespace,
        namespace.open_log(name) as log,
        log.open_reader(position) as reader,
    ):
        for number, record in enumerate(reader if follow else _until_caught_up(reader), start=1):
            _print(record, output, as_hex=as_hex, payload=not skip_payload)
            if follow:
                sys.stdout.flush()
            if number == limit:
                break


def parse_start(text: str) -> DLSN | int | str:
    """A position as `open_reader` takes it. Raises CallerError."""
    if text in (_EARLIEST, _LATEST):
        return text
    if re.fullmatch("[0-9]{1,19}", text):
        return int(text)
    if text.count(":") == 2 and "T" not in text:
        return DLSN.parse(text)
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise CallerError(
            f"{text!r} is no position",
            advice="Give earliest, latest, a DLSN such as 3:1200:0, epoch milliseconds or a time (2013-07-01T00:00Z)",
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return int(when.timestamp() * _MS_PER_S)


def _write_lines(writer: LogWriter, lines: BinaryIO) -> tuple[int, DLSN | None]:
    """How many lines were acknowledged, and where the last one is. On an error, says how many had been."""
    pending: deque[PendingWrite[DLSN]] = deque()
    acknowledged, last = 0, None
    try:
        for line in lines:
            txid = max(time.time_ns() // 1_000_000, writer.last_txid)
            pending.append(writer.write(txid, line.rstrip(b"\r\n")))
            while pending and (pending[0].done() or len(pending) > _MAX_PENDING):
                last = pending.popleft().result()
                acknowledged += 1
        writer.flush()
        while pending:
            last = pending.popleft().result()
            acknowledged += 1
    except DistributedLogError:
        there = counted(acknowledged, "line is", "lines are")
        typer.echo(f"{there} in the log; the write of the next one failed:", err=True)
        raise
    return acknowledged, last


def _until_caught_up(reader: LogReader) -> Iterator[LogRecord]:
    """Everything that is confirmed now; a sealed log's end is an end like any other."""
    from dlspark.errors import EndOfStreamError

    with contextlib.suppress(EndOfStreamError):
        while records := reader.read_bulk(_READ_RECORDS):
            yield from records


def _print(record: LogRecord, output: Output, *, as_hex: bool, payload: bool) -> None:
    if output is Output.RAW:
        sys.stdout.buffer.write(bytes(record.payload) + b"\n")
    elif output is Output.JSON:
        print(json.dumps(record_as_json(record, as_hex=as_hex, payload=payload), ensure_ascii=False))
    else:
        print(record_as_text(record, as_hex=as_hex, payload=payload))
