"""`dlspark acl apply`: access control lists for znodes that were there before the cluster was secured, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import At, DryRunOption, Json, YesOption, confirm, exit_with, over_namespace
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from metadata.distributedlog.bindings import Binding
    from metadata.zookeeper.access import Access, AclEntry
    from metadata.zookeeper.list_change import ListReport

_PROGRESS_EVERY = 10_000
_SHOWN = 10

ExistingOption = Annotated[
    bool, typer.Option("--existing", help="Change the znodes that are there: the namespace's, and its ledgers'.")
]
OpenOption = Annotated[
    bool, typer.Option("--open", help="Take the lists away: everybody may do everything, as before security.")
]
AllListsOption = Annotated[
    bool, typer.Option("--all-lists", help="Replace lists of other identities as well; an operator's certificate may.")
]

TopOption = Annotated[
    bool,
    typer.Option(
        "--top",
        help="/ and /zookeeper as well: where these are open, whoever has a certificate may fill ZooKeeper's memory.",
    ),
]


@over_namespace
async def apply(
    at: At,
    existing: ExistingOption = False,
    take_away: OpenOption = False,
    all_lists: AllListsOption = False,
    top: TopOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Give znodes that are there already the access control list that new ones get by these settings (zkAclSecretPath,
    zkAclIdentities, zkAclWorldRead, zkAclId), or take lists away. It may be broken off and done again. Exits with 3 if
    ZooKeeper refused some of it.
    """
    from metadata.distributedlog.namespaces import NamespaceStore, NamespaceUri
    from metadata.zookeeper.securing import open_session

    if not existing:
        raise CallerError(
            "only znodes that are there already can be changed by a command",
            advice="Give --existing. What processes create from now on has a list if security=on (zkEnableSecurity)",
        )
    uri = NamespaceUri.parse(at.uri)
    security = at.settings.client_settings().security
    first = await open_session(_commas(uri.servers), security)
    try:
        binding = await NamespaceStore(first, uri.path).resolve()
    finally:
        await first.close()
    confirm(_question(uri.path, binding, take_away=take_away, top=top), yes=yes or dry_run)
    trees: list[dict[str, Json]] = []
    text: list[str] = []
    kinds = [(binding.dl_servers, uri.path, True), (binding.bk_servers, binding.ledgers_path, False)]
    if top:  # the cluster's own list: with `zkAclId` a namespace's identity is not every process's
        kinds += [(servers, "/", False) for servers in dict.fromkeys((binding.dl_servers, binding.bk_servers))]
    for servers, root, restrict in kinds:
        access, wanted = _wanted(at, restrict=restrict, take_away=take_away)
        report = await _change(_commas(servers), root, at, access, wanted, all_lists=all_lists, dry_run=dry_run)
        trees.append(_as_json(_commas(servers), root, report))
        text += _as_text(root, report, dry_run)
    attention = any(tree["refused"] for tree in trees)
    if attention and not dry_run:
        text.append(
            "ZooKeeper has refused this session the paths above. Do it again with the operator's certificate, which "
            "may do everything (DLSPARK_SECURITY=.../operator), or with the identity that has made those znodes"
        )
    result: dict[str, Json] = {"open": take_away, "dry_run": dry_run, "trees": trees}
    at.result(result, text)
    exit_with(attention=attention)


def _wanted(at: At, *, restrict: bool, take_away: bool) -> tuple[Access, Sequence[AclEntry]]:
    """Return who we are, and the list that znodes of this kind are to have."""
    from dataclasses import replace

    from metadata.zookeeper.access import OPEN
    from metadata.zookeeper.securing import session_access

    security, acl_id = at.settings.client_settings().security, at.settings.zk_acl_id
    if take_away:
        return session_access(security, acl_id, restrict=restrict), OPEN
    # Also while security=optional: new znodes have no list yet, and what is asked for here is to begin with lists.
    listed = session_access(replace(security, zk_enable_security=True), acl_id, restrict=restrict)
    return listed, listed.entries


async def _change(
    servers: str,
    root: str,
    at: At,
    access: Access,
    wanted: Sequence[AclEntry],
    *,
    all_lists: bool,
    dry_run: bool,
) -> ListReport:
    from metadata.zookeeper.list_change import TOP, ListChange, top_list
    from metadata.zookeeper.securing import open_session

    security, acl_id = at.settings.client_settings().security, at.settings.zk_acl_id
    store = await open_session(servers, security, acl_id=acl_id)
    shown = 0

    def progress(looked_at: int) -> None:
        nonlocal shown
        if looked_at >= shown + _PROGRESS_EVERY and sys.stderr.isatty():
            shown = looked_at
            typer.echo(f"{root}: {looked_at} znodes looked at", err=True)

    try:
        listed = top_list(wanted) if root == "/" else wanted
        change = ListChange(store, access, listed, all_lists=all_lists, dry_run=dry_run, progress=progress)
        return await (change.run_at(TOP) if root == "/" else change.run([root]))
    finally:
        await store.close()


def _question(path: str, binding: Binding, *, take_away: bool, top: bool) -> str:
    where = f"{path} at {_commas(binding.dl_servers)} and {binding.ledgers_path} at {_commas(binding.bk_servers)}"
    if top:
        where += ", and the top of ZooKeeper (/ and /zookeeper), which other programs may use,"
    if take_away:
        return f"Let everybody change {where}?"
    return (
        f"Close {where} to all but the identities of these settings? Every process of the cluster must show one of "
        "them by now (security=optional or on)."
    )


def _commas(servers: str) -> str:
    return servers.replace(";", ",")


def _as_json(servers: str, root: str, report: ListReport) -> dict[str, Json]:
    return {
        "zookeeper": servers,
        "root": root,
        "changed": report.changed,
        "kept": report.kept,
        "others": list(report.others),
        "refused": list(report.refused),
        "examples": list(report.examples),
    }


def _as_text(root: str, report: ListReport, dry_run: bool) -> Iterator[str]:
    would = "would change" if dry_run else "changed"
    yield (
        f"{root}: {counted(report.changed, 'list')} {would}, {report.kept} as wanted already, "
        f"{len(report.others)} of other identities kept, {len(report.refused)} refused by ZooKeeper"
    )
    if dry_run:
        yield from (f"  would change {example}" for example in report.examples[:_SHOWN])
    for title, paths in (("of another identity", report.others), ("refused", report.refused)):
        yield from (f"  {title}: {path}" for path in paths[:_SHOWN])
        if len(paths) > _SHOWN:
            yield f"  {title}: and {len(paths) - _SHOWN} more (all of them with --output json)"
