"""Descriptors, ports, disks and the clock of this machine, for a sandbox or a storage node in a directory."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dlspark.cli.checks import Finding, fail, ok, warn
from dlspark.sandbox_state import SandboxState
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

DESCRIPTORS_NEEDED = 512
DESCRIPTORS_WANTED = 4096
"""A connection and a file take one each; Spark's own files and sockets come on top."""
FREE_NEEDED_BYTES = 1 << 30
FREE_WANTED_BYTES = 5 << 30
USED_LIMIT = 0.95
"""A storage node's `diskUsageThreshold`: above it the node is read-only."""
_BLOCK_BYTES = 4096
_EARLIEST_S = 1_704_067_200  # 1 January 2024: no machine that runs this can be before it
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def check_descriptors() -> Iterator[Finding]:
    """How many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} open files and connections"
    if soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_WANTED:
        yield ok("descriptors", shown)
        return
    enough = hard == resource.RLIM_INFINITY or hard >= DESCRIPTORS_WANTED
    todo = f"ulimit -n {DESCRIPTORS_WANTED if not enough else 65536 if hard < 0 else min(hard, 65536)}" + (
        "" if enough else f" (the hard limit is {hard}: ask the administrator, or see limits.conf)"
    )
    yield (fail if soft < DESCRIPTORS_NEEDED else warn)("descriptors", shown, todo)


def check_ports(directory: Path) -> Iterator[Finding]:
    """The ports that the directory's sandbox keeps, if it does not run; that one can be had at all, else."""
    try:
        state = SandboxState.load(directory)
    except CallerError as error:
        yield fail("ports", str(error), "Name another directory with --dir")
        return
    if state is not None and state.running():
        yield ok("ports", f"the sandbox in {directory} runs on its own (process {state.pid}, {state.uri})")
        return
    wanted = (0,) if state is None else (state.zookeeper_port, *state.node_ports)
    taken = [port for port in wanted if not _free(port)]
    if taken and state is None:
        yield fail("ports", "no port of 127.0.0.1 can be listened on", "Look at the machine's firewall and limits")
    elif taken:
        yield fail(
            "ports",
            f"{counted(len(taken), 'port is', 'ports are')} in use by others: {', '.join(map(str, taken))}; "
            f"the sandbox in {directory} keeps them, and cannot start",
            "Stop what listens there (ss -ltnp), or start a sandbox in another directory with --dir",
        )
    else:
        what = "a free port can be had" if state is None else f"those of the sandbox in {directory} are free"
        yield ok("ports", what)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def check_disk(directory: Path) -> Iterator[Finding]:
    """Where a sandbox's data are, or would be: room, whether a sync works, and what kind of file system it is."""
    place = next((one for one in (directory, *directory.absolute().parents) if one.is_dir()), Path("/"))
    elsewhere = "Name another directory with --dir"
    usage = shutil.disk_usage(place)
    room = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.1f} are free in {place}"
    if usage.free < FREE_NEEDED_BYTES or usage.total - usage.free > USED_LIMIT * usage.total:
        yield fail("disk", f"{room}; storage nodes would take no writes", f"Make room. {elsewhere}")
    elif usage.free < FREE_WANTED_BYTES:
        yield warn("disk", room, f"Make room. {elsewhere}")
    else:
        yield ok("disk", room)
    kind = _file_system(place)
    if kind in _MEMORY_FILE_SYSTEMS:
        yield warn("disk", f"{place} is {kind}: what is there is gone with the next start of the machine", elsewhere)
    yield from _syncs(place, elsewhere)


def _syncs(place: Path, elsewhere: str) -> Iterator[Finding]:
    """A block is written, synced and thrown away; with O_DIRECT too, as a journal is."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".dlspark-doctor-") as scratch:
            began = time.monotonic()
            scratch.write(bytes(_BLOCK_BYTES))
            scratch.flush()
            os.fsync(scratch.fileno())
            took_ms = (time.monotonic() - began) * 1000
            direct = _writes_directly(scratch.name)
    except OSError as error:
        yield fail("disk", f"nothing can be written and synced in {place}: {error.strerror or error}", elsewhere)
        return
    yield ok("disk", f"a write is on disk after {took_ms:.1f} ms")
    if not direct:
        yield warn(
            "disk",
            f"the file system of {place} refuses O_DIRECT: journals go through the page cache, safe but slower",
            f"{elsewhere}, on ext4 or XFS",
        )


def _writes_directly(name: str) -> bool:
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        file = os.open(name, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, _BLOCK_BYTES) as aligned:
            return os.write(file, aligned) == _BLOCK_BYTES
    except OSError:
        return False
    finally:
        os.close(file)


def _file_system(place: Path) -> str:
    """The type of the file system that holds `place`; empty where the machine does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    resolved, best = place.resolve(), ("", "")
    for line in lines:
        _, point, kind, *_ = line.split()
        point = point.encode().decode("unicode_escape")
        if resolved.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def check_clock() -> Iterator[Finding]:
    """Transaction ids are times, and leases are measured by it."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < _EARLIEST_S:
        yield fail("clock", f"it is {shown} by this machine's clock", "Set the clock, and keep it by NTP")
    else:
        yield ok("clock", shown)
