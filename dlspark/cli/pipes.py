r"""`dlspark write` and `dlspark read`: a log's records from and to a pipe, a file or a terminal.

What is written is sent in blocks, as columns: nothing of it runs for each record. A block goes when it is large enough,
when its first record has waited for `--flush-after`, and when the input ends; after a time without input everything is
made visible to readers too. All records of a block have the time when it was sent as their transaction id.

What ends the input (its end, a signal, a record that cannot be taken, storage nodes that fail) never takes along what
was read before: that is written first, and the last line on standard error says how many records are in the log, and
where the last one is. What is said there is on the disks of an ack quorum.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from dlspark.cli.common import (
    At,
    ConfOption,
    NameArgument,
    Output,
    SetOption,
    UriOption,
    check_output,
    namespace_uri,
    open_sync,
    settings_of,
)
from dlspark.cli.copy_progress import ERASED, CopyProgress, is_watched
from dlspark.cli.input_blocks import SIGNALLED, InputBlocks
from dlspark.cli.positions import parse_start
from dlspark.cli.record_forms import RecordInput, RecordOutput, Splitter, Taken, payload_bytes, splitter_of
from dlspark.cli.record_printing import RecordPrinter
from dlspark.cli.row_output import Wanted, print_rows
from dlspark.core.codec.dlsn import DLSN
from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from dlspark.core.sync.log import Log
    from dlspark.core.sync.readers import LogReader
    from dlspark.core.sync.writer import LogWriter, PendingWrite
    from dlspark.core.writing.acknowledgements import WrittenEntry

_BLOCK_BYTES: Final = 1 << 20
"""Bytes at which a block is sent, as its records will lie in entries: four of them, and the last one may be small."""
_BLOCK_RECORDS: Final = 50_000
"""No block has more: empty lines by the million come in one read."""
_RECORD_BYTES: Final = 20
"""What a record takes in an entry besides its payload."""
_MAX_PENDING: Final = 16
"""Blocks that may wait for their acknowledgement."""
_SAID_EVERY_S: Final = 1.0
_EARLIEST: Final = "earliest"

DelimiterOption = Annotated[
    str | None,
    typer.Option("--delimiter", help=r"Bytes behind each raw record: \n (if not said), \0, \r\n, \x1e, or any text."),
]


def write(
    name: NameArgument,
    form: Annotated[
        RecordInput, typer.Option("--input", help="How records stand in the input: as `read --output` printed them.")
    ] = RecordInput.RAW,
    delimiter: DelimiterOption = None,
    keep_txids: Annotated[
        bool, typer.Option("--keep-transaction-ids", help="With --input json: each object says its record's.")
    ] = False,
    flush_after: Annotated[
        int, typer.Option("--flush-after", metavar="MS", min=0, help="Milliseconds after which what was read is sent.")
    ] = 100,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress",
            help="Say on standard error, while writing, how many records are in the log; on a terminal if not said.",
        ),
    ] = None,
    uri: UriOption = None,
    conf: ConfOption = None,
    values: SetOption = None,
) -> None:
    """Append what standard input says, one record a line, byte for byte; creates a missing log. Ctrl-C ends the input.

    The time is the transaction id. What was read is written whatever ends the input, and how much that is, is said.
    """
    splitter = splitter_of(form, delimiter, keep_txids=keep_txids)
    with InputBlocks.standard() as source:
        # Who types the records sees them, and not a line between them.
        shows_line = progress is not False and is_watched() and not source.is_terminal
        done = _Done(bool(progress) and not shows_line)
        source.at_once = done.say_at_once
        try:
            with (
                open_sync(uri, conf, values) as namespace,
                namespace.open_log(name) as log,
                log.open_writer() as writer,
            ):
                if shows_line:
                    done.line = CopyProgress(name, source.left_bytes())
                refusal = _Appending(writer, done, flush_after / 1000).run(source, splitter)
                done.say(_left(splitter) if source.signal is not None and refusal is None else "")
        except DistributedLogError as error:
            if not done.said:
                done.say()
            raise error
        except KeyboardInterrupt:
            if not done.said:
                done.say()
            raise typer.Exit(SIGNALLED + (source.signal or 2)) from None
        finally:
            if done.line is not None:
                done.line.close()
        if refusal is not None:
            raise refusal
        if source.signal is not None:
            raise typer.Exit(SIGNALLED + source.signal)


def _left(splitter: Splitter) -> str:
    """Return the note on bytes that were read and make no record, because a signal cut it off."""
    left = splitter.incomplete
    return f"; {counted(left, 'byte')} of an unfinished {splitter.unit} were not written" if left else ""


class _Sent(NamedTuple):
    """A block that was given to the writer."""

    records: int
    written: PendingWrite[tuple[WrittenEntry, ...]]
    size: int = 0
    """Bytes of its payloads."""
    read_bytes: int = 0
    """How much of the input had been read by then."""


class _Done:
    """How many records are in the log for certain, and how is that said?"""

    def __init__(self, progress: bool) -> None:
        self.records = 0
        self.last: DLSN | None = None
        self.sent = 0
        """Records that were given to the writer."""
        self.sent_bytes = 0
        """Bytes of their payloads."""
        self.pending: deque[_Sent] = deque()
        """The blocks of them that wait for their acknowledgement."""
        self._unbroken = True
        """Whether each block up to now was acknowledged, or may yet turn out to be stored."""
        self._refused = 0
        """Records of the blocks that nothing was sent of, behind which no other block has its outcome: for certain not
        in the log."""
        self.said = False
        """True once the end was said."""
        self.line: CopyProgress | None = None
        """Says it on a terminal, in place of the lines of `progress`."""
        self._bytes = self._read_bytes = 0
        self._progress = progress
        self._said_records = -1
        self._said_at = 0.0

    def add(self, records: int, size: int, last: DLSN | None) -> None:
        """Count so many more records and bytes that are on disks, the last of them there."""
        self.records += records
        self._bytes += size
        self.last = last if last is not None else self.last
        self._report(False)

    def settle(self, most: int) -> None:
        """Count what is acknowledged, until at most so many blocks wait. Raises the error of one that is not."""
        while self.pending and (self.pending[0][1].done() or len(self.pending) > most):
            records, written, size, read_bytes = self.pending[0]
            try:
                end = written.result()[-1]
            except DistributedLogError:
                # Perhaps not the block's own: of one without an outcome, `result` sends first what is buffered.
                if written.done():
                    self._unbroken = False
                    self._refused = self._refused_behind(records, written)
                    self.pending.popleft()
                raise
            # A writer that begins a new segment after an error acknowledges blocks behind one that is lacking. Neither
            # is that one "the next" to write again then, nor are they among the first so many that are in the log.
            self._refused = 0
            if self._unbroken and end.dlsn != DLSN.INVALID:  # else it was taken, and is not stored yet: see `stored`
                self._read_bytes = read_bytes
                self.add(records, size, end.dlsn._replace(slot_id=end.dlsn.slot_id + end.record_count - 1))
            # Only now: the handler of a signal, which may run at any of these lines, takes no block for the last one
            # while others wait.
            self.pending.popleft()

    def take(self, block: _Sent) -> None:
        """Count a block as given to the writer."""
        self.pending.append(block)
        self.sent += block.records
        self.sent_bytes += block.size

    def stored(self) -> None:
        """Count everything that was sent, all blocks of which have their outcome, as a commit has stored it too."""
        if self._unbroken and self.records != self.sent:
            self.add(self.sent - self.records, self.sent_bytes - self._bytes, None)

    def _refused_behind(self, records: int, written: PendingWrite[tuple[WrittenEntry, ...]]) -> int:
        """Return how many records nothing was sent of, at the unbroken end, with one block more."""
        return self._refused + records if _is_refused(written) else 0

    def shown(self) -> None:
        """Report: readers see all of them."""
        self._report(True)

    def _report(self, due: bool) -> None:
        if self.line is not None:
            self.line.show(self.records, self._bytes, self._read_bytes, at_once=due)
            return
        due = due or time.monotonic() - self._said_at > _SAID_EVERY_S
        if self._progress and due and self.records != self._said_records:
            self._said_records, self._said_at = self.records, time.monotonic()
            self._echo(self._text())

    def say(self, more: str = "") -> None:
        """Say how it ended. Called when the writer has ended, and each block has its outcome."""
        self.said = True
        if self.line is not None:
            self.line.close()
        for block in self.pending:
            self._refused = self._refused_behind(block.records, block.written)
        self._echo(self._text() + self._doubt(self._refused) + more)

    def say_at_once(self) -> None:
        """Say how it ended, unless that was said, from the handler of a signal: standard error may be in use."""
        if not self.said:
            with suppress(OSError):
                refused = 0 if self.pending else self._refused
                erased = b"" if self.line is None else ERASED
                os.write(2, erased + f"{self._text()}{self._doubt(refused)}\n".encode())

    def _doubt(self, refused: int) -> str:
        doubtful = self.sent - self.records - refused
        parts: list[str] = []
        if doubtful:
            parts.append(
                f"the next {counted(doubtful, 'record')} may be in it or not: look before you write them again"
            )
        if refused:
            what = counted(refused, "record is", "records are")
            parts.append(f"the {'last' if doubtful else 'next'} {what} not in it: nothing of them was sent")
        return "".join(f"; {part}" for part in parts)

    def _text(self) -> str:
        where = f", the last one at {self.last}" if self.last is not None else ""
        return f"{counted(self.records, 'record')} {'is' if self.records == 1 else 'are'} in the log{where}"

    @staticmethod
    def _echo(text: str) -> None:
        with suppress(OSError):  # a user that closed standard error does not want to know
            typer.echo(text, err=True)


def _is_refused(written: PendingWrite[tuple[WrittenEntry, ...]]) -> bool:
    """Return whether it is certain that nothing of a block was sent; of one without an outcome nothing is."""
    try:
        if written.done():
            written.result()
    except (CallerError, NotAppliedError):
        # By these errors, and no others, the writer says that no byte of a block went to a storage node.
        return True
    except DistributedLogError:
        return False
    return False


class _Appending:
    """Appends what is read, in blocks."""

    def __init__(self, writer: LogWriter, done: _Done, flush_s: float) -> None:
        self._writer = writer
        self._done = done
        self._flush_s = flush_s
        self._source: InputBlocks | None = None
        self._parts: list[Taken] = []
        self._bytes = 0
        self._since = 0.0
        self._visible = True

    def run(self, source: InputBlocks, splitter: Splitter) -> CallerError | None:
        """Append everything up to the end of the input, or to what cannot be taken: then why.

        Raises DistributedLogError where the log takes no more.
        """
        self._source = source
        try:
            return self._run(source, splitter)
        except BaseException:
            with suppress(DistributedLogError):
                self._done.settle(len(self._done.pending))  # what was acknowledged before
            raise

    def _run(self, source: InputBlocks, splitter: Splitter) -> CallerError | None:
        refusal: CallerError | None = None
        try:
            while (data := source.read(None if self._visible and not self._parts else self._flush_s)) != b"":
                if data is None:
                    self._show()
                else:
                    self._take(splitter.feed(data))
            # A record that a signal has cut off is none: the rest of it may have been on its way.
            if source.signal is None:
                self._take(splitter.end())
        except CallerError as error:
            refusal = error
        try:
            self._send()  # what came before the record that cannot be taken
        except CallerError as error:
            refusal = error  # of an earlier record
        self._show()
        return refusal

    def _take(self, taken: Taken) -> None:
        """Take records over. Raises CallerError where one cannot be taken; those before it are."""
        count = len(taken.payloads)
        if count:
            if not self._parts:
                self._since = time.monotonic()
            self._parts.append(taken)
            self._bytes += taken.payloads.nbytes + count * _RECORD_BYTES
            if self._bytes >= _BLOCK_BYTES or time.monotonic() - self._since >= self._flush_s:
                self._send()
        if taken.refusal is not None:
            raise CallerError(f"{taken.refusal}; neither it nor anything behind it was written")

    def _send(self) -> None:
        """Give the writer what was read. Raises CallerError for ids that do not follow; those before them are sent."""
        if not self._parts:
            return
        import numpy as np
        import pyarrow as pa

        parts, self._parts, self._bytes = self._parts, [], 0
        payloads = pa.concat_arrays([one.payloads for one in parts])
        given = [one.txids for one in parts if one.txids is not None]
        txids = np.concatenate(given) if given else None
        for first in range(0, len(payloads), _BLOCK_RECORDS):
            block = payloads.slice(first, _BLOCK_RECORDS)
            if txids is not None:
                ids = txids[first : first + _BLOCK_RECORDS]
            else:
                # The clock may stand behind the log's last id, and ids never go back (I4).
                ids = np.full(len(block), max(time.time_ns() // 1_000_000, self._writer.last_txid), np.int64)
            # Before more is given to the writer: this bounds the memory of a copy that is faster than the disks.
            self._done.settle(_MAX_PENDING)
            self._write(ids, block)

    def _write(self, ids: npt.NDArray[np.int64], payloads: pa.Array) -> None:
        """Write one block, or parts of it: as much as the writer's limits let wait; only what is in order (I4)."""
        from dlspark.errors import OverCapacityError, TransactionIdOutOfOrderError

        last = self._writer.last_txid
        try:
            written = self._writer.write_batch(ids, payloads)
        except OverCapacityError:
            if self._visible and len(ids) == 1:
                raise
            self._show()
            # The limits may take in two writes, with nothing else under way, what they refuse as one.
            half = max(len(ids) // 2, 1)
            self._write(ids[:half], payloads[:half])
            if half < len(ids):
                self._write(ids[half:], payloads[half:])
        except TransactionIdOutOfOrderError as error:
            in_order = _in_order(ids, last)
            if in_order:
                self._write(ids[:in_order], payloads[:in_order])
            highest = max(last, int(ids[:in_order].max(initial=last)))
            raise CallerError(
                f"record {self._done.sent + 1:,} has the transaction id {ids[in_order]}, and there is {highest} before "
                "it; neither it nor anything behind it was written",
                advice="Leave out --keep-transaction-ids: the time is their id then",
            ) from error
        else:
            self._visible = False
            size = payload_bytes(payloads)
            read_bytes = self._source.read_bytes if self._source is not None else 0
            self._done.take(_Sent(len(ids), written, size, read_bytes))

    def _show(self) -> None:
        """Write everything that was read, wait until it is stored, and let readers see it."""
        self._send()
        if self._visible:
            return
        self._writer.commit()
        self._done.settle(0)
        self._done.stored()
        self._visible = True
        self._done.shown()


def _in_order(ids: npt.NDArray[np.int64], last: int) -> int:
    """Return how many of the first ids are in order, behind `last`."""
    import numpy as np

    # Each id against the highest before it, not its neighbour: 5, 3, 4 has two that are out of order.
    below = np.flatnonzero(ids < np.maximum.accumulate(np.concatenate(([last], ids[:-1]))))
    return int(below[0]) if len(below) else len(ids)


def read(
    name: NameArgument,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, a DLSN (3:1200:0), epoch milliseconds or an ISO-8601 time.")
    ] = _EARLIEST,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")] = False,
    form: Annotated[RecordOutput, typer.Option("--output", help="How records are printed.")] = RecordOutput.TABLE,
    delimiter: DelimiterOption = None,
    limit: Annotated[int | None, typer.Option("--limit", "-l", help="Stop after this many records.", min=1)] = None,
    as_hex: Annotated[bool, typer.Option("--hex", "-x", help="Payloads in hexadecimal.")] = False,
    skip_payload: Annotated[bool, typer.Option("--skip-payload", help="Records without their payloads.")] = False,
    progress: Annotated[
        bool,
        typer.Option("--progress/--no-progress", help="While a file is printed to: say how far it is, on a terminal."),
    ] = True,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Rows of the log's columns, these ones: a,b; also _log, _error.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Only rows for which it is true: price > 10 and item in ('a', 'b').")
    ] = None,
    uri: UriOption = None,
    conf: ConfOption = None,
    values: SetOption = None,
) -> None:
    """Print a log's records, from any position: for people, or as `write --input` takes them, byte for byte.

    With --columns or --where, rows of the columns that the log declares. Without --follow it ends where the log ended
    when it began, also while more is being written.
    """
    position = parse_start(start)
    if form in (RecordOutput.RAW, RecordOutput.LENGTH_PREFIXED) and (as_hex or skip_payload):
        raise CallerError(
            f"--output {form.value} prints payloads as they are", advice="Leave out --hex and --skip-payload"
        )
    if sys.stdout is None:
        raise CallerError("standard output is closed; nothing was read")
    if columns is not None or where is not None:
        if form not in (RecordOutput.TABLE, RecordOutput.JSON) or delimiter is not None or as_hex or skip_payload:
            raise CallerError(
                "--columns and --where print rows; nothing was read",
                advice="They go with --output table and json; leave out --delimiter, --hex and --skip-payload",
            )
        _read_rows(name, position, Wanted(columns, where, form is RecordOutput.JSON, limit, follow), uri, conf, values)
        return
    printer = RecordPrinter(sys.stdout.buffer, sys.stdout.encoding, form, delimiter)
    with (
        open_sync(uri, conf, values) as namespace,
        namespace.open_log(name) as log,
        log.open_reader(position) as reader,
    ):
        # Before the first record is read, so that records which come meanwhile are not followed for ever.
        end = None if follow else _end(log)
        batches = _batches(reader, follow=follow, limit=limit, end=end)
        with _progress_of(name) if progress else nullcontext() as line:
            for rows in _counted(batches, line):
                printer.print(rows, as_hex=as_hex, payload=not skip_payload)
                if follow:
                    sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()
    note = printer.note()
    if note is not None:
        typer.echo(f"dlspark: {note}", err=True)


