"""A writer process for the kill rounds: writes numbered records and prints how each one ended.

It writes until standard input ends. Lines on standard output:

    ok <number> <dlsn>          acknowledged
    failed <number> <error>     definitely not applied
    unknown <number> <error>    may or may not be in the log
    reopened <error>            the writer broke and a new one was opened

A number that is never mentioned is unknown as well: the process died first. A record is never written twice, whatever
became of it, so every record in the log that appears twice is the log's own doing.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.core.sync.writer import PendingWrite
from metadata.foundation.errors import DistributedLogError, OutcomeUnknownError

_T = TypeVar("_T")
OUTSTANDING = 64
PAUSE_S = 0.002
GIVE_UP_S = 60
SETTINGS = {
    "zkSessionTimeoutSeconds": 1,
    "lockTimeoutSeconds": 30,
    "periodicFlushFrequencyMilliSeconds": 5,
    "writerOutputBufferSize": 2048,
}


def payload_of(number: int) -> bytes:
    """Return a payload that tells its number and could not be another record's."""
    return b"record %d " % number + bytes((number * 7 + j) & 0xFF for j in range(20 + number % 300))


class Recorder:
    """Prints how writes end, from a thread that waits for one after the other."""

    def __init__(self) -> None:
        self._writes: queue.Queue[tuple[int, PendingWrite[DLSN]]] = queue.Queue(OUTSTANDING)
        threading.Thread(target=self._run, daemon=True).start()

    def watch(self, number: int, write: PendingWrite[DLSN]) -> None:
        self._writes.put((number, write))

    def _run(self) -> None:
        while True:
            number, write = self._writes.get()
            try:
                say(f"ok {number} {write.result(GIVE_UP_S)}")
            except DistributedLogError as error:
                self.refused(number, error)
            finally:
                self._writes.task_done()

    def refused(self, number: int, error: DistributedLogError) -> None:
        word = "unknown" if isinstance(error, OutcomeUnknownError) else "failed"
        say(f"{word} {number} {type(error).__name__}: {error}")

    def wait_for_all(self) -> None:
        self._writes.join()


def say(line: str) -> None:
    print(line.replace("\n", " "), flush=True)


def insist(what: Callable[[], _T]) -> _T:
    """Try until it works, however long ZooKeeper or the lock's former owner take (within GIVE_UP_S)."""
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return what()
        except DistributedLogError as error:
            if time.monotonic() > deadline:
                raise
            say(f"waiting {type(error).__name__}: {error}")
            time.sleep(0.1)


def write_until_told(log: Log, number: int, stop: threading.Event) -> None:
    recorder = Recorder()
    writer = insist(log.open_writer)
    while not stop.is_set():
        try:
            recorder.watch(number, writer.write(number, payload_of(number)))
            number += 1
            time.sleep(PAUSE_S)
        except DistributedLogError as error:
            recorder.refused(number, error)
            number += 1
            recorder.wait_for_all()
            try:
                writer.abort()
            except DistributedLogError as abort_error:
                say(f"abort {type(abort_error).__name__}: {abort_error}")
            writer = insist(log.open_writer)
            say(f"reopened {type(error).__name__}: {error}")
    recorder.wait_for_all()
    writer.close()


def run(name: str, uri: str, log: str, first: int) -> int:
    """Write records from number `first` on."""
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with insist(lambda: Namespace.open(uri, SETTINGS)) as namespace, namespace.open_log(log) as opened:
        write_until_told(opened, first, stop)
    say("done")
    return 0
