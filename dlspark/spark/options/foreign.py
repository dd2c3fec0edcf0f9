"""Options of other connectors that a user may try here, and where to turn instead.

None of them is taken: the nearest option of ours often means something else, and one that has no meaning for a log must
not look as if it did anything. The names are those of Spark's Kafka connector and of the Pulsar, Pravega, Kinesis,
Event Hubs and Delta sources.
"""

from __future__ import annotations

_URI = 'The cluster is named by option uri: "distributedlog://zookeeper:2181/path"'
_SELECT = "Logs are named by log, subscribe (separated by commas), subscribePattern or assign (a JSON list)"
_SINK_LOG = 'The log to write is named by option log, by save("name"), or row by row by a column log'
_CURSOR = (
    "Readers need no group: each query keeps its position in its own checkpoint. To publish the position, so that "
    "truncation can respect it, give the query a cursorName"
)
_HEADERS = "Records have no key and no headers, only a transaction id and a value: put them into the value"
_KEY = "Records have no key: put it into the value, or route by a column log"
_CLIENT = "Settings of the ledger client go by bkc.<key> (docs/client-settings.md), others by distributedlog.<key>"
_TIMEOUT = "How long a storage node may take to answer a read is set by bkc.readEntryTimeoutSec"
_RETRIES = "Positions come from metadata and are asked for again by themselves; there is nothing to set"
_BY_TIME = "Times are given by startingTimestamp and endingTimestamp, or log by log by startingOffsetsByTimestamp"
_PLACES = "Places are given by startingOffsets, startingTimestamp or startingTransactionId, and the ending... ones"
_LIMIT = "Batches are limited by maxOffsetsPerTrigger (records) or maxBytesPerTrigger"
_CREATE = "A missing log is created by the sink where createStreamIfNotExists is true"
_TASK_READS = "Tasks read storage nodes ahead by themselves; there is nothing to set"
_RECEIVERS = "Readers never lock or evict each other"
_SCHEMA = "A record's value is bytes: decode it with from_json, from_avro or cast"
_RETENTION = "How long records are kept is a setting of the namespace or the log: logSegmentRetentionHours"
_AS_OF = (
    "An older version of a log is read as a table: SELECT * FROM dlog.flights VERSION AS OF '3:1200:7' or TIMESTAMP AS "
    'OF, or spark.read.option(...).table("dlog.flights") (docs/sql.md). Elsewhere endingOffsets, endingTimestamp or '
    "endingTransactionId end a batch"
)
_EXACT = "The sink is always exactly-once"

ELSEWHERE: dict[str, str] = {
    "kafka.bootstrap.servers": _URI,
    "kafka.group.id": _CURSOR,
    "kafka.partitioner.class": _KEY,
    "kafkaconsumer.polltimeoutms": _TIMEOUT,
    "polltimeoutms": _TIMEOUT,
    "fetchoffset.numretries": _RETRIES,
    "fetchoffset.retryintervalms": _RETRIES,
    "groupidprefix": _CURSOR,
    "includeheaders": _HEADERS,
    "topic": f"{_SELECT}. {_SINK_LOG}",
    "topics": _SELECT,
    "topicspattern": _SELECT,
    "topicpattern": _SELECT,
    "service.url": _URI,
    "admin.url": _URI,
    "startingtime": _BY_TIME,
    "endingtime": _BY_TIME,
    "predefinedsubscription": _CURSOR,
    "subscriptionprefix": _CURSOR,
    "maxentriespertrigger": _LIMIT,
    "waitingfornonexistedtopic": "A stream over subscribePattern takes up logs that appear later",
    "allowdifferenttopicschemas": _SCHEMA,
    "controller": _URI,
    "scope": _URI,
    "stream": f"{_SELECT}. {_SINK_LOG}",
    "allow_create_scope": _CREATE,
    "allow_create_stream": _CREATE,
    "start_stream_cut": _PLACES,
    "end_stream_cut": _PLACES,
    "exactly_once": _EXACT,
    "default_retention_duration_milliseconds": _RETENTION,
    "default_retention_size_bytes": _RETENTION,
    "streamname": _SELECT,
    "endpointurl": _URI,
    "startingposition": _PLACES,
    "startingpositions": _PLACES,
    "endingposition": _PLACES,
    "endingpositions": _PLACES,
    "maxfetchrecordspershard": _LIMIT,
    "consumergroup": _CURSOR,
    "maxeventspertrigger": _LIMIT,
    "prefetchcount": _TASK_READS,
    "receivertimeout": _TIMEOUT,
    "operationtimeout": _TIMEOUT,
    "useexclusivereceiver": _RECEIVERS,
    "startingversion": _PLACES,
    "endingversion": _PLACES,
    "maxfilespertrigger": _LIMIT,
    "versionasof": _AS_OF,
    "timestampasof": _AS_OF,
}
"""By the name in lower case."""

_PREFIXES = {
    "kafka.": f"This is not Kafka: no setting of its clients has a meaning here. {_CLIENT}",
    "pulsar.": f"This is not Pulsar: no setting of its clients has a meaning here. {_CLIENT}",
    "kinesis.": f"This is not Kinesis. {_URI}. {_SELECT}. {_PLACES}",
    "eventhubs.": f"This is not an event hub. {_URI}. {_SELECT}. {_PLACES}",
}


def elsewhere(name: str) -> str | None:
    """What to use instead of another connector's option (its name in lower case); None for an unknown name."""
    found = ELSEWHERE.get(name)
    if found is not None:
        return found
    bare = name.partition(".")[2]
    for prefix, words in _PREFIXES.items():
        if name.startswith(prefix):
            return ELSEWHERE.get(bare, words)
    return None