def _read_rows(
    name: str, start: DLSN | int | str, wanted: Wanted, uri: str | None, conf: Path | None, values: list[str] | None
) -> None:
    """Print rows of the log's columns."""
    import asyncio

    # Here, because a loop that runs takes Ctrl-C for itself: it would wait for the end of the imports.
    import metadata.zookeeper.client  # noqa: F401

    async def run() -> None:
        at = At(namespace_uri(uri), settings_of(conf, values), Output.TEXT)
        async with at.open() as namespace, await namespace.open_log(name) as log:
            await print_rows(log, start, wanted)

    asyncio.run(run())


def _end(log: Log) -> DLSN | None:
    """Return where the log ends now: its own copy into it (`read a | write a`) would have no end else.

    None where its storage nodes do not say: the reader waits for them, and prints what is in older segments.
    """
    try:
        return log.end()
    except DistributedLogError:
        return None


def _batches(
    reader: LogReader, *, follow: bool, limit: int | None, end: DLSN | None
) -> Iterator[pa.RecordBatch | None]:
    """Yield everything up to `end`, or where that is not known to where nothing more is confirmed; with `follow` what
    comes, too, and None where nothing does for a while. A sealed log's end is an end like any other.
    """
    from dlspark.errors import EndOfStreamError

    left = limit
    with suppress(EndOfStreamError):
        while left is None or left > 0:
            rows = reader.batch_available(wait=True)
            if rows is None:
                if not follow:
                    return
                yield None
                continue
            # The end was fixed before the first read: records at it or behind came later.
            before = len(rows) if end is None else _count_before(rows, end)
            wanted = before if left is None else min(before, left)
            if wanted:
                yield rows.slice(0, wanted)
            if before < len(rows):
                return
            left = None if left is None else left - wanted


