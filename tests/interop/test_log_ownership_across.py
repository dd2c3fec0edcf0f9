"""Who owns a log, between the Java core and ours: locks, writers that were deposed, and what killed ones leave."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from helpers.interop.clusters import newest_version
from helpers.interop.log_sides import (
    FIRST_TXID,
    OWNERSHIP_FAILED,
    RECORD_BYTES,
    UNCACHED,
    BothErrors,
    JavaLog,
    JavaSide,
    OurSide,
    Pair,
    code_of,
    expected,
    our_log,
    owner_of,
    pair_of,
)
from helpers.paths import ROOT, TESTS

from dlspark.core.write_lock import default_client_id
from dlspark.testing.java_process import JavaError, JavaTool
from metadata.zookeeper.client import ZooKeeperStore

SHORT_SESSION = {"zkSessionTimeoutSeconds": 2}
PATIENT = {"lockTimeoutSeconds": 30}


def lock_members(zk: str, log: str) -> int:
    """How many hold or want the log's lock."""

    async def look() -> int:
        store = await ZooKeeperStore.connect(zk)
        try:
            return len((await store.children(f"/distributedlog/{log}/<default>/lock"))[0])
        finally:
            await store.close()

    return asyncio.run(look())


def test_whoever_is_refused_a_log_is_told_its_owner(plain_pair: Pair) -> None:
    pair = plain_pair
    writer = pair.writer.open_writer()
    dlsns = writer.write_numbered(0, 5)
    with pytest.raises(BothErrors) as refused:
        pair.reader.open_writer()
    assert code_of(refused.value) == OWNERSHIP_FAILED
    assert owner_of(refused.value) == (default_client_id() if isinstance(pair.writer, OurSide) else "java")
    dlsns += writer.write_numbered(5, 5)
    writer.close()
    dlsns += pair.reader.write(10, 5)
    assert pair.writer.read(15) == pair.reader.read(15) == expected(dlsns)


def test_whoever_waits_for_a_log_gets_it_when_the_other_closes(
    java: JavaTool, zk: str, uri: str, log_name: str, way: str
) -> None:
    with pair_of(java, uri, log_name, way, **PATIENT) as pair, ThreadPoolExecutor() as threads:
        writer = pair.writer.open_writer()
        dlsns = writer.write_numbered(0, 5)
        waiting = threads.submit(pair.reader.open_writer)
        while lock_members(zk, log_name) < 2:
            assert not waiting.done()
        dlsns += writer.write_numbered(5, 5)
        writer.close()
        try:
            heir = waiting.result(60)
        except JavaError:  # Java listed the segments before it had the lock: one was completed since, it has to retry
            heir = pair.reader.open_writer()
        dlsns += heir.write_numbered(10, 5)
        heir.close()
        assert pair.writer.read(15) == pair.reader.read(15) == expected(dlsns)


def test_a_writer_whose_log_the_other_has_fenced_gets_no_acknowledgement(
    java: JavaTool, uri: str, log_name: str, way: str
) -> None:
    """The heir takes no lock (`writeLockEnabled`), so that fencing alone decides."""
    with pair_of(java, uri, log_name, way) as pair:
        deposed = pair.writer.open_writer()
        dlsns = deposed.write_numbered(0, 5)
        with pair_of(java, uri, log_name, way, writeLockEnabled="false") as lockless:
            heir = lockless.reader.open_writer()
            dlsns += heir.write_numbered(5, 5)
            with pytest.raises(BothErrors):
                deposed.write([FIRST_TXID + 999])
            deposed.abort()
            dlsns += heir.write_numbered(10, 5)
            heir.close()
        assert pair.writer.read(15) == pair.reader.read(15) == expected(dlsns)
        assert [segment["count"] for segment in pair.reader.segments()] == [5, 10]
        assert pair.reader.segments() == pair.writer.segments()


def test_a_segment_left_in_progress_is_completed_by_the_other_without_a_record(plain_pair: Pair) -> None:
    writer = plain_pair.writer.open_writer()
    dlsns = writer.write_numbered(0, 25)
    writer.abort()
    if isinstance(plain_pair.reader, JavaSide):
        plain_pair.reader.log.call("recover")
    else:
        plain_pair.reader.open_writer().close()
    for side in (plain_pair.reader, plain_pair.writer):
        assert [(segment["in_progress"], segment["count"]) for segment in side.segments()] == [(False, 25)]
        assert side.read(25) == expected(dlsns)


# ---------------------------------------------------------------------- processes that stop or die

OUR_WRITER = """
import sys
sys.path[:0] = sys.argv[3:]
from dlspark.core.sync.namespace import Namespace
from helpers.interop.java_tool import make_payload
uri, name = sys.argv[1:3]

def write(first, number):
    futures = [writer.write(1000 + index, make_payload(0, index, 150)) for index in range(first, first + number)]
    writer.commit()
    return ",".join(str(future.result(30)) for future in futures)

with Namespace.open(uri, {"zkSessionTimeoutSeconds": 2}) as namespace:
    namespace.create_log(name)
    with namespace.open_log(name) as log, log.open_writer() as writer:
        print(write(0, 120), flush=True)
        if sys.stdin.readline() == "write on\\n":
            try:
                print(write(120, 1), flush=True)
            except Exception as error:
                print(type(error).__name__, flush=True)
            sys.stdin.read()
        index = 120
        while True:
            writer.write(1000 + index, make_payload(0, index, 150))
            index += 1
"""


