"""`dlspark write` and `read` in pipes: whatever ends the input, what was read is in the log; and what is said is so."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

import pyarrow as pa
import pytest
import typer

from dlspark.cli import pipes
from dlspark.cli.main import plain_errors
from dlspark.cli.record_forms import RecordInput, RecordOutput
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_PAYLOAD_BYTES
from dlspark.core.sync.namespace import Namespace
from dlspark.core.sync.writer import PendingWrite
from dlspark.core.writing.acknowledgements import WrittenEntry
from dlspark.errors import TransmitError, WriteCancelledError, WriteError
from dlspark.sandbox.sandbox import Sandbox

COMMAND = [sys.executable, "-m", "dlspark.cli"]
SAID = re.compile(rb"(\d[\d,]*) records? (?:is|are) in the log")
Done: TypeAlias = "tuple[int, str]"
"""Exit status and standard error."""

pytestmark = pytest.mark.processes


@pytest.fixture
def write(
    cli_sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Callable[..., Done]:
    """`dlspark write` in this process, with a file as its standard input."""

    def run(name: str, stdin: bytes, **options: object) -> Done:
        path = tmp_path / "stdin"
        path.write_bytes(stdin)
        with path.open() as file, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", file)
            status = _status(lambda: plain_errors(pipes.write)(name, uri=cli_sandbox.uri, **options))  # type: ignore[arg-type]
        return status, capfdbinary.readouterr().err.decode()

    return run


@pytest.fixture
def read(cli_sandbox: Sandbox, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., tuple[int, bytes, bytes]]:
    """`dlspark read` in this process."""

    def run(name: str, **options: object) -> tuple[int, bytes, bytes]:
        status = _status(lambda: plain_errors(pipes.read)(name, uri=cli_sandbox.uri, **options))  # type: ignore[arg-type]
        return status, *capfdbinary.readouterr()

    return run


def _status(command: Callable[[], None]) -> int:
    try:
        command()
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def environment(cli_sandbox: Sandbox, **more: str) -> dict[str, str]:
    return {**os.environ, "DLSPARK_URI": cli_sandbox.uri, **more}


def said(process: subprocess.Popen[bytes]) -> int:
    """The number of the next line on standard error that says how much is in the log."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if found := SAID.match(line):
            return int(found[1].replace(b",", b""))
    raise AssertionError("it ended without saying what is in the log")


def payloads(cli_sandbox: Sandbox, name: str) -> list[bytes]:
    with Namespace.open(cli_sandbox.uri) as namespace, namespace.open_log(name) as log, log.open_reader() as reader:
        found: list[bytes] = []
        while records := reader.read_bulk(100_000):
            found += [bytes(record.payload) for record in records]
        return found


def test_bytes_come_back_as_they_went_in(
    cli_sandbox: Sandbox, write: Callable[..., Done], read: Callable[..., tuple[int, bytes, bytes]]
) -> None:
    lines = [b"a\r", b"", b"\0\xff", b"caf\xc3\xa9", b"last"]
    assert write("bytes", b"\n".join(lines)) == (0, "5 records are in the log, the last one at 1:0:4\n")
    assert payloads(cli_sandbox, "bytes") == lines
    assert read("bytes", form=RecordOutput.RAW) == (0, b"\n".join(lines) + b"\n", b"")


