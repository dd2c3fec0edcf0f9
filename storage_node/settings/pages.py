"""The settings of the storage floor as files for people.

python -m storage_node.settings > conf/bookie.conf
python -m storage_node.settings --table > docs/client-settings.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from metadata.foundation.settings import (
    Setting,
    defaults_of,
    markdown_table,
    properties_entry,
    settings_of,
    written,
)
from storage_node.errors import BookieConfigurationError
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.client import WITHOUT_MEANING, ClientSettings
from storage_node.settings.placement import PlacementSettings

BOOKIE_CONF: Final = "conf/bookie.conf, which `dlspark bookie init` writes,"

_HEAD: Final = """\
# A storage node's configuration: every key that is honoured, with its default. Keys are Apache BookKeeper's where the
# meaning is the same, unless marked (own); an unknown key is an error. Start the node with:
# dlspark bookie --conf conf/bookie.conf
"""
_EXAMPLES: Final = {
    "journalDirectories": "/var/lib/dlspark/journal",
    "ledgerDirectories": "/var/lib/dlspark/ledgers",
}
"""What stands in conf/bookie.conf for what has no default."""

_INTRODUCTION: Final = """\
# Settings of the ledger client

Keys are BookKeeper's where nothing else is said. In a namespace's settings (conf/distributedlog.conf, `DLSPARK_CONF`,
or a mapping in code) they carry the prefix `bkc.`, e.g. `bkc.delayEnsembleChange=true`; as an environment variable
`DLSPARK_SET_bkc_delayEnsembleChange=true`. They override what follows from DistributedLog's own settings, as
`bkcWriteTimeoutSeconds`, and hold for a whole namespace. A key that is not listed, or a value that cannot be read, is
an error. In Python: `ClientSettings.from_mapping({"delayEnsembleChange": True})`.

This page is generated from the settings: `python -m storage_node.settings --table`.
"""
_AFTER_CLIENT: Final = """
`readTimeout` sets `addEntryTimeoutSec` as well, where these are not given themselves.

## Placement
"""
_BEFORE_REFUSED: Final = """
## Keys without meaning here

They are refused rather than ignored without a word.
"""


def bookie_conf(values: Mapping[str, str] | None = None) -> str:
    """The whole text of conf/bookie.conf, with `values` by key in the places of the defaults.

    Raises BookieConfigurationError for a key that it does not have.
    """
    values = values or {}
    infos = [*settings_of(BookieSettings).values(), *settings_of(AutoRecoverySettings).values()]
    for key in values.keys() - {info.key for info in infos}:
        raise BookieConfigurationError(f"bookie.conf has no key {key}", advice="Name one of the keys that it has")
    defaults = defaults_of(BookieSettings) | defaults_of(AutoRecoverySettings) | _EXAMPLES
    shown = defaults | {key: value.replace("\\", "\\\\") for key, value in values.items()}
    return "".join((_HEAD, *(_entry(info, shown[info.key]) for info in infos)))


def _entry(info: Setting, value: object) -> str:
    title = f"\n# ---- {info.section} ----\n\n" if info.section else ""
    return title + properties_entry(f"{info.meaning}.{' (own)' * info.own}", info.key, value)


def client_page() -> str:
    """The whole page docs/client-settings.md."""
    head = ("key", "default", "meaning")
    tables = (
        markdown_table(head, _rows(ClientSettings)),
        markdown_table(head, _rows(PlacementSettings)),
        markdown_table(("key", "why"), ((f"`{key}`", why) for key, why in sorted(WITHOUT_MEANING.items()))),
    )
    parts = zip((_INTRODUCTION, _AFTER_CLIENT, _BEFORE_REFUSED), tables, strict=True)
    return "".join(f"{text}\n" + "".join(f"{line}\n" for line in table) for text, table in parts)


def _rows(owner: type) -> Iterator[tuple[str, str, str]]:
    defaults = defaults_of(owner)
    for info in settings_of(owner).values():
        own = " (not one of BookKeeper's keys)" if info.own else ""
        also = f" Also `{'`, `'.join(info.other_keys)}`." if info.other_keys else ""
        yield f"`{info.key}`", f"`{written(defaults[info.key]) or ' '}`", f"{info.meaning}{own}.{also}"
