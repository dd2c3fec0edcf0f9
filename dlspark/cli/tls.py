"""`dlspark tls`: a cluster's own authority, and the identity folders that it issues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlspark.cli.common import Json, Output, OutputOption, YesOption, confirm, exit_with, print_result, table
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from metadata.security.authority import CertificateAuthority, IssuedName
    from metadata.security.certificates import CertificateFacts

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.")]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", help="A name or address by which it is reached; may be given several times."),
]
JavaOption = Annotated[
    bool,
    typer.Option(
        "--java-roles", help="Write roles as BookKeeper's BookieAuthZFactory reads them: one unit, 0:role1,role2."
    ),
]
DaysOption = Annotated[int | None, typer.Option("--days", min=1, max=3650, help="How long certificates hold.")]


def init(
    directory: DirectoryArgument,
    host: HostOption = None,
    days: DaysOption = None,
    java_roles: JavaOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make an authority, and identity folders for a node, a client, a proxy, a ZooKeeper and an operator. Without
    --host those that listen are known as this host and as localhost. Give each host a copy of the folder that it needs,
    and nobody the folder `authority`."""
    from metadata.security.authority import FIRST_ROLES, LEAF_DAYS, SERVER_ROLES, CertificateAuthority, check_host

    hosts = host or _this_host()
    for one in hosts:
        check_host(one)
    CertificateAuthority.create(directory)
    with CertificateAuthority.open_in(directory) as authority:
        made = [
            authority.issue(
                role,
                [role],
                hosts if role in SERVER_ROLES else (),
                days or LEAF_DAYS,
                java_roles=java_roles,
                shares_secret=role != "zookeeper",
            )
            for role in FIRST_ROLES
        ]
    _print_names(directory, made, output, f"an authority was made in {directory}; it has issued:")


