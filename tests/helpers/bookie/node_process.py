"""A storage node as a process of its own."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session


def spawn(conf: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "storage_node.bookie", "--conf", str(conf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "the node did not get ready"
    return process.stdout.readline()


async def initialise(servers: str) -> None:
    store = await open_session(servers, SecuritySettings())
    await LedgerStore(store).format()
    await store.close()
