"""The texts of the pages of docs/settings/ and the files of conf/ beside their tables; `settings_pages` makes them."""

from __future__ import annotations

from typing import Final

GENERATED: Final = "This page is generated: `python -m dlspark.cli.settings_pages`."

OVERVIEW: Final = f"""\
# Settings

Every program has a page of its own, with every key, its default and its meaning.

{GENERATED}

{{pages}}

What holds for all:

* Keys are upstream's where upstream has them: Apache BookKeeper's of the ledgers, Apache DistributedLog's of the rest.
  Others are marked as own. An older name, in parentheses behind its key, is understood as well.
* A key that is not listed, a value that cannot be read, and values that contradict each other are errors; a misspelt
  key's error names the nearest one. An upstream key that would change nothing is refused, and the error says why; only
  in a write proxy's file it is ignored, with a warning, unless it is one of security: whoever sets one believes to be
  protected by it.
* A flag is `true`, `yes`, `on`, `1` or `false`, `no`, `off`, `0`, in any case; words are separated by commas.
* A default that is empty means that nothing is set.
"""

LOGS: Final = """\
# Settings of logs and namespaces

Keys are Apache DistributedLog's, unless marked as own. conf/distributedlog.conf has every setting with its default.

{generated}

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

Keys with the prefix `bkc.` are the ledger client's ([ledger-client.md](ledger-client.md)).

## Dynamic settings

([conf/stream.conf](../../conf/stream.conf) is an example.)
Files change the settings of logs that are open. They are checked every `dynamicConfigReloadIntervalSec` seconds, or
when `namespace.reload_settings()` is called; open writers and readers follow at their next decision. What limits a
stream at its write proxy (`rpsHardWriteLimit` and the three like it, [write-proxy.md](write-proxy.md)) may stand in
them, too: the proxy reads it there, and readers and writers without a proxy pass over it.

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

([conf/decider.conf](../../conf/decider.conf) is an example.)
With `featureProviderClass=DynamicConfigurationFeatureProvider` operators switch parts of the library off and on while
it runs, in a base file (`fileFeatureProviderBaseConfigPath`) and an overlay whose lines go over the base file's
(`fileFeatureProviderOverlayConfigPath`, which need not exist). A line is `dl.disable_write_limit=100`; above 0 is on.
They are checked as dynamic settings are. A program may give a provider of its own instead:
`Namespace.open(uri, features=SettableFeatures({"dl.disable_write_limit": 100}))`.

{features}

`dl.disable_durability_enforcement`, an older name of `bkc.repp_disable_durability_enforcement`, has no counterpart. A
switch that nothing looks at is warned of.
"""

LOGS_CONF: Final = """\
# Settings of dlspark, with their defaults. Keys are Apache DistributedLog's, unless marked (own).
#
# Use this file with the environment variable DLSPARK_CONF, or Settings.from_properties(path). Single keys can be set by
# environment variables DLSPARK_SET_<key>, or by options of the interpreter: python -X dlspark.<key>=<value>. Keys
# marked (namespace) cannot be overridden for one log; keys marked (dynamic) change while a log is open, when its
# dynamic settings do. docs/settings/logs.md says more, and lists Apache DistributedLog's keys that are refused.
"""
LOGS_CONF_END: Final = """\
# ---- Ledger client ----

# Keys with the prefix bkc. are handed to the ledger client without it, over what follows from the settings above; they
# are BookKeeper's (docs/settings/ledger-client.md has them all), and hold for a whole namespace. For example:
#bkc.delayEnsembleChange=true
#bkc.explicitLacInterval=100
#bkc.firstSpeculativeReadTimeout=500
#bkc.minNumRacksPerWriteQuorum=3
"""

LEDGER_CLIENT: Final = """\
# Settings of the ledger client

Keys are BookKeeper's, unless marked as own. In a namespace's settings (conf/distributedlog.conf, `DLSPARK_CONF`, or a
mapping in code) they carry the prefix `bkc.`, e.g. `bkc.delayEnsembleChange=true`; as an environment variable
`DLSPARK_SET_bkc_delayEnsembleChange=true`. They override what follows from DistributedLog's own settings, as
`bkcWriteTimeoutSeconds`, and hold for a whole namespace. In Python:
`ClientSettings.from_mapping({"delayEnsembleChange": True})`.

{generated}

`readTimeout` sets `addEntryTimeoutSec` as well, where these are not given themselves.
"""

STORAGE_NODE: Final = """\
# Settings of a storage node

Keys are BookKeeper's where the meaning is the same, unless marked as own. They stand in the properties file that
`dlspark bookie --conf FILE` reads; `dlspark bookie init FILE` writes one, with every key (conf/bookie.conf). The keys
of auto-recovery are in it too, whether it runs inside of the node's process or as one of its own, and so may be those
of [placement](ledger-client.md#placement), for its ledger client.

{generated}
"""

WRITE_PROXY: Final = """\
# Settings of a write proxy

Keys are Apache DistributedLog's, unless marked as own. conf/write_proxy.conf has every setting with its default. How
logs are written (ledgers, segments, locks) is the log library's to say: [logs.md](logs.md). What a write proxy is:
[serving/write-proxy.md](../serving/write-proxy.md).

{generated}

All limits are off unless they are set. Above a soft limit requests are only counted; above a hard one they are refused
with status 517. `bps` stands for bytes a second, `rps` for requests a second. The feature `service_rate_limit_disabled`
switches all of them off while it is on, `service_global_limiter_disabled` those of the whole proxy;
`service_checksum_disabled` has checksums believed, and `region_stop_accept_new_stream` has no other stream taken.
"""
WRITE_PROXY_REFUSED: Final = """\
## Keys of Apache DistributedLog that do nothing here

In a file they are ignored, with a warning that names the line and the reason, so that a proxy starts with a file of
Apache DistributedLog's. The same holds there for the log library's keys that do nothing. By option, or by environment
variable, setting one is an error that gives the reason.
"""
STREAM_LIMITS: Final = "A stream's own file of dynamic settings may set these; they change while it is served."
WRITE_PROXY_CONF: Final = """\
# Settings of a write proxy, with their defaults. Keys are Apache DistributedLog's, unless marked (own).
# docs/settings/write-proxy.md says more, and lists Apache DistributedLog's keys that are ignored.
"""

READ_PROXY: Final = """\
# Settings of a read proxy

[serving/read-proxy.md](../serving/read-proxy.md) says what a read proxy is. These keys stand in the properties file
that `python -m dlspark.serving.read_proxy --conf FILE` reads; they are all this project's own. How the log is read
(`readLACLongPollTimeout`, `alertPositionOnTruncated`, ...) is set by the namespace's settings ([logs.md](logs.md)).

{generated}
"""

THIN_CLIENT: Final = """\
# Settings of the thin client

Keys are those of the builder of Apache DistributedLog's proxy client, unless marked as own. They are given as a
mapping, `ThinClientSettings.from_mapping({"requestTimeoutMs": 5000})`, or as a properties file,
`ThinClientSettings.from_properties(path)`. What they do to a request: [serving/client.md](../serving/client.md).

{generated}
"""

SPARK: Final = """\
# Options of the Spark connector

Format `distributedlog`. Names are read in any case; an unknown name or a value that cannot be read is an error before
anything is read or written.

{generated}
What stands below the table is written by hand, and kept.
"""

REFUSED: Final = """\
## Keys of {upstream} that are refused

They would change nothing here, so that setting one is an error that gives the reason.
"""
