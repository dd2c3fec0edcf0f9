"""The settings of the storage floor as a file, a storage node's: how it is read (`NodeFile`), and how it is written.

One file, conf/bookie.conf, has the settings of a bookie, those of auto-recovery, which runs inside of the node's
process or as a process of its own, and placement's, for the ledger client that auto-recovery works with. Each program
takes what it needs; a key that belongs to none of them is an error for all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from metadata.foundation.errors import CallerError
from metadata.foundation.private_files import private_opener
from metadata.foundation.properties import read_properties
from metadata.foundation.settings import (
    WORDS,
    Registry,
    Setting,
    defaults_of,
    properties_entry,
    settings_of,
)
from metadata.security.audit import AuditKeys
from metadata.security.other_keys import SECURITY_ELSEWHERE
from metadata.security.sasl.settings import ClientProofSettings, NodeProofSettings, SaslSettings
from metadata.security.settings import AdmissionSettings, SecuritySettings
from storage_node.errors import BookieConfigurationError
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.client import ClientSettings
from storage_node.settings.http import HttpTlsSettings
from storage_node.settings.placement import PlacementSettings

BOOKIE_CONF: Final = "conf/bookie.conf, which `dlspark bookie init` writes,"
REGISTRY: Final = Registry(
    [
        BookieSettings,
        HttpTlsSettings,
        AutoRecoverySettings,
        PlacementSettings,
        SecuritySettings,
        AdmissionSettings,
        SaslSettings,
        NodeProofSettings,
        ClientProofSettings,
        AuditKeys,
    ],
    BookieConfigurationError,
    page=BOOKIE_CONF,
    refused=SECURITY_ELSEWHERE,
)
_FRAME_BYTES: Final = "nettyMaxFrameSizeBytes"
"""The bookie's key, which holds for the client as well."""
_METADATA_KEYS: Final = ("zkServers", "zkLedgersRootPath", "zkTimeout", "bookieId")
_PLAIN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Where the metadata is: what a process needs of the bookie's keys that is auto-recovery alone."""

    zk_servers: str = "127.0.0.1:2181"
    zk_ledgers_root_path: str = "/ledgers"
    zk_timeout_ms: int = 10_000
    bookie_id: str = ""
    """The name under which it stands for election and takes locks; empty: this host's."""


