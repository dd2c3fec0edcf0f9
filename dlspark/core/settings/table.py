"""The settings as a file for people: conf/distributedlog.conf."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import fields

from dlspark.core.settings.keys import SettingInfo, Value
from dlspark.core.settings.registry import DEFAULTS, GROUPS

WIDTH = 120
_HEAD = """\
# Settings of dlspark, with their defaults. Keys are Apache DistributedLog's, unless marked (own).
#
# Use this file with the environment variable DLSPARK_CONF, or Settings.from_properties(path). Single keys can be set by
# environment variables DLSPARK_SET_<key>, or by options of the interpreter: python -X dlspark.<key>=<value>. Keys
# marked (namespace) cannot be overridden for one log; keys marked (dynamic) change while a log is open, when its
# dynamic settings do. docs/settings.md says more, and lists Apache DistributedLog's keys that are refused.
"""
_TAIL = """\
# ---- Ledger client ----

# Keys with the prefix bkc. are handed to the ledger client without it, over what follows from the settings above; they
# are BookKeeper's (docs/client-settings.md has them all), and hold for a whole namespace. For example:
#bkc.delayEnsembleChange=true
#bkc.explicitLacInterval=100
#bkc.firstSpeculativeReadTimeout=500
#bkc.minNumRacksPerWriteQuorum=3
"""


def configuration_file() -> str:
    """The whole text of conf/distributedlog.conf."""
    return "\n".join((_HEAD, *_groups(), _TAIL))


def _groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"# ---- {group.__doc__} ----\n"
        for item in fields(group):
            info: SettingInfo = item.metadata["info"]
            yield _setting(info, DEFAULTS[info.key])


def _setting(info: SettingInfo, default: Value) -> str:
    marks = [" (namespace)"] * (not info.per_log) + [" (dynamic)"] * info.dynamic + [" (own)"] * info.own
    lines = textwrap.wrap(f"{info.meaning}.{''.join(marks)}", WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    value = str(default).lower() if isinstance(default, bool) else str(default)
    return "".join(f"# {line}\n" for line in lines) + f"{info.key}={value}\n"
