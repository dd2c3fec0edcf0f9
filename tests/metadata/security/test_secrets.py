"""A secret shows itself nowhere, and is read from files and variables that are fit for one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from metadata.foundation.errors import CallerError
from metadata.security.secrets import MAX_SECRET_BYTES, Secret, secret_from_environment, secret_from_file

TEXT = "open sesame"


@pytest.mark.parametrize("shown", [repr, str, "{}".format, "{:>40}".format, lambda secret: f"{[secret]!r}"])
def test_no_text_of_a_secret_shows_it(shown: object) -> None:
    assert callable(shown)
    assert "sesame" not in shown(Secret(TEXT))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_is_not_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="not pickled") as caught:
        pickle.dumps(Secret(TEXT), protocol)
    assert "sesame" not in str(caught.value)


def test_a_secret_is_not_copied_and_has_no_hash() -> None:
    with pytest.raises(TypeError):
        copy.copy(Secret(TEXT))
    with pytest.raises(TypeError):
        hash(Secret(TEXT))


def test_secrets_are_equal_by_their_texts() -> None:
    assert Secret(TEXT) == Secret(TEXT)
    assert Secret(TEXT) != Secret(TEXT + ".")
    assert Secret(TEXT) != TEXT
    assert Secret(TEXT).reveal() == TEXT


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_end_of_a_files_line_does_not_count(tmp_path: Path, end: bytes) -> None:
    assert secret_from_file(written(tmp_path / "secret", TEXT.encode() + end)).reveal() == TEXT


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"\n", 0o600, "is empty"),
        (b"\xff\xfe", 0o600, "UTF-8"),
        (b"x" * (MAX_SECRET_BYTES + 1), 0o600, "longer than"),
        (TEXT.encode(), 0o604, "everybody may read"),
        (TEXT.encode(), 0o602, "everybody may read"),
    ],
)
def test_an_unfit_file_is_refused_without_its_content(tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    with pytest.raises(CallerError, match=reason) as caught:
        secret_from_file(written(tmp_path / "secret", content, mode))
    assert str(tmp_path / "secret") in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be read"):
        secret_from_file(tmp_path / "secret")


def test_a_variable_is_read_or_named() -> None:
    assert secret_from_environment("KEY", environment={"KEY": TEXT}).reveal() == TEXT
    for environment in ({}, {"KEY": ""}):
        with pytest.raises(CallerError):
            secret_from_environment("KEY", environment=environment)
