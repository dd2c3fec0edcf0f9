"""Every program of examples/ runs against one sandbox, as its README says; each begins its log anew."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest
from helpers.paths import ROOT

from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session
from storage_node.client.client import LedgerClient

EXAMPLES = ROOT / "examples"
MAX_LINES = 108
SAID = {
    "batch.py": (
        "1,000 records in 2 segments",
        '2023-11-14 22:13:21|{"order":1,"customer":1}',
        "10 records of the last ten seconds",
        "customers: 7",
    ),
    "stream.py": ("rows of the batches: [1000, 1000, 1000]", "readings counted: 3000"),
    "exactly_once.py": ("3,000 records\n", "3,000 records after batch 2 was run again"),
    "rewind.py": (
        "March begins at 2:0:29: 2024-03-01",
        "64 records from there on",
        "Spark reads 64 records, beginning with 2024-03-01",
        "31 of them in March",
    ),
    "sql.py": ("|   800|", "|order 799|", "|      2|completed|    250|     2:0:0|  2:0:249|", "|   500|"),
    "async_io.py": ("stored from 1:0:0 to 1:", "one reader has read 2,000", "another reader has read 2,000"),
    "consumer_group.py": (
        "all are at work, on the partitions of",
        "bob was killed, and the partitions are those of ['",
        "tasks in each partition, and each was done once: {",
    ),
    "log_as_file.py": (
        "the first writer ended with -9",
        "the tail got b'LH400,13\\nBA9,0\\nIB6251,44\\n'",
        "from byte 52 on: b'44\\n'",
        "minutes by pyarrow and pandas: 133",
    ),
    "state_machine.py": (
        " leads, and is killed behind command 150: -9",
        "one has applied all before ",
        " of 300 commands",
    ),
    "map_reduce.py": (
        "4 mappers, one a segment; 1 was killed, and its part done again",
        "36,000 words, as counted without Spark: True",
    ),
    "metrics.py": ("read: 500", 'log_writer_write_count{success="true"} 500.0'),
    "pulsar_ledgers.py": ("4 nodes below /ledgers", "0 topic(s) of brokers"),
}
"""What each program prints, among other lines."""

ALONE = {"read_cold_file.py"}
"""Programs without a cluster: tests/core/cold/files/test_read_cold_file.py runs this one."""

AGAIN = ("async_io.py", "metrics.py")
"""Programs that are run a second time; the others begin their logs the same way."""


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    with Sandbox(tmp_path_factory.mktemp("examples") / "sandbox") as sandbox:
        yield sandbox.uri


def run(name, uri, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"DLSPARK_URI": uri, "TZ": "UTC"}
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout


def test_all_examples_are_tested_named_and_short():
    programs = {path.name: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert set(programs) == set(SAID) | ALONE
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\| \[(\w+\.py)\]\(\1\)", page)) == set(SAID) | ALONE
    for name, text in programs.items():
        assert len(text.splitlines()) <= MAX_LINES, name
        # A program's own folder comes first where modules are looked for.
        assert name.removesuffix(".py") not in sys.stdlib_module_names


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(560)
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(uri, name):
    for _ in range(2 if name in AGAIN else 1):
        said = run(name, uri)
        for line in SAID[name]:
            assert line in said


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_what_a_broker_stored_is_listed_topic_by_topic(uri, tmp_path):
    """Ledgers as a broker makes them (its own run on our nodes: tests/interop/test_pulsar.py); one is still written."""

    async def store() -> tuple[int, int]:
        connected = await open_session(uri.split("/")[2], SecuritySettings())
        client = LedgerClient(LedgerStore(connected), BookieRegistry(connected))
        custom = {
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"public/default/persistent/orders",
        }
        made = []
        for entries in (5, 3):
            writer = await client.create(
                ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, custom=custom
            )
            for number in range(entries):
                await writer.add(b"%03d" % number)
            made.append(writer)
            if entries == 5:
                await writer.close()
        said = await asyncio.to_thread(run, "pulsar_ledgers.py", uri)
        await made[1].add(b"it was not fenced")
        await made[1].close()
        await client.close()
        await connected.close()
        lines = said.splitlines()
        at = lines.index("public/default/persistent/orders")
        assert "1 topic(s) of brokers" in lines
        assert lines[at + 1].startswith(f"  ledger {made[0].ledger_id}: 5 entries, 15 bytes, on 127.0.0.1:")
        # What is not yet known to be confirmed by a later entry is not read from a ledger that is being written.
        assert re.match(rf"  ledger {made[1].ledger_id}: [23] entries, [69] bytes, on 127", lines[at + 2])

    asyncio.run(store())
