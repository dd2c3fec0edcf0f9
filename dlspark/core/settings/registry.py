"""All settings by key: what they are, how their values are read, and why a key is refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeAlias

from dlspark.core.settings.allocator_keys import AllocatorKeys
from dlspark.core.settings.configuration_keys import ConfigurationKeys
from dlspark.core.settings.federation_keys import FederationKeys
from dlspark.core.settings.keys import SettingInfo, Value
from dlspark.core.settings.ledger_keys import LedgerKeys, PlacementKeys
from dlspark.core.settings.metadata_keys import MetadataKeys
from dlspark.core.settings.observability_keys import ObservabilityKeys
from dlspark.core.settings.reader_keys import ReaderKeys
from dlspark.core.settings.refused_keys import OLD_KEYS, WITHOUT_MEANING
from dlspark.core.settings.retention_keys import RetentionKeys
from dlspark.core.settings.segment_keys import SegmentKeys
from dlspark.core.settings.writer_keys import WriterKeys
from dlspark.core.settings.zookeeper_keys import ZooKeeperKeys
from dlspark.errors import SettingsError

CLIENT_PREFIX = "bkc."
"""Prefix of the ledger client's keys."""
GROUPS = (
    ConfigurationKeys,
    ZooKeeperKeys,
    FederationKeys,
    MetadataKeys,
    SegmentKeys,
    LedgerKeys,
    PlacementKeys,
    AllocatorKeys,
    WriterKeys,
    RetentionKeys,
    ReaderKeys,
    ObservabilityKeys,
)
"""In the order of the configuration file."""


def describe_settings() -> Iterator[SettingInfo]:
    """All settings, in the order of the configuration file."""
    for group in GROUPS:
        for item in fields(group):
            info: SettingInfo = item.metadata["info"]
            yield info


FIELDS: dict[str, str] = {item.metadata["info"].key: item.name for group in GROUPS for item in fields(group)}
"""The name of each setting's field, by key."""
DEFAULTS: dict[str, Any] = {item.metadata["info"].key: item.default for group in GROUPS for item in fields(group)}
_KEYS: dict[str, SettingInfo] = {info.key: info for info in describe_settings()} | {
    info.old_key: info for info in describe_settings() if info.old_key
}


def lookup(key: str) -> SettingInfo:
    """The setting of a key, or of an old key. Raises SettingsError, with the nearest key or the reason."""
    info = _KEYS.get(key)
    if info is not None:
        return info
    reason = WITHOUT_MEANING.get(OLD_KEYS.get(key, key))
    if reason is not None:
        raise SettingsError(
            f"the setting {key} is Apache DistributedLog's, but has no effect here: {reason}",
            advice="Remove it",
        )
    folded = {known.lower(): known for known in _KEYS}
    nearest = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=0.6)
    advice = f"Did you mean {folded[nearest[0]]}?" if nearest else "conf/distributedlog.conf lists all settings"
    raise SettingsError(f"there is no setting {key!r}", advice=advice)


def dynamic_values(written: Mapping[str, Value]) -> dict[str, Value]:
    """The values, by key, of what a dynamic settings file says.

    Raises SettingsError, also for a key that does not change while a log is open.
    """
    values: dict[str, Value] = {}
    for key, text in written.items():
        info = None if key.startswith(CLIENT_PREFIX) else lookup(key)
        if info is None or not info.dynamic:
            raise SettingsError(
                f"{key} does not change while a log is open",
                advice="Take it out of the dynamic settings file, and set it on opening the namespace or the log",
            )
        if info.key in values:
            raise SettingsError(f"{info.key} is given twice, once as {key}", advice="Keep one of them")
        value = values[info.key] = convert(info, key, text)
        check_value(info, value)
    return values


_TRUE = frozenset(("true", "yes", "on"))
_FALSE = frozenset(("false", "no", "off"))
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_REAL = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20})?")
_WANTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


_Kind: TypeAlias = Literal["bool", "int", "float", "str"]


def _kind(info: SettingInfo) -> _Kind:
    default = DEFAULTS[info.key]
    if isinstance(default, bool):
        return "bool"
    if isinstance(default, int):
        return "int"
    return "float" if isinstance(default, float) else "str"


def convert(info: SettingInfo, key: str, value: Value) -> Value:
    """`value` as the setting's type; texts are parsed as in a properties file."""
    kind = _kind(info)
    if isinstance(value, str):
        converted = _parse(kind, value, fold=bool(info.choices))
    elif kind == "bool" or isinstance(value, bool):
        converted = value if kind == "bool" and isinstance(value, bool) else None
    elif kind == "float":
        converted = float(value)
    else:
        converted = value if kind == "int" and isinstance(value, int) else None
    if converted is None:
        said = f"the value of {key}" if info.secret else f"{key}={value!r}"
        raise SettingsError(f"{said} is not {_WANTED[kind]}", advice=f"{key}: {info.meaning}")
    return converted


def _parse(kind: _Kind, written: str, *, fold: bool) -> Value | None:
    """A written value, or None. `fold`: in lower case."""
    word = written.strip().lower()
    if kind == "bool":
        return True if word in _TRUE else False if word in _FALSE else None
    if kind == "int":
        return int(word) if _INTEGER.fullmatch(word) else None
    if kind == "float":
        return float(word) if _REAL.fullmatch(word) else None
    return word if fold else written


def check_value(info: SettingInfo, value: Value) -> None:
    """Raises SettingsError for a value that is out of bounds, or none of the choices."""
    if info.choices and value not in info.choices:
        # Upstream writes entries of length zero when this is misspelt.
        raise SettingsError(f"{info.key}={value!r} is not one of {', '.join(info.choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool) and not info.minimum <= value <= info.maximum:
        raise SettingsError(f"{info.key}={value} is outside {info.minimum}..{info.maximum}", advice=info.meaning)
