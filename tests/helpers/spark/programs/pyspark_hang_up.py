"""A worker module of Spark's daemon: Spark hangs up while it works at its command. For test_plain_errors."""

from __future__ import annotations

import importlib
import os
from typing import BinaryIO

from pyspark.serializers import read_int


def main(infile: BinaryIO, outfile: BinaryIO) -> None:
    importlib.import_module(os.environ["OF_OURS"])  # as unpickling does
    outfile.write(b"at work")
    outfile.flush()
    if os.environ["AT_WORK"] == "reading":
        read_int(infile)  # type: ignore[no-untyped-call]  # is there more to do?
    assert infile.read() == b"", "Spark hangs up"
    outfile.write(b"what nobody waits for")
