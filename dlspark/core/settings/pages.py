"""The settings as files for people.

python -m dlspark.core.settings > conf/distributedlog.conf
python -m dlspark.core.settings --table > docs/settings.md
"""

from __future__ import annotations

from collections.abc import Iterator

from dlspark.core.dynamic.features import KNOWN_FEATURES
from dlspark.core.settings.log_setting import LogSetting
from dlspark.core.settings.settings import WITHOUT_MEANING, Settings
from metadata.foundation.settings import defaults_of, markdown_table, properties_entry, settings_of, written

GROUPS = tuple(reversed(Settings.__bases__))
"""In the order of the configuration file."""
DEFAULTS = defaults_of(Settings)

_CONF_HEAD = """\
# Settings of dlspark, with their defaults. Keys are Apache DistributedLog's, unless marked (own).
#
# Use this file with the environment variable DLSPARK_CONF, or Settings.from_properties(path). Single keys can be set by
# environment variables DLSPARK_SET_<key>, or by options of the interpreter: python -X dlspark.<key>=<value>. Keys
# marked (namespace) cannot be overridden for one log; keys marked (dynamic) change while a log is open, when its
# dynamic settings do. docs/settings.md says more, and lists Apache DistributedLog's keys that are refused.
"""
_CONF_TAIL = """\
# ---- Ledger client ----

# Keys with the prefix bkc. are handed to the ledger client without it, over what follows from the settings above; they
# are BookKeeper's (docs/client-settings.md has them all), and hold for a whole namespace. For example:
#bkc.delayEnsembleChange=true
#bkc.explicitLacInterval=100
#bkc.firstSpeculativeReadTimeout=500
#bkc.minNumRacksPerWriteQuorum=3
"""


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
   be a `file:` URL. Settings are not fetched from `http:` or `https:` addresses: a host that answers in the server's
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
Files change the settings of logs that are open. They are checked every `dynamicConfigReloadIntervalSec` seconds, or
when `namespace.reload_settings()` is called; open writers and readers follow at their next decision. What limits a
stream at its write proxy (`rpsHardWriteLimit` and the three like it, docs/proxy-settings.md) may stand in them, too:
the proxy reads it there, and readers and writers without a proxy pass over it.

    streamConfigDirectory=/etc/distributedlog/streams      # <stream>.conf, for the logs of one stream
    streamConfigDefaultPath=/etc/distributedlog/all.conf   # for all logs; a key in their stream's file wins
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
They are checked as dynamic settings are. A program may give a provider of its own instead:
`Namespace.open(uri, features=SettableFeatures({"dl.disable_write_limit": 100}))`.

{features}

Apache DistributedLog's other switches have no counterpart: `bkc.repp_disable_durability_enforcement` and
`bkc.<region>.disallow_bookie_placement` belong to its region-aware placement, which is not here;
`dl.disable_durability_enforcement` is an older name of the first. A switch that nothing looks at is warned of.
"""


def configuration_file() -> str:
    """The whole text of conf/distributedlog.conf."""
    return "\n".join((_CONF_HEAD, *_conf_groups(), _CONF_TAIL))


def _conf_groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"# ---- {group.__doc__} ----\n"
        for info in _settings(group):
            marks = " (namespace)" * (not info.per_log) + " (dynamic)" * info.dynamic + " (own)" * info.own
            yield properties_entry(f"{info.meaning}.{marks}", info.key, DEFAULTS[info.key])


def settings_page() -> str:
    """The whole page docs/settings.md."""
    features = markdown_table(
        ("feature", "effect"), ((f"`{name}`", f"{effect}.") for name, effect in KNOWN_FEATURES.items())
    )
    return "\n".join((_INTRODUCTION.replace("{features}", "\n".join(features)), *_groups(), *_refused(), ""))


def _groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"## {group.__doc__}\n"
        yield from markdown_table(("key", "default", "one log", "dynamic", "meaning"), map(_row, _settings(group)))
        yield ""


def _settings(group: type) -> Iterator[LogSetting]:
    return (info for info in settings_of(group).values() if isinstance(info, LogSetting))


def _row(info: LogSetting) -> tuple[str, ...]:
    key = " ".join((f"`{info.key}`", *(f"(`{old}`)" for old in info.other_keys)))
    default = written(DEFAULTS[info.key])
    meaning = info.meaning + (" (own)" if info.own else "")
    if info.choices:
        meaning += f": {', '.join(f'`{choice}`' for choice in info.choices)}"
    return (
        key,
        f"`{default}`" if default else "",
        "yes" if info.per_log else "",
        "yes" if info.dynamic else "",
        f"{meaning}.",
    )


def _refused() -> Iterator[str]:
    yield "## Keys of Apache DistributedLog that are refused\n"
    yield "They would change nothing here, so that setting one is an error that gives the reason.\n"
    yield from markdown_table(("key", "reason"), ((f"`{key}`", why) for key, why in WITHOUT_MEANING.items()))
