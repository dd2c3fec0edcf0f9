"""The contents of a log, besides reading and writing it (`pipes`): `log tail|watch|metadata|subscribers|dlsn`."""

from __future__ import annotations

import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated

import typer

from dlspark.cli.common import (
    At,
    ConcurrencyOption,
    FilterOption,
    Json,
    NameArgument,
    Output,
    OutputOption,
    YesOption,
    check_output,
    chosen_logs,
    confirm,
    each,
    exit_with,
    over_namespace,
    print_result,
    shown,
)
from dlspark.cli.logs import HexOption
from dlspark.cli.record_forms import record_as_json, record_as_text
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.store import ANY_VERSION

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
    from dlspark.errors import EndOfStreamError, LogEmptyError

    async with at.open() as namespace, await namespace.open_log(name) as log:
        try:
            last = await log.last_record()
            start = await log.find_sequence_id(last.sequence_id - number + 1) if number else last.dlsn.next
        except LogEmptyError:
            start = await log.end()
        async with await log.open_reader(start) as reader:
            with suppress(EndOfStreamError):
                while follow or number:
                    records = await reader.read_available(1 if follow else number, wait=True)
                    for record in records:
                        at.line(record_as_json(record, as_hex=as_hex), record_as_text(record, as_hex=as_hex))
                    if not follow:
                        return
                    if not records:
                        check_output()


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
