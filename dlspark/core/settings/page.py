"""The settings as a page for people: docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from dlspark.core.dynamic.features import KNOWN_FEATURES
from dlspark.core.settings.keys import SettingInfo, Value
from dlspark.core.settings.refused_keys import WITHOUT_MEANING
from dlspark.core.settings.registry import DEFAULTS, GROUPS

_INTRODUCTION = """\
# Settings

Keys are Apache DistributedLog's, unless marked as own. A key that is not listed, a value that cannot be read, and
values that contradict each other are errors; a misspelt key's error names the nearest one. Old keys, in parentheses,
are understood as well. conf/distributedlog.conf has every setting with its default.

This page is generated from the registry: `python -m dlspark.core.settings --table`.

## Where values come from

Later ones go over earlier ones:

1. the defaults;
2. a properties file: `DLSPARK_CONF=/path/to/distributedlog.conf`, or `Settings.from_properties(path)`. A path may also
   be a `file:` URL. Settings are not fetched from `http:` or `https:` addresses: whoever answered in the server's
   place would decide where data goes, and no namespace could be opened while the server is away;
3. environment variables, one a key: `DLSPARK_SET_writerOutputBufferSize=0`;
4. options of the interpreter, where Java has system properties: `python -X dlspark.writerOutputBufferSize=0 app.py`;
5. what is given in code: `Namespace.open(uri, {"writerOutputBufferSize": 0})`;
6. what is given for one log: `namespace.open_log("flights", {"logSegmentRollingMinutes": 5})`, for keys that are marked
   in the column *one log*;
7. the log's dynamic settings files, for keys that are marked in the column *dynamic*.

Keys with the prefix `bkc.` are the ledger client's ([client-settings.md](client-settings.md)).

## Dynamic settings

([conf/stream.conf](../conf/stream.conf) is an example.)
Files change the settings of logs that are open. They are looked at every `dynamicConfigReloadIntervalSec` seconds, or
when `namespace.reload_settings()` is called; open writers and readers follow at their next decision.

    streamConfigDirectory=/etc/distributedlog/streams      # <stream>.conf, for the logs of one stream
    streamConfigDefaultPath=/etc/distributedlog/all.conf   # for all logs, as far as their stream's file is silent
    streamConfigRouterClass=IdentityConfigRouter           # which stream a log belongs to

| `streamConfigRouterClass` | log | file |
|---|---|---|
| `IdentityConfigRouter` | `flights_000001` | `flights_000001.conf` |
| `DelimiterStreamPartitionConverter` | `flights_000001` | `flights.conf` |
| `EventbusPartitionConfigRouter` | `eventbus_flights_000001` | `flights.conf` |

A stream's file may appear and disappear at any time; what it does not say, the default file says, else the settings
from above. A file that cannot be used (a key that is not dynamic, a bad value, values that contradict the rest) fails
the opening of the log, or of the namespace for the default file. Later it is refused whole: the values that were read
last stay in force, a warning names the file and the key, and `namespace.counters["configuration-file-rejected"]`
counts. Rename a new file into the old one's place, or write it in place: a content counts when two looks, a fifth of a
second apart, find the same.

## Feature switches

([conf/decider.conf](../conf/decider.conf) is an example.)
With `featureProviderClass=DynamicConfigurationFeatureProvider` operators switch parts of the library off and on while
it runs, in a base file (`fileFeatureProviderBaseConfigPath`) and an overlay whose lines go over the base file's
(`fileFeatureProviderOverlayConfigPath`, which need not exist). A line is `dl.disable_write_limit=100`; above 0 is on.
They are looked at as dynamic settings are. A program may give a provider of its own instead:
`Namespace.open(uri, features=SettableFeatures({"dl.disable_write_limit": 100}))`.

{features}

Apache DistributedLog's other switches have no counterpart: `bkc.repp_disable_durability_enforcement` and
`bkc.<region>.disallow_bookie_placement` belong to its region-aware placement, which is not here;
`dl.disable_durability_enforcement` is an older name of the first. A switch that nothing looks at is warned of.
"""


def settings_page() -> str:
    """The whole page."""
    introduction = _INTRODUCTION.replace("{features}", "\n".join(_features()))
    return "\n".join((introduction, *_groups(), *_refused(), ""))


def _features() -> Iterator[str]:
    yield "| feature | effect |"
    yield "|---|---|"
    for name, effect in KNOWN_FEATURES.items():
        yield f"| `{name}` | {effect}. |"


def _groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"## {group.__doc__}\n"
        yield "| key | default | one log | dynamic | meaning |"
        yield "|---|---|---|---|---|"
        for item in fields(group):
            yield _row(item.metadata["info"])
        yield ""


def _row(info: SettingInfo) -> str:
    key = f"`{info.key}`" + (f" (`{info.old_key}`)" if info.old_key else "")
    meaning = _escaped(info.meaning) + (" (own)" if info.own else "")
    if info.choices:
        meaning += f": {', '.join(f'`{choice}`' for choice in info.choices)}"
    marks = f"{'yes' if info.per_log else ''} | {'yes' if info.dynamic else ''}"
    return f"| {key} | {_text(DEFAULTS[info.key])} | {marks} | {meaning}. |"


def _refused() -> Iterator[str]:
    yield "## Keys of Apache DistributedLog that are refused\n"
    yield "They would change nothing here, so that setting one is an error that gives the reason.\n"
    yield "| key | reason |"
    yield "|---|---|"
    for key, reason in WITHOUT_MEANING.items():
        yield f"| `{key}` | {_escaped(reason)} |"


def _text(default: Value) -> str:
    written = str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{written}`" if written else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
