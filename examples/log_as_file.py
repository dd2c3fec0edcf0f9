"""A log as a file, whose writer is killed in the middle of a line. Needs a running cluster: see examples/README.md."""

import io
import os
import signal
import subprocess
import sys

import pandas as pd
from pyarrow import csv

from dlspark import Log, Namespace

LOG = "example-log-as-file"
FLUSHED = b"flight,minutes\nKL601,5\nAF3,71\n"


def write_and_die() -> None:
    """Write a table's first lines durably and half a line without a flush; then die as by `kill -9`."""
    # A dead process keeps the log's lock until its session ends: after 30 seconds, unless told otherwise.
    with Namespace.open(settings={"zkSessionTimeoutSeconds": 2}) as namespace, namespace.open_log(LOG) as log:
        file = log.open_append_stream()
        file.write(FLUSHED)
        file.flush()  # on the disks of two storage nodes, and visible to readers
        file.write(b"LH4")
        os.kill(os.getpid(), signal.SIGKILL)


def go_on(log: Log) -> None:
    """Go on behind the dead writer: what it flushed is there; of what it wrote after that, a beginning may be."""
    with log.open_append_stream() as file:
        file.write(b"LH400,13\n"[file.tell() - len(FLUSHED) :])  # what its half line lacks
        with io.TextIOWrapper(io.BufferedWriter(file)) as text:
            print("BA9,0\nIB6251,44", file=text)


def main() -> None:
    """Write the log with two processes, and read it as whatever takes a file."""
    with Namespace.open() as namespace:
        if namespace.log_exists(LOG):
            namespace.delete_log(LOG)
        namespace.create_log(LOG)
        with namespace.open_log(LOG) as log:
            with log.open_append_reader() as tail:  # reads nothing at the end, and later what has come, as `tail -f`
                print("the first writer ended with", subprocess.run([sys.executable, __file__, "die"]).returncode)
                begin = tail.read(len(FLUSHED))
                assert begin == FLUSHED
                go_on(log)
                print("the tail got", tail.readall())
            with log.open_append_reader() as raw, io.TextIOWrapper(io.BufferedReader(raw)) as lines:
                print("last line:", list(lines)[-1].rstrip())
            with log.open_append_reader() as raw:
                print(f"from byte {raw.seek(-3, io.SEEK_END)} on:", raw.read())
            with log.open_append_reader() as raw:
                flights = csv.read_csv(raw)
            with log.open_append_reader() as raw:
                assert pd.read_csv(raw).equals(flights.to_pandas())
            print("minutes by pyarrow and pandas:", sum(flights["minutes"].to_pylist()))
            assert flights["minutes"].to_pylist() == [5, 71, 13, 0, 44]


if __name__ == "__main__":
    write_and_die() if sys.argv[1:] == ["die"] else main()
