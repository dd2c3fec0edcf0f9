"""`NamespacedNetwork`: hosts in Linux network namespaces of their own, joined by a router that can lose packets.

Every host has an address, a link to the router and a private mount table (for a small file system of its own). A
direction is blocked by a routing rule of the router that drops the packets, so connections behave as they do when a
cable is cut: dialling times out, data in flight are sent again, an end is not heard.

Needs root and the `ip` command; `unavailable()` says whether it works here. The namespaces have no names: each belongs
to a process that waits for its standard input to end and dies with the process that made it, so nothing is left
behind, however this one ends.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from helpers.fork_server import Child, ForkServer
from metadata.foundation.errors import CallerError, NotAppliedError

_CLONE_NEWNS: Final = 0x0002_0000
_CLONE_NEWNET: Final = 0x4000_0000
_MS_PRIVATE_RECURSIVE: Final = (1 << 18) | (1 << 14)
_FIRST_RULE: Final = 100


class NamespaceError(NotAppliedError):
    """The system refused to set up a namespace, a link or a rule."""


def unavailable() -> str | None:
    """Return why network namespaces cannot be used here; None where they can."""
    return _unavailable()


@functools.cache
def _unavailable() -> str | None:
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed"
    try:
        with tempfile.TemporaryDirectory() as name, ForkServer((), log=Path(name) / "log") as server:
            network = NamespacedNetwork(("one", "two"), server)
            try:
                network.block("one", "two")
            finally:
                network.close()
    except (NotAppliedError, OSError) as error:
        return f"network namespaces do not work here: {error}"
    return None


class NamespacedNetwork:
    """Addresses are 10.77.<n>.2; the router is 10.77.<n>.1 to each host."""

    kind = "network namespaces"
    can_delay = False

    def __init__(self, hosts: Sequence[str], server: ForkServer) -> None:
        self._server = server
        self._numbers = {host: index + 1 for index, host in enumerate(hosts)}
        self._blocked: dict[tuple[str, str], int] = {}
        self._holders: dict[str, Child] = {}
        try:
            self._router = self._hold("router")
            for host in hosts:
                self._holders[host] = self._hold(host)
                self._link(host)
        except BaseException:
            self.close()
            raise

    def address(self, host: str) -> str:
        try:
            return f"10.77.{self._numbers[host]}.2"
        except KeyError:
            raise CallerError(f"there is no host {host}") from None

    def dial(self, source: str, target: str, port: int) -> tuple[str, int]:
        return self.address(target), port

    def join(self, host: str) -> int | None:
        return self._holders[host].pid

    def block(self, source: str, target: str) -> None:
        if (source, target) in self._blocked:
            return
        rule = _FIRST_RULE + len(self._numbers) * self._numbers[source] + self._numbers[target]
        self._ip(self._router, *self._rule("add", source, target, rule))
        self._blocked[source, target] = rule

    def unblock(self, source: str, target: str) -> None:
        rule = self._blocked.pop((source, target), None)
        if rule is not None:
            self._ip(self._router, *self._rule("del", source, target, rule))

    def delay(self, source: str, target: str, seconds: float) -> None:
        raise CallerError("this network cannot delay", advice="Look at can_delay")

    def mount_small_disk(self, host: str, path: Path, size_bytes: int) -> SmallDisk:
        """Give the host a memory file system of this size at `path`."""
        path.mkdir(parents=True, exist_ok=True)
        return SmallDisk(self._holders[host].pid, path, size_bytes)

    def close(self) -> None:
        """End every namespace. Idempotent."""
        for holder in (self._router, *self._holders.values()) if hasattr(self, "_router") else ():
            holder.kill()
        self._holders.clear()

    def _hold(self, name: str) -> Child:
        holder = self._server.spawn("helpers.faults.namespaces:hold", {"name": f"namespace-{name}"})
        if holder.lines.get() != "held":
            raise NamespaceError("a network namespace cannot be made")
        return holder

    def _link(self, host: str) -> None:
        number, holder = self._numbers[host], self._holders[host]
        here, there = f"10.77.{number}.1/24", f"10.77.{number}.2/24"
        link = f"v{number}"
        self._ip(self._router, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        self._ip(self._router, "address", "add", here, "dev", link)
        self._ip(self._router, "link", "set", link, "up")
        self._ip(holder, "link", "set", "lo", "up")
        self._ip(holder, "address", "add", there, "dev", "eth0")
        self._ip(holder, "link", "set", "eth0", "up")
        self._ip(holder, "route", "add", "default", "via", here.partition("/")[0])

    def _rule(self, verb: str, source: str, target: str, number: int) -> tuple[str, ...]:
        between = ("from", self.address(source), "to", self.address(target))
        return ("rule", verb, "priority", str(number), *between, "blackhole")

    def _ip(self, holder: Child, *arguments: str) -> None:
        _run("nsenter", "-t", str(holder.pid), "-n", "ip", *arguments)


class SmallDisk:
    """A file system in memory that only one host sees; it goes with its host."""

    def __init__(self, holder: int, path: Path, size_bytes: int) -> None:
        self._mount = ("nsenter", "-t", str(holder), "-m", "mount", "-t", "tmpfs", "-o")
        self._path = str(path)
        self._size_bytes = size_bytes
        self.outside = Path(f"/proc/{holder}/root{path}")
        """How others reach what is in it."""
        _run(*self._mount, f"size={size_bytes}", "tmpfs", self._path)

    def fill(self) -> None:
        """Leave no room for more than there is now."""
        used = -1
        while used != self._used_bytes():
            used = self._used_bytes()
            try:
                self._resize(used)
            except NamespaceError:
                if used == self._used_bytes():
                    raise
                # The host wrote meanwhile, and a file system cannot be smaller than what is in it.

    def _used_bytes(self) -> int:
        stats = os.statvfs(self.outside)
        return (stats.f_blocks - stats.f_bfree) * stats.f_frsize

    def make_room(self) -> None:
        """Give the file system its first size again."""
        self._resize(self._size_bytes)

    def _resize(self, size_bytes: int) -> None:
        _run(*self._mount, f"remount,size={size_bytes}", self._path)


def hold(name: str) -> int:
    """Be a network namespace and a mount table, until standard input ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET | _CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if libc.mount(b"none", b"/", None, _MS_PRIVATE_RECURSIVE, None) != 0:
        raise OSError(ctypes.get_errno(), "mount --make-rprivate")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    print("held", flush=True)
    sys.stdin.read()
    return 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise NamespaceError(f"{' '.join(command)} failed: {done.stderr.strip() or done.returncode}")
