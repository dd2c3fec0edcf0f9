"""The system calls of real storage nodes: no answer to an add leaves before the sync of what it acknowledges (I1).

Nothing of ours says in which order things happen here: `strace` sees what the nodes' processes ask of the kernel.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_add_response
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse
from storage_node.settings.client import ClientSettings

NODES = 3
TRACED = "pwrite64,pwritev,pwritev2,fdatasync,fsync,sendmsg,sendto"
_LINE = re.compile(r"^(\d+) +(\d+\.\d+) (.*)$")
_BEGUN = re.compile(r"^(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$")
_CALL = re.compile(r"^(\w+)\((\d+)<(.+?)>[,)].* = (-?\d+)[^<]*<(\d+\.\d+)>$")
_BYTES = re.compile(r'(?:iov_base=|, )"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True, slots=True)
class Called:
    """A system call: when it began and ended (seconds), on what, with which bytes."""

    name: str
    file: str
    begun: float
    ended: float
    result: int
    data: bytes


def calls_in(lines: Sequence[str]) -> Iterator[Called]:
    """Yield the calls that `strace -f -ttt -T -yy -xx` wrote, in the order in which they ended."""
    halves: dict[str, tuple[float, str]] = {}
    for line in lines:
        found = _LINE.match(line.rstrip("\n"))
        if found is None:
            continue
        thread, at, text = found[1], float(found[2]), found[3]
        if (begun := _BEGUN.match(text)) is not None:
            halves[thread] = at, begun[1]
            continue
        if (resumed := _RESUMED.match(text)) is not None:
            at, first = halves.pop(thread, (at, f"{resumed[1]}(?"))
            text = first + resumed[2]
        call = _CALL.match(text)
        if call is not None:
            data, file = bytes.fromhex("".join(_BYTES.findall(text)).replace("\\x", "")), call[3]
            if file.startswith("\\x"):
                file = bytes.fromhex(file.replace("\\x", "")).decode()
            yield Called(call[1], file, at, at + float(call[5]), int(call[4]), data)


def acknowledged(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the ledger and entry ids of the EOK answers to adds among these frames."""
    at = 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        response = decode_response(memoryview(data)[at + 4 : at + 4 + length])
        if isinstance(response, AddResponse) and response.status is Status.EOK:
            yield response.ledger_id, response.entry_id
        at += 4 + length


def check_order(calls: Sequence[Called], tokens: dict[tuple[int, int], bytes], port: int) -> tuple[int, int]:
    """Assert that every answer follows a sync that follows the write of its entry. Return how many answers there were
    and how many syncs.
    """
    written: dict[bytes, Called] = {}
    syncs: list[Called] = []
    answers = 0
    journal = [call for call in calls if "/journal-" in call.file]
    for call in journal:
        if call.name in ("fdatasync", "fsync"):
            assert call.result == 0
            syncs.append(call)
    wanted = dict.fromkeys(tokens.values())
    for call in journal:
        if call.name.startswith("pwrite"):
            for token in [token for token in wanted if token in call.data]:
                written[token] = call
                del wanted[token]
    for call in calls:
        if call.name not in ("sendmsg", "sendto") or f":{port}->" not in call.file or call.result <= 0:
            continue
        for ids in acknowledged(call.data[: call.result]):
            write = written[tokens[ids]]
            sync = next(one for one in syncs if one.file == write.file and one.begun >= write.ended)
            assert sync.ended <= call.begun, f"entry {ids} was answered at {call.begun}, synced at {sync.ended} (I1)"
            answers += 1
    return answers, len(syncs)


@contextmanager
def traced(pid: int | None, output: Path) -> Iterator[None]:
    """Trace a process."""
    command = ["strace", "-f", "-ttt", "-T", "-yy", "-xx", "-s", "1000000", "-e", f"trace={TRACED}", "-o", str(output)]
    process = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace cannot look at a process here: {said.strip()}")
        yield
    finally:
        process.terminate()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


async def append(writer: LedgerWriter, tokens: dict[tuple[int, int], bytes], depth: int, count: int, size: int) -> None:
    """Append entries that are known by their first bytes, `depth` of them at a time."""
    for first in range(0, count, depth):
        adds = []
        for number in range(first, min(first + depth, count)):
            token = b"entry %012d of %08d" % (len(tokens), writer.ledger_id)
            tokens[writer.ledger_id, number] = token
            adds.append(writer.add(token.ljust(size, b".")))
        await asyncio.gather(*adds)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_no_answer_leaves_before_its_sync(tmp_path: Path, rounds: int | None) -> None:
    """One at a time (the loop commits), many at a time (threads do), and both sizes of batches."""
    count = 60 * (rounds or 1)
    tokens: dict[tuple[int, int], bytes] = {}
    with Sandbox(tmp_path / "cluster", nodes=NODES) as sandbox:
        store = await ZooKeeperStore.connect(sandbox.zookeeper_address)
        registry = BookieRegistry(store, LEDGERS_PATH)
        client = LedgerClient(LedgerStore(store, LEDGERS_PATH), registry, settings=ClientSettings())
        outputs = [tmp_path / f"node-{index}.trace" for index in range(NODES)]
        with ExitStack() as traces:
            for index, output in enumerate(outputs):
                traces.enter_context(traced(sandbox.node_pid(index), output))
            for depth, size in ((1, 100), (40, 100), (8, 20_000)):
                writer = await client.create(ensemble_size=NODES, write_quorum=NODES, ack_quorum=2)
                await append(writer, tokens, depth, count, size)
                await writer.close()
        ports = [address.port for address in await registry.writable()]
        await client.close()
        await store.close()
    answered = 0
    for output in outputs:
        calls = list(calls_in(output.read_text().splitlines()))
        by_port = [check_order(calls, tokens, port) for port in ports]
        answers, syncs = max(by_port)
        assert syncs > 0
        answered += answers
    assert answered >= 2 * len(tokens), "each entry is acknowledged by two nodes at least"


@pytest.mark.parametrize(
    ("sync_begun", "sync_ended", "right"), [(2.0, 3.0, True), (2.0, 3.6, False), (0.5, 3.0, False)]
)
def test_an_early_answer_would_be_noticed(sync_begun: float, sync_ended: float, right: bool) -> None:
    """Also one whose only sync began before its entry was written."""
    file, link, token = "/d/journal-1.log", "TCP:[127.0.0.1:3181->127.0.0.1:40000]", b"the entry"
    calls = [
        Called("pwritev", file, 1.0, 1.5, 4096, b"..." + token),
        Called("fdatasync", file, sync_begun, sync_ended, 0, b""),
        Called("sendmsg", link, 3.5, 3.6, 60, encode_add_response(7, Status.EOK, 5, 0)),
        Called("fdatasync", file, 4.0, 5.0, 0, b""),
    ]
    if right:
        assert check_order(calls, {(5, 0): token}, 3181) == (1, 2)
    else:
        with pytest.raises(AssertionError, match="I1"):
            check_order(calls, {(5, 0): token}, 3181)
