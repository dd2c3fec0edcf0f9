"""The file of SCRAM users: written whole, read by its owner alone, and refused where it is not what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metadata.security.sasl.credentials import (
    CredentialsError,
    read_scram_users,
    remove_scram_user,
    write_scram_user,
)
from metadata.security.sasl.scram import stored_keys
from metadata.security.secrets import Secret

KEYS = stored_keys(Secret("pencil"))


def test_users_come_change_and_go(tmp_path: Path) -> None:
    path = tmp_path / "scram.json"
    assert write_scram_user(path, "flights", KEYS)
    first = read_scram_users(path)
    assert write_scram_user(path, "näme", KEYS)
    other = stored_keys(Secret("pen"))
    assert not write_scram_user(path, "flights", other)
    users = read_scram_users(path)
    assert users.users == {"flights": other, "näme": KEYS}
    assert users.decoy == first.decoy
    assert path.stat().st_mode & 0o777 == 0o600
    remove_scram_user(path, "flights")
    assert list(read_scram_users(path).users) == ["näme"]
    with pytest.raises(CredentialsError, match="no SCRAM user 'flights'"):
        remove_scram_user(path, "flights")
    assert [one.name for one in tmp_path.iterdir()] == ["scram.json"]
    assert "pencil" not in path.read_text()


def test_the_files_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "scram.json"
    write_scram_user(path, "flights", KEYS)
    path.chmod(0o640)
    write_scram_user(path, "trains", KEYS)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o644)
    with pytest.raises(CredentialsError, match="others may read"):
        write_scram_user(path, "ships", KEYS)
    path.chmod(0o600)
    assert sorted(read_scram_users(path).users) == ["flights", "trains"]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(version=2),
        lambda found: found.update(decoy="AAAA"),
        lambda found: found.update(users=[]),
        lambda found: found["users"]["flights"].update(iterations=1),
        lambda found: found["users"]["flights"].update(stored_key="#"),
        lambda found: found["users"]["flights"].pop("salt"),
        lambda found: found["users"].update(flights="PLAIN-PASSWORD"),
    ],
)
def test_what_was_not_written_so_lets_nobody_in(tmp_path: Path, change: object) -> None:
    path = tmp_path / "scram.json"
    write_scram_user(path, "flights", KEYS)
    found = json.loads(path.read_text())
    assert callable(change)
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(CredentialsError) as caught:
        read_scram_users(path)
    assert "PLAIN-PASSWORD" not in str(caught.value)
    before = path.read_bytes()
    with pytest.raises(CredentialsError):
        write_scram_user(path, "trains", KEYS)
    assert path.read_bytes() == before


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="folder cannot be opened"):
        write_scram_user(tmp_path / "none" / "scram.json", "flights", KEYS)
    with pytest.raises(CredentialsError, match="cannot be read"):
        read_scram_users(tmp_path / "none")