def _count_before(rows: pa.RecordBatch, end: DLSN) -> int:
    """Return how many of these records, which are in order and of one segment, lie before `end`."""
    import numpy as np

    from dlspark.core.codec.arrow_arrays import numbers_of

    lssn = rows.column("segment")[0].as_py()
    if lssn != end.lssn:
        return len(rows) if lssn < end.lssn else 0
    entry, slot = (numbers_of(rows.column(name)) for name in ("entry", "slot"))
    return int(np.count_nonzero((entry < end.entry_id) | ((entry == end.entry_id) & (slot < end.slot_id))))


def _counted(batches: Iterator[pa.RecordBatch | None], line: CopyProgress | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and say on a terminal how far they are; end where nothing reads the output any more."""
    records = size = 0
    for rows in batches:
        if rows is None:
            check_output()
            continue
        yield rows
        records, size = records + len(rows), size + payload_bytes(rows.column("value"))
        if line is not None:
            line.show(records, size)
    if line is not None:
        line.show(records, size, at_once=True)


@contextmanager
def _progress_of(name: str) -> Iterator[CopyProgress | None]:
    """Say on a terminal how far the printing to a file is; None for a pipe, whose reader may have the terminal for
    itself, as `less`."""
    if not is_watched() or sys.stdout.isatty() or stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        yield None
        return
    with closing(CopyProgress(name)) as line:
        yield line