@pytest.mark.parametrize(
    ("out", "into"),
    [
        ({"form": RecordOutput.JSON}, {"form": RecordInput.JSON, "keep_txids": True}),
        ({"form": RecordOutput.JSON, "as_hex": True}, {"form": RecordInput.JSON}),
        ({"form": RecordOutput.LENGTH_PREFIXED}, {"form": RecordInput.LENGTH_PREFIXED}),
        ({"form": RecordOutput.RAW, "delimiter": r"\x1f\0"}, {"delimiter": r"\x1f\0"}),
    ],
    ids=["json", "hex", "length-prefixed", "delimiter"],
)
def test_a_log_goes_through_a_pipe_into_another(
    cli_sandbox: Sandbox,
    request: pytest.FixtureRequest,
    write: Callable[..., Done],
    read: Callable[..., tuple[int, bytes, bytes]],
    out: dict[str, object],
    into: dict[str, object],
) -> None:
    source, target = (f"{which}-{request.node.callspec.id}" for which in ("from", "to"))
    records = [b"a\nb", b"c\r\n", b"", b"\0\xfe", "zwölf".encode(), *(b"%d" % number for number in range(5))]
    with Namespace.open(cli_sandbox.uri) as namespace, namespace.open_log(source) as log, log.open_writer() as writer:
        for number, payload in enumerate(records):
            writer.write(100 + number // 2, payload)
    status, printed, note = read(source, **out)
    assert (status, note) == (0, b"")
    assert write(target, printed, **into) == (0, "10 records are in the log, the last one at 1:0:9\n")
    assert payloads(cli_sandbox, target) == records
    if "keep_txids" in into:
        again = read(target, form=RecordOutput.JSON)[1]
        assert [json.loads(line)["transaction_id"] for line in again.splitlines()] == [100 + n // 2 for n in range(10)]


def test_a_log_can_be_read_while_it_grows_and_copied_into_itself(
    cli_sandbox: Sandbox, read: Callable[..., tuple[int, bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Namespace.open(cli_sandbox.uri) as namespace, namespace.open_log("itself") as log, log.open_writer() as writer:
        for txid, payload in enumerate([b"a", b"b", b"c"]):
            writer.write(txid, payload)
        writer.commit()
        prints = pipes.RecordPrinter.print

        def print_and_append(printer: pipes.RecordPrinter, rows: pa.RecordBatch, **how: bool) -> None:
            prints(printer, rows, **how)
            for payload in rows.column("value").to_pylist():
                writer.write(writer.last_txid + 1, payload)
            writer.commit()

        monkeypatch.setattr(pipes.RecordPrinter, "print", print_and_append)
        assert read("itself", form=RecordOutput.RAW) == (0, b"a\nb\nc\n", b"")
    assert payloads(cli_sandbox, "itself") == [b"a", b"b", b"c"] * 2


def test_raw_output_says_that_lines_are_not_records(
    cli_sandbox: Sandbox, read: Callable[..., tuple[int, bytes, bytes]]
) -> None:
    with (
        Namespace.open(cli_sandbox.uri) as namespace,
        namespace.open_log("raw-lines") as log,
        log.open_writer() as writer,
    ):
        writer.write(1, b"a\nb")
        writer.write(2, b"c")
    status, printed, note = read("raw-lines", form=RecordOutput.RAW)
    assert (printed, status) == (b"a\nb\nc\n", 0)
    assert b"1 record holds the delimiter" in note


def test_a_line_that_is_too_long_takes_none_of_those_before_it_along(
    cli_sandbox: Sandbox, write: Callable[..., Done]
) -> None:
    status, said = write("long", b"a\nb\n" + b"x" * (MAX_PAYLOAD_BYTES + 1) + b"\nc\n")
    assert status == 1
    assert said.startswith("2 records are in the log, the last one at 1:0:1\ndlspark: line 3 ")
    assert payloads(cli_sandbox, "long") == [b"a", b"b"]


def test_ids_that_go_back_end_the_input_behind_those_that_do_not(
    cli_sandbox: Sandbox, write: Callable[..., Done]
) -> None:
    objects = [{"value": str(number), "transaction_id": txid} for number, txid in enumerate([5, 5, 7, 6, 8])]
    data = b"".join(json.dumps(one).encode() + b"\n" for one in objects) + b"bad"
    status, said = write("ids", data, form=RecordInput.JSON, keep_txids=True)
    assert status == 1
    assert said.startswith("3 records are in the log, the last one at 1:0:2\n")
    assert "record 4 has the transaction id 6, and there is 7 before it" in said
    status, said = write("ids", data, form=RecordInput.JSON, keep_txids=True)
    assert said.startswith("0 records are in the log\n")
    assert "record 1 has the transaction id 5, and there is 7 before it" in said
    assert payloads(cli_sandbox, "ids") == [b"0", b"1", b"2"]


def test_limits_of_what_may_wait_hold_the_input_up_and_refuse_nothing(
    cli_sandbox: Sandbox, write: Callable[..., Done]
) -> None:
    lines = [b"%d" % number for number in range(3_000)]
    assert write("limited", b"\n".join(lines), values=["perWriterOutstandingWriteLimit=1000"])[0] == 0
    assert payloads(cli_sandbox, "limited") == lines


def test_without_durable_writes_only_what_was_stored_is_said_to_be_there(
    cli_sandbox: Sandbox, write: Callable[..., Done]
) -> None:
    options = {"values": ["isDurableWriteEnabled=false"]}
    assert write("volatile", b"a\nb\n", **options) == (0, "2 records are in the log\n")
    assert payloads(cli_sandbox, "volatile") == [b"a", b"b"]


def test_what_was_never_sent_is_said_to_be_in_no_log(cli_sandbox: Sandbox, write: Callable[..., Done]) -> None:
    quorums = ["bkcEnsembleSize=9", "bkcWriteQuorumSize=3", "bkcAckQuorumSize=2"]
    status, said = write("nowhere", b"a\nb\n", values=quorums)
    assert status == 1
    counts, why, *more = said.splitlines()
    assert counts == "0 records are in the log; the next 2 records are not in it: nothing of them was sent"
    assert (why.startswith("dlspark: The writer has failed: "), more) == (True, [])
    assert payloads(cli_sandbox, "nowhere") == []


def test_only_what_is_certain_is_said_of_blocks_that_are_not_acknowledged(capsys: pytest.CaptureFixture[str]) -> None:
    def block(outcome: object) -> PendingWrite[tuple[WrittenEntry, ...]]:
        future: concurrent.futures.Future[tuple[WrittenEntry, ...]] = concurrent.futures.Future()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif outcome is not None and not callable(outcome):
            future.set_result((WrittenEntry(DLSN(1, 0, 0), 5, 1, 1),))
        return PendingWrite(SimpleNamespace(send=outcome), future)  # type: ignore[arg-type]

    def send_fails() -> None:
        raise WriteError("x")

    in_doubt = "records may be in it or not: look before you write them again"
    for outcomes, text in (
        ([TransmitError("x")], "; the next 5 records may be in it or not: look before you write them again"),
        ([None], "; the next 5 records may be in it or not: look before you write them again"),
        ([WriteCancelledError("x"), WriteError("x")], "; the next 10 records are not in it: nothing of them was sent"),
        (
            [TransmitError("x"), WriteError("x")],
            "; the next 5 records may be in it or not: look before you write them again"
            "; the last 5 records are not in it: nothing of them was sent",
        ),
        # A new segment may take what follows a block that was refused, or that is in doubt.
        ([WriteError("x"), "stored"], f"; the next 10 {in_doubt}"),
        ([TransmitError("x"), "stored", None], f"; the next 15 {in_doubt}"),
        ([WriteError("x"), TransmitError("x")], f"; the next 10 {in_doubt}"),
        (
            [WriteError("x"), "stored", WriteError("x"), WriteError("x")],
            f"; the next 10 {in_doubt}; the last 10 records are not in it: nothing of them was sent",
        ),
        # What was to be sent along with a block, and could not be, says nothing of that block.
        ([send_fails], f"; the next 5 {in_doubt}"),
    ):
        for failures in (1, 2):  # that are seen before the end
            done = pipes._Done(False)
            for one in ("stored", *outcomes):
                done.take(pipes._Sent(5, block(one)))
            for _ in range(failures):
                with suppress(WriteError, TransmitError):
                    done.settle(0 if send_fails in outcomes else len(done.pending))
            if not done.pending:
                done.stored()
            done.say()
            assert capsys.readouterr().err == f"5 records are in the log, the last one at 1:0:4{text}\n"


def test_a_sealed_log_takes_nothing_and_that_is_said(cli_sandbox: Sandbox, write: Callable[..., Done]) -> None:
    with Namespace.open(cli_sandbox.uri) as namespace, namespace.open_log("sealed") as log, log.open_writer() as writer:
        writer.mark_end_of_stream()
    status, said = write("sealed", b"a\n")
    assert status == 1
    assert said.startswith("0 records are in the log\n")
    assert "the log is sealed" in said


def test_what_was_read_is_visible_while_the_input_idles_and_a_signal_loses_nothing(cli_sandbox: Sandbox) -> None:
    with subprocess.Popen(
        [*COMMAND, "write", "idle", "--progress"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cli_sandbox),
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert said(process) == 1
        assert payloads(cli_sandbox, "idle") == [b"one"]
        process.stdin.write(b"typed one\ntyped two\nunfini")
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        *_, last = process.stderr
        assert process.wait(60) == 128 + signal.SIGINT
    assert last.startswith(b"3 records are in the log, the last one at 1:")
    assert b"6 bytes of an unfinished line were not written" in last
    assert payloads(cli_sandbox, "idle") == [b"one", b"typed one", b"typed two"]


def on_a_terminal(cli_sandbox: Sandbox, arguments: list[str], stdin: Path, stdout: Path | None = None) -> bytes:
    """What a command that reads a file shows on its terminal, in whose foreground it runs."""
    pid, terminal = pty.fork()
    if not pid:
        os.dup2(os.open(stdin, os.O_RDONLY), 0)
        if stdout is not None:
            os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
        os.execve(sys.executable, [*COMMAND, *arguments], environment(cli_sandbox, TERM="xterm", COLUMNS="120"))
    shown = b""
    with suppress(OSError):  # EIO: nothing has the terminal open any more
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, shown
    return shown


def test_a_terminal_shows_how_far_a_copy_is_until_it_ends(cli_sandbox: Sandbox, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\nthree\n")
    shown = on_a_terminal(cli_sandbox, ["write", "watched"], lines)
    assert b"watched: 3 records, 11 B, " in shown
    assert b"100%" in shown
    assert shown.endswith(b"\x1b[2K3 records are in the log, the last one at 1:0:2\r\n")
    assert on_a_terminal(cli_sandbox, ["write", "watched", "--no-progress"], lines).startswith(b"3 records are in the")
    shown = on_a_terminal(cli_sandbox, ["read", "watched", "--output", "raw"], Path(os.devnull), tmp_path / "out")
    assert b"watched: 6 records, 22 B, " in shown
    assert (tmp_path / "out").read_bytes() == 2 * lines.read_bytes()


def test_what_was_said_to_be_in_the_log_survives_a_kill(
    cli_sandbox: Sandbox, tmp_path: Path, write: Callable[..., Done]
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"%099d\n" % number for number in range(100_000)))
    with (
        lines.open("rb") as source,
        subprocess.Popen(
            [*COMMAND, "write", "killed", "--progress", "--set", "zkSessionTimeoutSeconds=4"],
            stdin=source,
            stderr=subprocess.PIPE,
            env=environment(cli_sandbox),
        ) as process,
    ):
        there = said(process)
        process.kill()
    assert there > 0
    # The next owner recovers what the dead one left.
    assert write("killed", b"after\n")[0] == 0
    found = payloads(cli_sandbox, "killed")
    assert len(found) > there
    assert found[:-1] == [b"%099d" % number for number in range(len(found) - 1)]


def test_output_that_cannot_be_written_is_a_plain_error(cli_sandbox: Sandbox) -> None:
    for arguments in (("--help",), ("log", "list")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, env=environment(cli_sandbox), timeout=60
            )
        assert done.returncode == 1
        assert done.stderr == b"dlspark: the output cannot be written: No space left on device\n"


def test_a_terminal_without_unicode_gets_escapes(cli_sandbox: Sandbox, write: Callable[..., Done]) -> None:
    assert write("zwölf-€", "zwölf €\n".encode())[0] == 0
    for arguments in (("read", "zwölf-€"), ("log", "list"), ("log", "tail", "zwölf-€", "--no-follow")):
        done = subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            env=environment(cli_sandbox, PYTHONIOENCODING="latin-1", PYTHONUTF8="0"),
            timeout=60,
        )
        assert (done.returncode, b"\\u20ac" in done.stdout) == (0, True), done.stderr


def test_standard_input_that_is_closed_is_a_plain_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert _status(lambda: plain_errors(pipes.write)("any")) == 1
    assert "standard input is closed" in capsys.readouterr().err


def test_a_folder_is_said_to_be_one(cli_sandbox: Sandbox, read: Callable[..., tuple[int, bytes, bytes]]) -> None:
    with Namespace.open(cli_sandbox.uri) as namespace:
        namespace.create_log("folder/a")
    status, _, said = read("folder")
    assert status == 1
    assert b"that is a folder of 1 name, and not a log itself" in said
    assert b"folder/a" in said


@pytest.mark.parametrize("arguments", [("read", "followed", "--follow"), ("log", "tail", "followed")])
def test_who_follows_ends_when_nobody_reads_any_more(
    cli_sandbox: Sandbox, write: Callable[..., Done], arguments: tuple[str, ...]
) -> None:
    write("followed", b"a\n")
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, env=environment(cli_sandbox)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().rstrip().endswith(b"a")
        process.stdout.close()
        assert process.wait(60) == 0
