"""The check at start that a node's id, directories and metadata belong together.

As docs/reference/wire.md#cookies-at-start has it; the cookie's own layout is in docs/reference/znodes.md#cookies.

    cookie in metadata   cookies in the directories                        outcome
    absent               none, or some equal; those without are empty      new bookie: files first, then the znode
    absent               a directory without one is not empty              refuse
    absent               all present                                       refuse
    equal                all present and equal                             start
    equal                some missing                                      refuse: a disk was replaced or wiped
    fewer ledger dirs    those that it names as before, the others empty   `allowStorageExpansion`: admit, write it anew
    different anywhere                                                     refuse

Refusing what is missing keeps a wiped node from answering "no such entry" under its old name (I11); so a directory that
the cookie names is never taken for a new one, whatever the settings say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from metadata.bookkeeper.bookies import BookieRegistry, Cookie
from metadata.bookkeeper.ledgers import Versioned
from storage_node.bookie.disk.resources import needing_space
from storage_node.edge import Disk
from storage_node.errors import CookieMismatchError

COOKIE_FILE = "VERSION"


async def check_cookies(
    registry: BookieRegistry, disk: Disk, cookie: Cookie, directories: list[str], *, expansion: bool = False
) -> None:
    """Admit the node, or raise CookieMismatchError; a new node's cookies are written.

    Args:
        directories: the `current` folders of every journal and ledger directory.
        expansion: accept new, empty ledger directories beside those that the node had.
    """
    found = {directory: disk.read_file(f"{directory}/{COOKIE_FILE}") for directory in directories}
    for directory, data in found.items():
        if data is not None:
            path = f"{directory}/{COOKIE_FILE}"
            _compare(cookie, Cookie.decode(data, path), path, expansion)
    missing = [directory for directory, data in found.items() if data is None]
    registered = await registry.read_cookie(cookie.bookie_id)
    if registered is not None:
        _compare(cookie, registered.value, "its cookie in metadata", expansion)
        if expansion and await _expand(registry, disk, cookie, registered, found):
            return
        if missing:
            raise CookieMismatchError(
                f"bookie {cookie.bookie_id} is registered, but its directories have no {COOKIE_FILE}",
                advice="A disk was wiped or replaced, and acknowledged entries with it. Bring the old directories "
                "back; or let the node's ledgers be replicated elsewhere, then delete its cookie and start it empty",
                path=", ".join(missing),
            )
        return
    if not missing:
        raise CookieMismatchError(
            f"bookie {cookie.bookie_id} has {COOKIE_FILE} in all directories, but no cookie in metadata",
            advice="Check zkServers and zkLedgersRootPath, and that ZooKeeper has not lost its data. Only if the node "
            "was decommissioned, empty its directories: dlspark bookie format",
            path=", ".join(directories),
        )
    _check_empty(disk, missing)
    # Files first: a crash between leaves directories that the next start accepts. The other way round it would find a
    # registered bookie whose directories have no cookie, and refuse it for good.
    _write_everywhere(disk, missing, cookie)
    await registry.write_cookie(cookie)


async def _expand(
    registry: BookieRegistry, disk: Disk, cookie: Cookie, registered: Versioned[Cookie], found: dict[str, bytes | None]
) -> bool:
    """Admit further ledger directories, and write the cookie everywhere: files first, so that a crash between leaves
    what this very start accepts again. False if nothing is new."""
    known = {*registered.value.journal_dirs, *registered.value.ledger_dirs}
    new = [directory for directory in found if _place(directory) not in known]
    if not new and all(data == cookie.encode() for data in found.values()):
        return False
    lost = [directory for directory, data in found.items() if data is None and directory not in new]
    if lost:
        raise CookieMismatchError(
            f"a directory that bookie {cookie.bookie_id} had before has no {COOKIE_FILE}: it was wiped, it is not new",
            advice="Bring it back; allowStorageExpansion only adds directories to those that are all there",
            path=", ".join(lost),
        )
    _check_empty(disk, [directory for directory in new if found[directory] is None])
    _write_everywhere(disk, found, cookie)
    await registry.write_cookie(cookie, registered.version)
    return True


def _write_everywhere(disk: Disk, directories: Iterable[str], cookie: Cookie) -> None:
    """Write the cookie into every directory. Raises OSError (NoSpaceError: the next start begins again; what is written
    already does it no harm).
    """
    data = cookie.encode()
    for directory in directories:
        path = f"{directory}/{COOKIE_FILE}"
        with needing_space(path, len(data)):
            disk.write_file(path, data)


def _place(directory: str) -> str:
    """Return the directory as the settings and cookies name it: without its folder `current`."""
    return directory.rpartition("/")[0]


def _check_empty(disk: Disk, directories: list[str]) -> None:
    for directory in directories:
        if set(disk.list_directory(directory)) - {f"{COOKIE_FILE}.new"}:  # that is what an interrupted start may leave
            raise CookieMismatchError(
                f"the directory has no {COOKIE_FILE} but is not empty",
                advice="Name an empty directory, or bring back the file that belongs there",
                path=directory,
            )


def _compare(expected: Cookie, found: Cookie, place: str, expansion: bool) -> None:
    """Raise CookieMismatchError where they differ; under `expansion` ledger directories may be new here."""
    if expected.matches(found):
        return
    if expansion and set(found.ledger_dirs) <= set(expected.ledger_dirs):
        same = replace(found, ledger_dirs=expected.ledger_dirs, index_dirs=None)
        if found.index_dirs in (None, found.ledger_dirs) and expected.matches(same):
            return
    differences = [
        f"{name} is {theirs!r} there and {ours!r} here"
        for name, ours, theirs in (
            ("bookie id", expected.bookie_id, found.bookie_id),
            ("journal directories", expected.journal_dirs, found.journal_dirs),
            ("ledger directories", expected.ledger_dirs, found.ledger_dirs),
            ("instance id", expected.instance_id, found.instance_id),
        )
        if ours != theirs
    ]
    raise CookieMismatchError(
        f"this node is not the one that its data belongs to: {'; '.join(differences) or 'index directories differ'}",
        advice="Start it with the id, directories and cluster it had (a node whose address has changed keeps its id by "
        "bookieId), or with empty directories under a new id",
        path=place,
    )
