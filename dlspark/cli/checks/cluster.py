"""The namespace and its cluster: whether they answer, and whether a record could be written."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dlspark.cli.checks import Finding, fail, ok, warn
from dlspark.place import ADVICE, known_uri
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.plurals import counted

_SKEW_MS = 5_000


def check_namespace(uri: str | None) -> Iterator[Finding]:
    """Open the namespace that is given, or that is known, and look at its cluster."""
    try:
        found = uri or known_uri()
    except DistributedLogError as error:
        yield fail("namespace", error.message, error.advice or "")
        return
    if found is None:
        yield ok("namespace", f"none is named, and no sandbox runs here. To have one: {ADVICE}")
        return
    import asyncio

    try:
        yield from asyncio.run(_looked_at(found))
    except DistributedLogError as error:
        todo = error.advice or "Check the URI, and that ZooKeeper runs there"
        yield fail("namespace", f"{found} cannot be used: {error.message}", todo)


async def _looked_at(uri: str) -> list[Finding]:
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.settings import Settings

    namespace = await AsyncNamespace.open(uri, Settings.from_environment())
    try:
        writable = len(await namespace.ledgers.bookies.writable())
        needed, _, _ = namespace.settings.quorums
        stat = await namespace.store.exists(namespace.uri.path)
    finally:
        await namespace.close()
    findings = [ok("namespace", f"{uri} answers")]
    there = f"{counted(writable, 'storage node is', 'storage nodes are')} writable"
    if writable < needed:
        todo = "Start more, look at why they are read-only, or set bkcEnsembleSize and its quorums lower"
        findings.append(fail("nodes", f"{there}, and a segment needs {needed}", todo))
    elif writable == needed:
        todo = "One more takes the place of one that is lost"
        findings.append(warn("nodes", f"{there}, as many as a segment needs: losing one stops writers", todo))
    else:
        findings.append(ok("nodes", there))
    if stat is not None and stat.mtime_ms > time.time() * 1000 + _SKEW_MS:
        ahead = f"{(stat.mtime_ms - time.time() * 1000) / 1000:.0f} s"
        findings.append(warn("clock", f"ZooKeeper's clock is at least {ahead} ahead of this one", "Keep both by NTP"))
    return findings