def issue(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(help="Whose it is: the name that rights and the audit trail know.")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="node, proxy, zookeeper, client, operator or your own; may be given again."),
    ] = None,
    host: HostOption = None,
    days: DaysOption = None,
    java_roles: JavaOption = False,
    cluster_secret: Annotated[
        bool | None,
        typer.Option(
            "--cluster-secret/--no-cluster-secret",
            help="With the secret by which ZooKeeper knows the cluster's own processes; a client that opens namespaces "
            "itself needs it, and may do everything there. Not said: with the roles node, proxy and operator.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Issue a certificate to a new name: DIR/NAME is its identity folder."""
    from metadata.security.authority import LEAF_DAYS, CertificateAuthority

    with CertificateAuthority.open_in(directory) as authority:
        made = authority.issue(
            name, role or (), host or (), days or LEAF_DAYS, java_roles=java_roles, shares_secret=cluster_secret
        )
    _print_names(directory, [made], output, f"a certificate was issued; copy {directory / name} to where it is used:")


def renew(
    directory: DirectoryArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Names; all, if not said.")] = None,
    days: DaysOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Issue new keys and certificates to names that have some, with their roles and hosts. Old ones hold until they
    end; processes that use a folder take the new ones over by themselves. Revoked names are renewed only if named."""
    from metadata.security.authority import CertificateAuthority

    with CertificateAuthority.open_in(directory) as authority:
        wanted = names or [one.name for one in authority.names() if not one.is_revoked]
        made = authority.renew_all(wanted, days)
    _print_names(directory, made, output, f"{counted(len(made), 'certificate was', 'certificates were')} renewed:")


def revoke(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(help="Whose certificates are taken back.")],
    yes: YesOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Take all certificates of a name back. Processes that read a folder of DIR see it within seconds, and end its open
    connections; to folders elsewhere copy revoked.pem."""
    from metadata.security.authority import AUTHORITY_FOLDER, CertificateAuthority
    from metadata.security.identity import REVOKED_FILE

    with CertificateAuthority.open_in(directory) as authority:
        authority.named(name)
        confirm(f"Revoke all certificates of {name}? That cannot be undone.", yes=yes)
        made = authority.revoke(name)
    place = directory / AUTHORITY_FOLDER / REVOKED_FILE
    _print_names(directory, [made], output, f"{name} is revoked; copy {place} into identity folders on other hosts:")


def show(
    place: Annotated[
        Path, typer.Argument(metavar="PLACE", help="An authority's folder, an identity folder, or a PEM file.")
    ],
    output: OutputOption = Output.TEXT,
) -> None:
    """Show certificates: whose they are, roles, hosts, how long they hold, whether they are revoked. Exits with 3 if
    one has ended, is revoked or ends soon."""
    from metadata.security.authority import AUTHORITY_FOLDER, CertificateAuthority

    if (place / AUTHORITY_FOLDER).is_dir():
        with CertificateAuthority.open_in(place) as authority:
            rows = _known(authority)
        columns = table("name", "roles", "hosts", "ends", "state", rows=[_cells(row) for row in rows], spare=("hosts",))
        print_result(output, {"authority": str(place), "names": rows}, columns)
    else:
        rows = list(_found(place))
        text = [line for row in rows for line in (*(f"{key}: {_shown(value)}" for key, value in row.items()), "")]
        print_result(output, {"place": str(place), "certificates": rows}, text[:-1])
    exit_with(attention=any(row["state"] != "good" for row in rows))


# -------------------------------------------------------------------- what is printed


def _known(authority: CertificateAuthority) -> list[dict[str, Json]]:
    now = datetime.now(timezone.utc)
    return [_row(one, now) for one in authority.names()]


def _row(issued: IssuedName, now: datetime) -> dict[str, Json]:
    newest = issued.certificates[-1]
    state = "good"
    if issued.is_revoked:
        state = "revoked"
    elif now >= newest.ends:
        state = "ended"
    elif newest.ends - now < (newest.ends - newest.begins) / 3:
        state = "ends soon"
    return {
        "name": issued.name,
        "roles": list(issued.roles),
        "hosts": list(issued.hosts),
        "begins": newest.begins.isoformat(),
        "ends": newest.ends.isoformat(),
        "serial": f"{newest.serial:x}",
        "state": state,
    }


def _found(place: Path) -> Iterator[dict[str, Json]]:
    """Yield what each certificate of an identity folder or file says. Raises CallerError."""
    from metadata.security.certificates import CERTIFICATE, REVOCATIONS, pem_blocks, read_certificate, read_revocations
    from metadata.security.identity import CERTIFICATE_FILE, REVOKED_FILE
    from metadata.security.revocations import lists_about

    file = place / CERTIFICATE_FILE if place.is_dir() else place
    beside = file.parent / REVOKED_FILE
    try:
        certificates = [one for one in pem_blocks(file.read_bytes()) if one.label == CERTIFICATE]
        lists = []
        if place.is_dir() and beside.exists():
            lists = [read_revocations(one.body) for one in pem_blocks(beside.read_bytes()) if one.label == REVOCATIONS]
        facts = [read_certificate(one.body) for one in certificates]
    except (OSError, ValueError) as error:
        raise CallerError(f"it cannot be read: {error}", path=str(file)) from error
    if not facts:
        advice = "Name a PEM file, an identity folder or an authority's"
        raise CallerError("there is no certificate in it", path=str(file), advice=advice)
    for one in facts:
        revoked = any(one.serial in found.serials for found in lists_about(one, lists))
        yield _certificate(one, revoked)


def _certificate(facts: CertificateFacts, revoked: bool) -> dict[str, Json]:
    from metadata.security.principals import roles_of_units

    now = datetime.now(timezone.utc).timestamp()
    state = "good"
    if revoked:
        state = "revoked"
    elif now >= facts.not_after_s:
        state = "ended"
    elif now < facts.not_before_s:
        state = "has not begun"
    elif facts.ends_soon(now):
        state = "ends soon"
    return {
        "subject": facts.subject_text,
        "roles": list(roles_of_units(facts.parts("OU"))),
        "hosts": [*facts.dns_names, *facts.addresses],
        "uris": list(facts.uris),
        "issuer": facts.issuer_text,
        "authority": facts.is_authority,
        "serial": f"{facts.serial:x}",
        "begins": datetime.fromtimestamp(facts.not_before_s, timezone.utc).isoformat(),
        "ends": datetime.fromtimestamp(facts.not_after_s, timezone.utc).isoformat(),
        "fingerprint": facts.fingerprint,
        "state": state,
    }


def _shown(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _cells(row: dict[str, Json]) -> list[str]:
    return [_shown(row[key])[: 10 if key == "ends" else None] for key in ("name", "roles", "hosts", "ends", "state")]


def _print_names(directory: Path, made: Sequence[IssuedName], output: Output, said: str) -> None:
    now = datetime.now(timezone.utc)
    rows = [_row(one, now) for one in made]
    lines = [f"  {directory / str(row['name'])}: until {str(row['ends'])[:10]}, {row['state']}" for row in rows]
    print_result(output, {"authority": str(directory), "names": rows}, [said, *lines])


def _this_host() -> list[str]:
    import socket

    from metadata.security.authority import check_host

    name = socket.gethostname()
    found = ["localhost", "127.0.0.1", "::1"]
    try:
        check_host(name)
    except CallerError:
        return found  # a name that no certificate can have
    return list(dict.fromkeys([name, *found]))
