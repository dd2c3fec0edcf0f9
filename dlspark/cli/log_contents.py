"""What is in a log: `dlspark write`, `dlspark read`, `log tail|watch|metadata|subscribers|dlsn`."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from dlspark.cli.common import (
    At,
    ConcurrencyOption,
    ConfOption,
    FilterOption,
    Json,
    NameArgument,
    Output,
    OutputOption,
    SetOption,
    UriOption,
    YesOption,
    chosen_logs,
    confirm,
    each,
    exit_with,
    open_sync,
    over_namespace,
    print_result,
    shown,
)
from dlspark.cli.logs import HexOption
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.plurals import counted
from metadata.store import ANY_VERSION

if TYPE_CHECKING:
    from dlspark.core.codec.records import LogRecord
    from dlspark.core.sync.readers import LogReader
    from dlspark.core.sync.writer import LogWriter, PendingWrite

SubscriberArgument = Annotated[str, typer.Argument(help="The subscriber's id.")]


@over_namespace
async def tail(
    at: At,
    name: NameArgument,
    number: Annotated[int, typer.Option("--number", "-n", min=0, help="Records to begin with.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, until Ctrl-C.")] = True,
    as_hex: HexOption = False,
) -> None:
    """Print a log's last records, then those that come."""
    from dlspark.errors import LogEmptyError

    async with at.open() as namespace, await namespace.open_log(name) as log:
        try:
            last = await log.last_record()
            start = await log.find_sequence_id(last.sequence_id - number + 1) if number else last.dlsn.next
        except LogEmptyError:
            start = await log.end()
        async with await log.open_reader(start) as reader:
            if follow:
                async for record in reader:
                    at.line(record_as_json(record, as_hex=as_hex), record_as_text(record, as_hex=as_hex))
                return
            for record in await reader.read_available(max(number, 1), wait=True) if number else ():
                at.line(record_as_json(record, as_hex=as_hex), record_as_text(record, as_hex=as_hex))


@over_namespace
async def watch(
    at: At,
    prefix: Annotated[str, typer.Argument(help="Only logs below this name.")] = "",
    existing: Annotated[bool, typer.Option("--existing", help="Begin with the logs that there are.")] = False,
) -> None:
    """Print each log that comes (+) or goes (-), a line each, until Ctrl-C."""
    async with at.open() as namespace, aclosing(namespace.watch_logs(prefix, existing=existing)) as changes:
        async for change in changes:
            result = {"log": change.name, "change": "added" if change.added else "removed"}
            at.line(result, f"{'+' if change.added else '-'} {change.name}")


# ---------------------------------------------------------------------- the application's own bytes


@over_namespace
async def metadata_get(at: At, name: NameArgument, as_hex: HexOption = False) -> None:
    """Print the bytes that the application keeps with a log."""
    async with at.open() as namespace, await namespace.open_log(name) as log:
        found = await log.metadata()
    text = shown(found.value, as_hex=as_hex)
    at.result({"log": name, "metadata": text, "version": found.version}, text)


