"""Every tool as a function from its arguments to a `ToolReport`, which the two command lines print as text or as JSON.

Exit status: 0 it is as it should be, 3 damage or something left to do was found; errors end with 1 and a message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.zookeeper.securing import open_session
from storage_node.bookie.tools.cluster import Cluster
from storage_node.bookie.tools.offline import Offline, directories_status
from storage_node.bookie.tools.repair import LimboOutcome, format_directories, judge_limbo, mark_missing
from storage_node.bookie.tools.repair import rebuild_index as rebuild
from storage_node.bookie.tools.verify import verify as verify_node
from storage_node.edge import SystemClock
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import NodeFile

T = TypeVar("T")
FOUND = 3


@dataclass(slots=True)
class ToolReport:
    """How does a tool report what it found?"""

    data: dict[str, object] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    status: int = 0

    def text(self, output: str) -> str:
        """Return the report in the form `output`: text or json."""
        return json.dumps(self.data, indent=2) if output == "json" else "\n".join(self.lines)


def _settings(conf: Path) -> BookieSettings:
    return NodeFile.read(conf).bookie()


def _in_cluster(settings: BookieSettings, work: Callable[[Cluster], Awaitable[T]]) -> T:
    async def run() -> T:
        store = await open_session(settings.zk_servers, settings.security, session_timeout_ms=settings.zk_timeout_ms)
        try:
            return await work(Cluster(store, settings.zk_ledgers_root_path))
        finally:
            await store.close()

    return asyncio.run(run())


def _own_id(settings: BookieSettings, given: str | None) -> str:
    """Return the bookie that was named, else the one that the directories belong to."""
    if given:
        return given
    with Offline(settings) as node:
        return node.cookie().bookie_id


# ------------------------------------------------------------------------------------------- looking


def status(conf: Path) -> ToolReport:
    """Report space, files and the last checkpoint of a node, running or not."""
    found = directories_status(_settings(conf))
    lines = [
        f"bookie {found.bookie_id or '(none yet)'}: {'running' if found.running else 'not running'}"
        + (", read-only when it last said so" if found.read_only_at_last else "")
    ]
    if found.checkpoint is not None:
        loss = ", entries may be lost here" if found.lossy else ""
        state = "after a clean stop" if found.clean else "the journal goes on behind it"
        lines.append(f"checkpoint {found.checkpoint}, {state}, {counted(found.ledgers or 0, 'ledger')}{loss}")
    for one in found.directories:
        if not one.exists:
            lines.append(f"{one.role} {one.path}: missing")
            continue
        files = (
            f"{counted(one.journal_files, 'journal file')}, {one.spare_journal_files} spare"
            if one.role == "journal"
            else f"{counted(one.entry_logs, 'entry log')}, {counted(one.data_bytes, 'byte')}"
        )
        full = ", too full" if one.full else ""
        lines.append(f"{one.role} {one.path}: {one.free_bytes} of {one.total_bytes} bytes free{full}; {files}")
    return ToolReport(asdict(found), lines)


def list_ledgers(conf: Path) -> ToolReport:
    """Return the ledgers that a stopped node holds."""
    with Offline(_settings(conf)) as node:
        found = node.summaries()
    lines = [
        f"ledger {one.ledger_id}: {counted(one.entries, 'entry', 'entries')}, {counted(one.bytes, 'byte')}, "
        f"{', '.join(f'{first}-{last}' for first, last in one.ranges) or 'none'}"
        f"; last add confirmed {one.last_add_confirmed}{', fenced' if one.fenced else ''}"
        for one in found
    ]
    return ToolReport({"ledgers": [asdict(one) for one in found]}, [*lines, counted(len(found), "ledger")])


def read_entry(conf: Path, ledger_id: int, entry_id: int) -> ToolReport:
    """Return one entry as its client sent it, digest and all, in hexadecimal."""
    with Offline(_settings(conf)) as node:
        body = node.read_entry(ledger_id, entry_id)
    data: dict[str, object] = {"ledger_id": ledger_id, "entry_id": entry_id, "bytes": len(body), "body": body.hex()}
    return ToolReport(data, [body[at : at + 32].hex(" ", 4) for at in range(0, len(body), 32)])


def verify(conf: Path) -> ToolReport:
    """Read everything that a stopped node holds, and name what is not as it was written."""
    with Offline(_settings(conf)) as node:
        found = verify_node(node)
    summary = (
        f"{counted(found.ledgers, 'ledger')}, {counted(found.logs, 'entry log')} with "
        f"{counted(found.entries, 'intact entry', 'intact entries')} ({counted(found.bytes, 'byte')}), "
        f"{counted(found.journal_records, 'journal record')}; {counted(len(found.lost), 'damage')}"
    )
    lines = [*map(str, found.damages), summary]
    return ToolReport(asdict(found), lines, FOUND if found.lost else 0)


# ------------------------------------------------------------------------------------------- changing


def rebuild_index(conf: Path) -> ToolReport:
    """Write the index of every entry log of a stopped node anew."""
    found = rebuild(_settings(conf))
    lines = [f"{path}: written" for path in found.written]
    lines += [f"{path}: kept, the log is damaged and the index is not" for path in found.kept]
    lines += [f"{path}: not written, the log is damaged: what is missing is unknown" for path in found.lost]
    lines += [f"{name}: the log is missing" for name in found.missing]
    return ToolReport(asdict(found), lines, FOUND if found.kept or found.lost or found.missing else 0)


def format_node(conf: Path, confirm: Callable[[str], bool], *, force: bool, delete_cookie: bool) -> ToolReport:
    """Remove everything that a stopped node stored; with `delete_cookie` also its cookie, if no ledger needs it."""
    settings = _settings(conf)
    places = ", ".join(dict.fromkeys([*settings.journal_directories, *settings.ledger_directories]))
    if not force and not confirm(f"Remove every entry and journal in {places}?"):
        raise CallerError("not confirmed; nothing was done")
    if delete_cookie:
        bookie_id = _own_id(settings, None)
        _in_cluster(settings, lambda cluster: cluster.check_stopped(bookie_id))
        _in_cluster(settings, lambda cluster: cluster.check_unused(bookie_id))
    removed = format_directories(settings)
    lines = [f"{counted(len(removed), 'file')} removed"]
    if delete_cookie:
        _in_cluster(settings, lambda cluster: cluster.delete_cookie(bookie_id))
        lines.append(f"the cookie of {bookie_id} was removed")
    return ToolReport({"removed": removed, "cookie_deleted": delete_cookie}, lines)


def cookie_show(conf: Path, bookie_id: str | None) -> ToolReport:
    """Return a bookie's cookie in metadata."""
    settings = _settings(conf)
    name = _own_id(settings, bookie_id)
    found = _in_cluster(settings, lambda cluster: cluster.read_cookie(name))
    return ToolReport(asdict(found), [found.encode().decode().rstrip()])