class NodeFile:
    """Which settings does a node's file give? Values are read, and checked, when a program asks for its settings.

    Args:
        values: the keys and texts of the file.
        path: the place that errors name.

    Raises:
        BookieConfigurationError: there is a key that no program has.
    """

    def __init__(self, values: Mapping[str, str], path: str | None = None) -> None:
        """Hold a file's values."""
        self._values = values
        self._path = path
        with self._errors():
            self._owners = {key: REGISTRY.find(key)[0] for key in values}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> NodeFile:
        """Read a properties file. Raises BookieConfigurationError."""
        return cls(read_properties(path, BookieConfigurationError, named_by="--conf"), os.fspath(path))

    def bookie(self) -> BookieSettings:
        """Return the storage node's own settings. Raises BookieConfigurationError."""
        with self._errors():
            given = self._given(BookieSettings)
            for name, info in settings_of(BookieSettings).items():
                if info.kind is WORDS and name not in given:
                    raise BookieConfigurationError(f"{info.key} is not set", advice=f"{info.key}: {info.meaning}")
            admission = AdmissionSettings(**self._given(AdmissionSettings))  # type: ignore[arg-type]
            proofs = NodeProofSettings(**self._given(NodeProofSettings), sasl=self._sasl())  # type: ignore[arg-type]
            audit = AuditKeys(**self._given(AuditKeys))  # type: ignore[arg-type]
            http = HttpTlsSettings(**self._given(HttpTlsSettings))  # type: ignore[arg-type]
            return BookieSettings(
                **given,  # type: ignore[arg-type]
                security=self.security(),
                admission=admission,
                proofs=proofs,
                audit=audit,
                http_tls=http,
            )

    def auto_recovery(self) -> AutoRecoverySettings:
        """Return auto-recovery's settings, with those of its ledger client. Raises BookieConfigurationError."""
        with self._errors():
            placement = PlacementSettings(**self._given(PlacementSettings))  # type: ignore[arg-type]
            # As upstream's auto-recovery: a client of the system, whose section is the auditor's.
            given = {"role": "system"} | self._given(ClientProofSettings)
            proofs = ClientProofSettings(**given, sasl=self._sasl())  # type: ignore[arg-type]
            client = ClientSettings(placement=placement, security=self.security(), proofs=proofs)
            if _FRAME_BYTES in self._values:
                client = ClientSettings.from_mapping({_FRAME_BYTES: self._values[_FRAME_BYTES]}, client)
            return AutoRecoverySettings(**self._given(AutoRecoverySettings), client=client)  # type: ignore[arg-type]

    def security(self) -> SecuritySettings:
        """Return what the node, and the ledger client of its auto-recovery, prove themselves with.

        Raises BookieConfigurationError.
        """
        with self._errors():
            return SecuritySettings(**self._given(SecuritySettings))  # type: ignore[arg-type]

    def _sasl(self) -> SaslSettings:
        return SaslSettings(**self._given(SaslSettings))  # type: ignore[arg-type]

    def metadata(self) -> MetadataSettings:
        """Return where the metadata is. Raises BookieConfigurationError."""
        with self._errors():
            return MetadataSettings(**self._given(BookieSettings, _METADATA_KEYS))  # type: ignore[arg-type]

    def _given(self, owner: type, keys: Collection[str] | None = None) -> dict[str, object]:
        """Return the values for one of the classes, by the name of the field; of some `keys` only, if there are any."""
        texts = {
            key: text
            for key, text in self._values.items()
            if self._owners[key] is owner and (keys is None or key in keys)
        }
        return REGISTRY.read_all(texts).get(owner, {})

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors into BookieConfigurationErrors, which name the file."""
        try:
            yield
        except CallerError as error:
            raise BookieConfigurationError(error.message, advice=error.advice, path=self._path) from error


def write_node_file(path: Path, values: Mapping[str, str]) -> None:
    """Write a new node's file: conf/bookie.conf with `values` by key. Its directory is made if need be.

    Raises BookieConfigurationError for a key that the file does not have and for what no node would start with; where
    something is there already: it is not touched; and where the file cannot be written: none is left then.
    """
    for key, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise BookieConfigurationError(
                f"{key}={value!r} cannot stand in a properties file as it is",
                advice="Use printable ASCII without spaces at the ends",
            )
    text = bookie_conf(values)
    file = NodeFile(values)
    file.bookie()
    file.auto_recovery()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # For its owner alone from its first moment: a later value may be a password of a key store.
        with open(path, "x", encoding="ascii", opener=private_opener) as new:
            _write_whole(new, path, text)
    except FileExistsError as error:
        raise BookieConfigurationError(
            "there is a file already; it was not touched", path=str(path), advice="Name another place, or remove it"
        ) from error
    except OSError as error:
        raise BookieConfigurationError(
            f"the configuration cannot be written: {error.strerror or error}",
            path=str(path),
            advice="Name another place",
        ) from error


def _write_whole(file: TextIO, path: Path, text: str) -> None:
    try:
        file.write(text)
        file.flush()
    except OSError:
        path.unlink()
        raise


# ------------------------------------------------------------------------------------ generated

_HEAD: Final = """\
# A storage node's configuration: every key that is honoured, with its default. Keys are Apache BookKeeper's where the
# meaning is the same, unless marked (own); an unknown key is an error. Start the node with:
# dlspark bookie --conf conf/bookie.conf
"""
_IN_FILE: Final = (
    BookieSettings,
    HttpTlsSettings,
    SecuritySettings,
    AdmissionSettings,
    SaslSettings,
    NodeProofSettings,
    ClientProofSettings,
    AuditKeys,
    AutoRecoverySettings,
)
_EXAMPLES: Final = {
    "journalDirectories": "/var/lib/dlspark/journal",
    "ledgerDirectories": "/var/lib/dlspark/ledgers",
}
"""The texts in conf/bookie.conf of settings without a default."""


def bookie_conf(values: Mapping[str, str] | None = None) -> str:
    """Return the whole text of conf/bookie.conf, with `values` by key in the places of the defaults.

    Raises BookieConfigurationError for a key that it does not have.
    """
    values = values or {}
    infos = [info for owner in _IN_FILE for info in settings_of(owner).values()]
    for key in values.keys() - {info.key for info in infos}:
        raise BookieConfigurationError(f"bookie.conf has no key {key}", advice="Name one of the keys that it has")
    defaults = {key: value for owner in _IN_FILE for key, value in defaults_of(owner).items()} | _EXAMPLES
    shown = defaults | {key: value.replace("\\", "\\\\") for key, value in values.items()}
    return "".join((_HEAD, *(_entry(info, shown[info.key]) for info in infos)))


def _entry(info: Setting, value: object) -> str:
    title = f"\n# ---- {info.section} ----\n\n" if info.section else ""
    return title + properties_entry(f"{info.meaning}.{' (own)' * info.own}", info.key, value)
