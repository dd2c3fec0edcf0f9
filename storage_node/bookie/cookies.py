"""The check at start that a node's id, directories and metadata belong together (wire specification 7.11).

    cookie in metadata   cookies in the directories                        outcome
    absent               none, or some equal; those without are empty      new bookie: files first, then the znode
    absent               a directory without one is not empty              refuse
    absent               all present                                       refuse
    equal                all present and equal                             start
    equal                some missing                                      refuse: a disk was replaced or wiped
    different anywhere                                                     refuse

The second last line is what keeps a wiped node from answering "no such entry" under its old name (I11).
"""

from __future__ import annotations

from metadata.bookies import BookieRegistry, Cookie
from storage_node.edge import Disk
from storage_node.errors import CookieMismatchError

FILE_NAME = "VERSION"


async def check_cookies(registry: BookieRegistry, disk: Disk, cookie: Cookie, directories: list[str]) -> None:
    """Admit the node, or raise CookieMismatchError; a new node's cookies are written.

    Args:
        directories: the `current` folders of every journal and ledger directory.
    """
    found = {directory: disk.read_file(f"{directory}/{FILE_NAME}") for directory in directories}
    for directory, data in found.items():
        if data is not None:
            _compare(cookie, Cookie.decode(data, f"{directory}/{FILE_NAME}"), f"{directory}/{FILE_NAME}")
    missing = [directory for directory, data in found.items() if data is None]
    registered = await registry.read_cookie(cookie.bookie_id)
    if registered is not None:
        _compare(cookie, registered.value, "its cookie in metadata")
        if missing:
            raise CookieMismatchError(
                f"bookie {cookie.bookie_id} is registered, but its directories have no {FILE_NAME}",
                advice="A disk was wiped or replaced, and acknowledged entries with it. Bring the old directories "
                "back; or let the node's ledgers be replicated elsewhere, then delete its cookie and start it empty",
                path=", ".join(missing),
            )
        return
    if not missing:
        raise CookieMismatchError(
            f"bookie {cookie.bookie_id} has {FILE_NAME} in all directories, but no cookie in metadata",
            advice="Check zkServers and zkLedgersRootPath. If the node was given up, empty its directories",
            path=", ".join(directories),
        )
    for directory in missing:
        if disk.list_directory(directory):
            raise CookieMismatchError(
                f"the directory has no {FILE_NAME} but is not empty",
                advice="Name an empty directory, or bring back the file that belongs there",
                path=directory,
            )
    for directory in missing:
        disk.write_file(f"{directory}/{FILE_NAME}", cookie.encode())
    await registry.write_cookie(cookie)


def _compare(expected: Cookie, found: Cookie, place: str) -> None:
    if expected.matches(found):
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
        advice="Start it with the id, directories and cluster it had, or with empty directories under a new id",
        path=place,
    )
