"""`dlspark scram`: the users of a storage node that come by SCRAM, in the file that `scramUsersFile` names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlspark.cli.common import Json, Output, OutputOption, YesOption, confirm, print_result, table
from metadata.foundation.plurals import counted

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file with the users' keys.")]
NameArgument = Annotated[str, typer.Argument(help="The user's name.")]


def set_user(
    file: FileArgument,
    name: NameArgument,
    password_file: Annotated[
        Path,
        typer.Option(
            "--password-file",
            help="The file with the password, which the client reads too (scramPasswordFile). Where there is none it "
            "is made, with a password that nobody can guess.",
        ),
    ],
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            min=4096,
            max=200_000,
            help="Rounds of hashing: more of them protect a password that can be guessed, at each client's cost.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Add a user, or give it another password. FILE holds keys from which nobody can enter, never the password; nodes
    read it anew at the next connection. To change a password with nobody locked out meanwhile add a second user, give
    its password to the clients, and remove the first."""
    from metadata.security.sasl.credentials import make_password_file, write_scram_user
    from metadata.security.sasl.scram import DEFAULT_ITERATIONS, prepared_name, stored_keys
    from metadata.security.secrets import secret_from_file

    prepared = prepared_name(name)
    made = make_password_file(password_file)
    keys = stored_keys(secret_from_file(password_file), iterations or DEFAULT_ITERATIONS)
    new = write_scram_user(file, prepared, keys)
    said = f"the user {prepared} was added" if new else f"the user {prepared} has another password"
    made_words = f"; its password was made and is in {password_file}" if made else ""
    print_result(output, {"user": prepared, "added": new, "password_made": made}, said + made_words)


def remove_user(
    file: FileArgument, name: NameArgument, yes: YesOption = False, output: OutputOption = Output.TEXT
) -> None:
    """Take a user away. Nodes that read FILE refuse it from its next connection on, and end those that it has within 10
    seconds."""
    from metadata.security.sasl.credentials import read_scram_users, remove_scram_user
    from metadata.security.sasl.scram import prepared_name

    prepared = prepared_name(name)
    if prepared in read_scram_users(file).users:
        confirm(f"Take the user {prepared} away?", yes=yes)
    remove_scram_user(file, prepared)
    print_result(output, {"user": prepared}, f"the user {prepared} was taken away")


def list_users(file: FileArgument, output: OutputOption = Output.TEXT) -> None:
    """List the users."""
    from metadata.security.sasl.credentials import read_scram_users

    users = read_scram_users(file).users
    rows = [(name, keys.iterations) for name, keys in sorted(users.items())]
    text = table("user", "iterations", rows=rows) if rows else f"{counted(0, 'user')} in {file}"
    found: list[Json] = [{"user": name, "iterations": count} for name, count in rows]
    print_result(output, {"users": found}, text)
