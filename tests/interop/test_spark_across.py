"""Flights between Spark and Java DistributedLog: Java reads what Spark's sink published, Spark what Java wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib

import pytest
from helpers.interop.clusters import InteropCluster
from helpers.interop.java_tool import make_payload
from helpers.interop.spark_job import JOB, first_flights
from helpers.paths import ROOT

from dlspark.sandbox.sandbox import Sandbox
from dlspark.testing.java_process import JavaTool

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FLIGHTS = 12_000
JOB_S = 400


def run_spark(*arguments: str) -> list[list[object]]:
    done = subprocess.run(
        [sys.executable, str(JOB), *arguments],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_flights_pass_between_spark_and_java(
    java: JavaTool, sandbox_beside_java: Sandbox, ours: InteropCluster
) -> None:
    namespace = java.call("dl.open", uri=sandbox_beside_java.uri)
    java.call("dl.create", namespace=namespace, log="from-java")
    writer = java.call("dl.writer", namespace=namespace, log="from-java")
    written = java.call("dl.write", writer=writer, txid=5000, count=300, size=40)
    java.call("dl.close_writer", writer=writer)

    read_by_spark = run_spark(sandbox_beside_java.uri, "flights", str(FLIGHTS), "from-java")
    assert read_by_spark == [
        [dlsn, 5000 + index, index, make_payload(0, index, 40).hex()] for index, dlsn in enumerate(written)
    ]

    read_by_java = java.call("dl.read", namespace=namespace, log="flights", count=FLIGHTS, timeout_ms=15_000)
    rows = sorted(first_flights(FLIGHTS))
    assert [(r["txid"], r["size"], r["crc32"]) for r in read_by_java] == [
        (txid, len(value.encode()), zlib.crc32(value.encode())) for txid, value in rows
    ]
    assert [r["sequence_id"] for r in read_by_java] == list(range(FLIGHTS))
    facts = java.call("dl.facts", namespace=namespace, log="flights")
    assert (facts["count"], facts["first_txid"], facts["last_txid"]) == (FLIGHTS, rows[0][0], rows[-1][0])
    segments = java.call("dl.segments", namespace=namespace, log="flights")
    assert [segment["in_progress"] for segment in segments] == [False] * len(segments)
    assert len(segments) == 3

    # and Java goes on writing where Spark left off
    writer = java.call("dl.writer", namespace=namespace, log="flights")
    more = java.call("dl.write", writer=writer, txid=rows[-1][0] + 1, count=5, size=10)
    java.call("dl.close_writer", writer=writer)
    assert more[0] == "4:0:0"