@over_namespace
async def metadata_set(
    at: At,
    name: NameArgument,
    text: Annotated[str | None, typer.Argument(help="The bytes, as text; empty text deletes them.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Where the bytes are; - is standard input.")] = None,
    version: Annotated[int, typer.Option("--version", help="Only over this version; -1 is any.")] = ANY_VERSION,
) -> None:
    """Keep bytes of the application's with a log, in place of those that are there."""
    if (text is None) == (file is None):
        raise CallerError("nothing was stored: there is no text or file, or both", advice="Give one of them")
    if file is not None:
        data = sys.stdin.buffer.read() if str(file) == "-" else _read(file)
    else:
        data = (text or "").encode()
    async with at.open() as namespace, await namespace.open_log(name) as log:
        new = await log.set_metadata(data, version)
    at.result(
        {"log": name, "version": new}, f"{counted(len(data), 'byte is', 'bytes are')} kept with {name}, version {new}"
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CallerError(f"{file} cannot be read: {error.strerror}; nothing was done") from error


# ---------------------------------------------------------------------- subscribers


@over_namespace
async def subscribers_list(at: At, name: NameArgument) -> None:
    """List a log's subscribers and the positions that they committed."""
    async with at.open() as namespace, await namespace.open_log(name) as log:
        found = sorted((await log.subscribers()).items())
    none = DLSN.NON_INCLUSIVE_LOWER_BOUND
    rows: list[Json] = [{"subscriber": who, "position": None if at_ == none else str(at_)} for who, at_ in found]
    text = [f"{who}\t{'none yet' if position == none else position}" for who, position in found]
    at.result({"log": name, "subscribers": rows}, text)


@over_namespace
async def subscribers_delete(
    at: At,
    subscriber: SubscriberArgument,
    names: Annotated[list[str] | None, typer.Option("--log", help="Of this log; may be given several times.")] = None,
    pattern: FilterOption = None,
    yes: YesOption = False,
    concurrency: ConcurrencyOption = 4,
) -> None:
    """Forget a subscriber with its positions, in some logs or all. Refused while a reader holds its lock."""
    deleted: list[str] = []
    async with at.open() as namespace:
        chosen = await chosen_logs(namespace, names, pattern)
        confirm(f"Forget where {subscriber} is in {counted(len(chosen), 'log')}?", yes=yes)

        async def forget(name: str) -> None:
            async with await namespace.open_log(name) as log:
                if subscriber in await log.subscribers():
                    await log.delete_subscriber(subscriber)
                    deleted.append(name)

        failed = await each(chosen, concurrency, forget)
    result: dict[str, Json] = {"subscriber": subscriber, "deleted": sorted(deleted), "failed": failed}
    at.result(result, [f"deleted from {name}" for name in sorted(deleted)] or "there was none of that id")
    exit_with(failed=failed)


# ---------------------------------------------------------------------- DLSNs


def dlsn_encode(
    dlsn: Annotated[str, typer.Argument(help="segment:entry:slot, as 3:1200:0.")],
    as_hex: HexOption = False,
    version: Annotated[int, typer.Option("--version", min=0, max=1, help="Of the binary form.")] = 1,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a DLSN's binary form, in base64 or hexadecimal."""
    parsed = DLSN.parse(dlsn)
    text = parsed.to_bytes(version).hex() if as_hex else parsed.to_base64(version)
    print_result(output, {"dlsn": str(parsed), "encoded": text}, text)


def dlsn_decode(
    text: Annotated[str, typer.Argument(help="What `encode` printed.")],
    as_hex: HexOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print the DLSN of a binary form in base64 or hexadecimal."""
    if as_hex:
        try:
            parsed = DLSN.from_bytes(bytes.fromhex(text))
        except ValueError as error:
            raise CallerError(f"{text!r} is not hexadecimal: {error}") from error
    else:
        parsed = DLSN.from_base64(text)
    fields: dict[str, Json] = {"dlsn": str(parsed), **parsed._asdict()}
    print_result(output, fields, str(parsed))


# ---------------------------------------------------------------------- write and read, to a terminal or a pipe


_EARLIEST, _LATEST = "earliest", "latest"
_READ_RECORDS = 1_000
_MAX_PENDING = 10_000
_MS_PER_S = 1000


class RecordOutput(str, Enum):
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
    output: Annotated[RecordOutput, typer.Option(help="How records are printed.")] = RecordOutput.TABLE,
    limit: Annotated[int | None, typer.Option("--limit", "-l", help="Stop after this many records.", min=1)] = None,
    as_hex: Annotated[bool, typer.Option("--hex", "-x", help="Payloads in hexadecimal.")] = False,
    skip_payload: Annotated[bool, typer.Option("--skip-payload", help="Records without their payloads.")] = False,
    uri: UriOption = None,
    conf: ConfOption = None,
    values: SetOption = None,
) -> None:
    """Print a log's records, from any position."""
    position = parse_start(start)
    if output is RecordOutput.RAW and (as_hex or skip_payload):
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
            f"{text!r} is not a position",
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


def _print(record: LogRecord, output: RecordOutput, *, as_hex: bool, payload: bool) -> None:
    if output is RecordOutput.RAW:
        sys.stdout.buffer.write(bytes(record.payload) + b"\n")
    elif output is RecordOutput.JSON:
        print(json.dumps(record_as_json(record, as_hex=as_hex, payload=payload), ensure_ascii=False))
    else:
        print(record_as_text(record, as_hex=as_hex, payload=payload))


# ---------------------------------------------------------------------- how a record is printed


def record_as_json(record: LogRecord, *, as_hex: bool = False, payload: bool = True) -> dict[str, Json]:
    """A record's fields; `value` is its payload."""
    fields: dict[str, Json] = {
        "dlsn": str(record.dlsn),
        "transaction_id": record.txid,
        "sequence_id": record.sequence_id,
    }
    return fields | {"value": shown(record.payload, as_hex=as_hex)} if payload else fields


def record_as_text(record: LogRecord, *, as_hex: bool = False, payload: bool = True) -> str:
    """A record on a line; without its payload how long that is."""
    text = shown(record.payload, as_hex=as_hex) if payload else counted(len(record.payload), "byte")
    return f"{record.dlsn!s:<16} {record.txid:>15}  {text}"