def cookie_list(conf: Path) -> ToolReport:
    """Return the bookies that have a cookie."""
    names = _in_cluster(_settings(conf), lambda cluster: cluster.cookies())
    return ToolReport({"bookies": names}, names)


def cookie_delete(conf: Path, bookie_id: str | None, *, force: bool) -> ToolReport:
    """Remove a bookie's cookie, and its location; refused while a ledger names it. Forced, the location stays then."""
    settings = _settings(conf)
    name = _own_id(settings, bookie_id)
    whole = _in_cluster(settings, lambda cluster: cluster.delete_cookie(name, force=force))
    lines = [f"the cookie of {name} was removed"]
    if not whole:
        lines.append(
            "its location is kept, because ledgers name it: recovery and repair need it. Delete again once none does"
        )
    return ToolReport({"bookie_id": name, "location_kept": not whole}, lines)


def limbo(conf: Path, *, clear: bool, mark: bool) -> ToolReport:
    """List the ledgers of which a stopped node may have lost entries, with which are proven whole, or not needed here
    any more.
    """
    settings = _settings(conf)
    name = _own_id(settings, None)
    clock = SystemClock()

    async def work(cluster: Cluster) -> list[LimboOutcome]:
        verdicts = await judge_limbo(settings, cluster, clear=clear)
        if mark:
            await mark_missing(cluster, name, verdicts, clock.now_ms)
        return verdicts

    found = _in_cluster(settings, work)
    lines = [
        f"ledger {one.ledger_id}: {one.state}"
        + (f", {counted(one.missing, 'entry', 'entries')}" if one.missing else "")
        + (", cleared" if clear and one.cleared else "")
        for one in found
    ]
    left = [one for one in found if not (clear and one.cleared)]
    lines.append(f"{counted(len(left), 'ledger is', 'ledgers are')} in limbo")
    return ToolReport({"ledgers": [asdict(one) for one in found], "left": len(left)}, lines, FOUND if left else 0)


def decommission(conf: Path, bookie_id: str | None, timeout_s: float, progress: Callable[[str], None]) -> ToolReport:
    """Have a stopped bookie's ledgers replicated elsewhere by auto-recovery, then remove its cookie."""
    settings = _settings(conf)
    name = _own_id(settings, bookie_id)
    clock = SystemClock()

    async def work(cluster: Cluster) -> int:
        return await cluster.decommission(
            name,
            now_ms=clock.now_ms,
            timeout_s=timeout_s,
            progress=lambda left: progress(f"{counted(left, 'ledger still names', 'ledgers still name')} {name}"),
        )

    moved = _in_cluster(settings, work)
    return ToolReport(
        {"bookie_id": name, "ledgers": moved},
        [f"{counted(moved, 'ledger was', 'ledgers were')} replicated elsewhere, the cookie of {name} was removed"],
    )