@contextmanager
def our_writer(uri: str, log: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours that has written 120 records, and goes on when told."""
    path = [str(ROOT), str(TESTS)]
    with subprocess.Popen(
        [sys.executable, "-c", OUR_WRITER, uri, log, *path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def our_killed_writer(uri: str, log: str) -> list[str]:
    with our_writer(uri, log) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        dlsns = process.stdout.readline().strip().split(",")
        process.stdin.write("go on without an end\n")
        process.stdin.flush()
        return dlsns


def java_killed_writer(victim: JavaTool, uri: str, log: str) -> list[str]:
    dying = JavaLog(victim, uri, log, **SHORT_SESSION)
    dying.call("create")
    writer = dying.call("writer")
    dlsns: list[str] = dying.call("write", writer=writer, txid=FIRST_TXID, count=120, size=RECORD_BYTES)
    victim.submit("dl.write", writer=writer, txid=FIRST_TXID + 120, first=120, count=50_000, size=RECORD_BYTES)
    victim.kill()
    return dlsns


def heir_goes_on(acknowledged: list[str], log: str, uri: str, java: JavaTool, heir: str) -> None:
    """What was acknowledged is there, then perhaps more of what was under way, then what the heir writes."""
    javas = JavaSide(JavaLog(java, uri, log, **UNCACHED, lockTimeoutSeconds=30))
    with our_log(uri, log, **PATIENT) as opened:
        ours = OurSide(opened)
        side, other = (ours, javas) if heir == "ours" else (javas, ours)
        writer = side.open_writer()  # the dead session's lock goes when it expires
        kept = side.segments()[0]["count"]
        assert kept >= 120
        written = writer.write_numbered(kept, 80)
        writer.close()
        records = side.read(kept + 80)
        assert other.read(kept + 80) == records
        dlsns = acknowledged + [record["dlsn"] for record in records[120:kept]] + written
        assert records == expected(dlsns)
        assert [segment["count"] for segment in side.segments()] == [kept, 80]
        assert ours.segments() == javas.segments()


@newest_version
def test_we_recover_and_continue_the_log_of_a_killed_java_writer(
    java: JavaTool, victim: JavaTool, uri: str, log_name: str
) -> None:
    heir_goes_on(java_killed_writer(victim, uri, log_name), log_name, uri, java, "ours")


@newest_version
def test_java_recovers_and_continues_the_log_of_our_killed_writer(
    java: JavaTool, uri: str, log_name: str, version: str
) -> None:
    heir_goes_on(our_killed_writer(uri, log_name), log_name, uri, java, "Java")


def test_a_java_writer_that_was_stopped_meanwhile_is_refused_once_we_own_its_log(
    java: JavaTool, victim: JavaTool, uri: str, log_name: str
) -> None:
    stopped = JavaLog(victim, uri, log_name, **SHORT_SESSION)
    stopped.call("create")
    writer = stopped.call("writer")
    dlsns = stopped.call("write", writer=writer, txid=FIRST_TXID, count=120, size=RECORD_BYTES)

    def go_on() -> None:
        with pytest.raises(BothErrors):
            stopped.call("write", writer=writer, txid=FIRST_TXID + 120, first=120, count=1, size=RECORD_BYTES)

    with our_log(uri, log_name, **PATIENT) as log:
        deposed(victim.pid, OurSide(log), dlsns, go_on)
        javas = JavaSide(JavaLog(java, uri, log_name, **UNCACHED))
        assert javas.read(160) == OurSide(log).read(160)


def test_our_writer_that_was_stopped_meanwhile_is_refused_once_java_owns_its_log(
    java: JavaTool, uri: str, log_name: str
) -> None:
    with our_writer(uri, log_name) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        dlsns = stdout.readline().strip().split(",")

        def go_on() -> None:
            stdin.write("write on\n")
            stdin.flush()
            assert stdout.readline().strip() in ("WriterDeposedError", "TransmitError", "OwnershipAcquireFailedError")

        heir = JavaSide(JavaLog(java, uri, log_name, **UNCACHED, **PATIENT))
        deposed(process.pid, heir, dlsns, go_on)
        with our_log(uri, log_name) as log:
            assert OurSide(log).read(160) == heir.read(160)


def deposed(pid: int, heir: OurSide | JavaSide, dlsns: list[str], go_on: Callable[[], None]) -> None:
    """Stop the owner's process until its session is over and the heir writes; then `go_on` has it try to write."""
    os.kill(pid, signal.SIGSTOP)
    try:
        writer = heir.open_writer()
        dlsns = dlsns + writer.write_numbered(120, 20)
    finally:
        os.kill(pid, signal.SIGCONT)
    go_on()
    dlsns += writer.write_numbered(140, 20)
    writer.close()
    assert heir.read(160) == expected(dlsns)
    assert [segment["count"] for segment in heir.segments()] == [120, 40]
