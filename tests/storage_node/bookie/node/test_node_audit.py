"""A node's process keeps the audit trail that its file asks for, and does not start without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metadata.foundation.errors import CallerError
from metadata.security.audit import NOWHERE
from storage_node.bookie.__main__ import _audit
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import NodeFile

DIRECTORIES = {"journalDirectories": "/j", "ledgerDirectories": "/l"}


def settings(**values: str) -> BookieSettings:
    return NodeFile(DIRECTORIES | values).bookie()


def test_what_is_noted_is_in_the_file_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    with _audit(settings(auditLog=str(file), auditAllowed="all", auditLogMaxMB="1")) as audit:
        audit.note("connection", allowed=True, reason="a certificate", principal="node-1", peer="10.0.0.1:1")
    assert [json.loads(line)["principal"] for line in file.read_text().splitlines()] == ["node-1"]
    with _audit(settings(auditLog=str(file))):
        pass  # closed by the first one: it is free again


def test_without_the_key_there_is_none() -> None:
    with _audit(settings()) as audit:
        assert audit is NOWHERE


def test_a_trail_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be written"), _audit(settings(auditLog=str(tmp_path / "no" / "a"))):
        pass
    with pytest.raises(BookieConfigurationError, match="auditAllowed"):
        settings(auditAllowed="some")
