"""The registry of metadata tables: what `option("metadata", ...)` reads, with columns, types and meanings.

    spark.read.format("distributedlog").option("metadata", "segments").load("flights")

A metadata table shows the namespace as it is when the query is planned. The driver looks once, in ZooKeeper and (where
a column says so) by questions to storage nodes. Tables of logs take the source's options to select logs
(`load("name")`, `subscribe`, `subscribePattern`), and without one have all logs, at any depth; other tables take none
of them. The tables in docs/spark-metadata.md are made from here (`tables_page`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dlspark.spark.errors import OptionError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import PASSED_ON
from dlspark.spark.options.tls import PREFIX
from metadata.foundation.settings import did_you_mean, shown

METADATA_OPTION: Final = "metadata"
_SELECTING: Final = ("subscribe", "subscribePattern")
_TAKEN: Final = frozenset({METADATA_OPTION, "uri", "log", *_SELECTING})
"""Options that have a meaning for a metadata table."""

TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `kind` is its SQL type."""

    name: str
    kind: str
    meaning: str


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """One metadata table. `of_logs`: its rows belong to logs, so that logs can be selected."""

    name: str
    about: str
    columns: tuple[Column, ...]
    of_logs: bool

    @property
    def schema(self) -> StructType:
        """The rows as Spark sees them; every column may be null."""
        return StructType([StructField(one.name, TYPES[one.kind]) for one in self.columns])


LOGS: Final = MetadataTable(
    "logs",
    "One row a log: its extent, and who writes it.",
    (
        Column("log", "string", "the log's name"),
        Column("earliest", "string", "first position that can be read, as `startingOffsets` takes it"),
        Column("latest", "string", "position behind the last record; null where no storage node answers"),
        Column("first_transaction_id", "bigint", "of the first record that can be read; null where there is none"),
        Column("last_transaction_id", "bigint", "of the last record; null where there is none"),
        Column(
            "records", "bigint", "that can be read; null where the writer did not count, or no storage node answers"
        ),
        Column("bytes", "bigint", "stored bytes of these, one replica of them; null where no storage node answers"),
        Column("segments", "bigint", "how many are listed, truncated ones included"),
        Column("open_segment", "bigint", "number of the segment in progress"),
        Column("sealed", "boolean", "whether the log was ended for good"),
        Column("writer", "string", "client id of the writer that holds the log's lock; null: there is none"),
        Column("created_at", "timestamp", "when the log was created, by ZooKeeper's clock"),
        Column("completed_at", "timestamp", "when its newest completed segment was completed"),
        Column("error", "string", "what could not be read, and why; columns that depend on it are null"),
    ),
    of_logs=True,
)

SEGMENTS: Final = MetadataTable(
    "segments",
    "One row a log segment, in the log's order. What is being written is asked of storage nodes: its `last_...`, "
    "`records`, `entries` and `bytes` are as of the last record that is acknowledged, and null where no node answers.",
    (
        Column("log", "string", "the log's name"),
        Column("segment", "bigint", "its sequence number in the log"),
        Column("ledger", "bigint", "id of the BookKeeper ledger that holds it"),
        Column("state", "string", "`in progress`, `completed`, `truncated in part`, `truncated`"),
        Column("first_dlsn", "string", "its first position that truncation has not hidden; null where it hides all"),
        Column("last_dlsn", "string", "position of its last record"),
        Column("first_transaction_id", "bigint", "transaction id of its first record"),
        Column("last_transaction_id", "bigint", "transaction id of its last record; null where it ends the stream"),
        Column("first_timestamp", "timestamp", "the first transaction id read as a time"),
        Column("last_timestamp", "timestamp", "the last one"),
        Column("start_sequence_id", "bigint", "number in the log of its first record; null where it is not assigned"),
        Column("records", "bigint", "users' records in it; 0 where its writer did not count"),
        Column("entries", "bigint", "entries in its ledger"),
        Column("bytes", "bigint", "stored bytes of its ledger, one replica of them; where that is gone, as they were"),
        Column("completed_at", "timestamp", "when it was completed"),
        Column("ensemble_size", "int", "storage nodes that its entries are spread over"),
        Column("write_quorum", "int", "copies of each entry"),
        Column("ack_quorum", "int", "copies that must be on disk before an entry counts"),
        Column("ledger_state", "string", "`OPEN`, `IN_RECOVERY`, `CLOSED`; null: the ledger is gone"),
        Column("nodes", "array<string>", "ids of all storage nodes that have entries of it, in the order of use"),
        Column("region", "int", "id of the region whose writer began it"),
        Column("version", "int", "version of its metadata's format"),
        Column("place", "string", "`hot`: in its ledger alone; `both`: in a cold file, too; `cold`: in the file alone"),
        Column("cold_file", "string", "address of that file; null also where a cold segment has no user record"),
        Column("cold_rows", "bigint", "rows of it in that file"),
        Column("cold_bytes", "bigint", "its part of that file's bytes, by its rows"),
        Column("error", "string", "why storage nodes gave no answer about what is being written"),
    ),
    of_logs=True,
)

CURSORS: Final = MetadataTable(
    "cursors",
    "One row a named position in a log: subscribers of the library, and cursors of streaming queries.",
    (
        Column("log", "string", "the log's name"),
        Column("cursor", "string", "the subscriber's id"),
        Column("position", "string", "the record to be read next; null where none was stored yet"),
        Column("latest", "string", "position behind the log's last record; null where no storage node answers"),
        Column("lag_records", "bigint", "records from the position to the end; null where the writer did not count"),
        Column("lag_bytes", "bigint", "their stored bytes (of the entries, each whole)"),
        Column(
            "lag_ms",
            "bigint",
            "from the transaction id of the first of them to that of the last: milliseconds where ids are times",
        ),
        Column("lost", "boolean", "whether records behind the position have been truncated"),
        Column("reader", "string", "client id of the reader that holds its lock; null: there is none"),
        Column("moved_at", "timestamp", "when the position was stored last, by ZooKeeper's clock"),
        Column("created_at", "timestamp", "when the cursor was created"),
        Column("error", "string", "why storage nodes gave no answer about where the log ends"),
    ),
    of_logs=True,
)

BOOKIES: Final = MetadataTable(
    "bookies",
    "One row a storage node that is registered, or that has a cookie. Each registered one is asked for its space.",
    (
        Column("bookie", "string", "its id"),
        Column("host", "string", "where it listens; null where it is not registered"),
        Column("port", "int", "where it listens"),
        Column("state", "string", "`writable`, `read-only`, or `not registered`: stopped, or cut off from ZooKeeper"),
        Column("answers", "boolean", "whether it answered when it was asked; null where it is not registered"),
        Column("free_bytes", "bigint", "free on its ledger disks, as it says"),
        Column("total_bytes", "bigint", "their size, as it says"),
        Column("registered_at", "timestamp", "when it registered, by ZooKeeper's clock"),
        Column("ledger_directories", "array<string>", "of its cookie"),
        Column("journal_directories", "array<string>", "of its cookie"),
        Column("error", "string", "why it did not answer, or cannot be reached"),
    ),
    of_logs=False,
)

LEDGERS: Final = MetadataTable(
    "ledgers",
    "One row a ledger: those of the selected logs' segments, or, where no log is named, all of the cluster with what "
    "names them in this namespace.",
    (
        Column("ledger", "bigint", "its id"),
        Column("state", "string", "`OPEN`, `IN_RECOVERY`, `CLOSED`; null: gone, or its metadata cannot be read"),
        Column(
            "use",
            "string",
            "`segment`, `made in advance`, `staged by a sink`, `to be deleted`; null: nothing in it names it",
        ),
        Column("log", "string", "the log that it belongs to"),
        Column("segment", "bigint", "number of the segment that it is"),
        Column("last_entry", "bigint", "-1: none; null until it is closed"),
        Column("bytes", "bigint", "stored bytes, one replica of them; null until it is closed"),
        Column("ensemble_size", "int", "storage nodes that its entries are spread over"),
        Column("write_quorum", "int", "copies of each entry"),
        Column("ack_quorum", "int", "copies that must be on disk before an entry counts"),
        Column("digest", "string", "how entries are checked: `CRC32`, `CRC32C`, `HMAC`, `DUMMY`"),
        Column("fragments", "int", "how many ensembles it has had"),
        Column("nodes", "array<string>", "ids of all storage nodes that have entries of it, in the order of use"),
        Column("missing", "array<string>", "of these, those that auto-recovery has marked as lost"),
        Column("created_at", "timestamp", "when its metadata was created, by ZooKeeper's clock"),
        Column("error", "string", "why its metadata cannot be read"),
    ),
    of_logs=True,
)

SINKS: Final = MetadataTable(
    "sinks",
    "One row a sink that has published into the namespace, or has staged ledgers for it.",
    (
        Column("sink", "string", "its id"),
        Column("kind", "string", "`query`: a streaming query; `application`: `txnAppId`; `job`: one batch write"),
        Column("name", "string", "the query's id, the application's name, the job's id"),
        Column("batch", "bigint", "highest batch published into any log; null: none yet"),
        Column("attempt", "string", "id of the attempt that published it"),
        Column("staged", "bigint", "ledgers staged and not published: being written, or left by a failure"),
        Column("staged_from", "bigint", "lowest batch that these are of"),
        Column("published_at", "timestamp", "when it published last, by ZooKeeper's clock; null: never"),
        Column("created_at", "timestamp", "when the sink was made"),
        Column("error", "string", "why its state cannot be read"),
    ),
    of_logs=False,
)

SCHEMA_VERSIONS: Final = MetadataTable(
    "schema_versions",
    "One row a field of each version of the schema that a log declares ([tables.md](tables.md)), nested ones too; none "
    "for a log of bytes.",
    (
        Column("log", "string", "the log's name"),
        Column("version", "int", "number of the version, from 0"),
        Column("current", "boolean", "whether rows are written by it"),
        Column("format", "string", "how records hold rows: `json`, `avro`, `arrow`"),
        Column("field", "int", "the field's id, which it keeps where it is renamed"),
        Column("column", "string", "its name; of a nested one the path to it, `address.town`, `tags.element`"),
        Column("type", "string", "what it holds, in Iceberg's words"),
        Column("required", "boolean", "whether each row has a value of it"),
        Column("default", "string", "value of rows without it, in JSON; null: none"),
        Column("comment", "string", "what was said of it for people"),
        Column("gives_ids", "boolean", "whether records have their transaction ids from it"),
        Column("error", "string", "why what the log declares cannot be read"),
    ),
    of_logs=True,
)

COLD_FILES: Final = MetadataTable(
    "cold_files",
    "One row a run of segments that lie in one file of [cold storage](spark.md#cold-storage), or are being copied into "
    "one, in the log's order; none for a log that has nothing cold.",
    (
        Column("log", "string", "the log's name"),
        Column("first_segment", "bigint", "number of its first segment"),
        Column("last_segment", "bigint", "number of its last segment"),
        Column(
            "state",
            "string",
            "`being copied`; `both`: storage nodes have its segments, too; `cold`: the file is the only copy; "
            "`being deleted`",
        ),
        Column("file", "string", "the file's address; null where no segment has a user record"),
        Column("bytes", "bigint", "the file's size; null while it is being copied"),
        Column("ledger_bytes", "bigint", "stored bytes of its segments' ledgers, one replica of them"),
        Column("rows", "bigint", "rows in the file: users' records, or rows of records that hold several"),
        Column("schema_version", "int", "version of the log's schema whose columns it has; null without a schema"),
        Column("redacted", "boolean", "whether records were erased from it"),
        Column("sha256", "string", "SHA-256 of the file, hexadecimal"),
        Column("attempt", "string", "id of the copy that made it; part of the file's name"),
        Column("replaced", "array<string>", "addresses of files that it stands in place of, and that are still there"),
        Column("worker", "string", "who copies, while it is being copied"),
        Column("started_at", "timestamp", "when copying began, by the worker's clock; null once it is copied"),
        Column("finished_at", "timestamp", "when it was copied, by the worker's clock"),
        Column("hot_deleted_at", "timestamp", "when the copies on storage nodes were given up"),
        Column("error", "string", "why what the log says of its files cannot be read"),
    ),
    of_logs=True,
)

TABLES: Final[dict[str, MetadataTable]] = {
    table.name: table for table in (LOGS, SEGMENTS, CURSORS, BOOKIES, LEDGERS, SINKS, SCHEMA_VERSIONS, COLD_FILES)
}


def table_named(name: str) -> MetadataTable:
    """Return the table of this name, in any case; OptionError, with the nearest name, if there is none."""
    found = TABLES.get(name.strip().lower())
    if found is not None:
        return found
    raise OptionError(
        f"No metadata table {shown(name)}", advice=f"{did_you_mean(name, TABLES)}There are: {', '.join(TABLES)}"
    )


def metadata_table(name: str, log: str | None = None) -> tuple[StructType, dict[str, str]]:
    """Return the schema of a metadata table, and the options that read it: of one log, or of all there is.

    Raises OptionError for a table that does not exist, or for one log of a table that has none.
    """
    table = table_named(name)
    if log is None:
        return table.schema, {METADATA_OPTION: table.name}
    if not table.of_logs:
        raise _without_logs_error(table)
    return table.schema, {METADATA_OPTION: table.name, "log": log}


def requested(options: Options) -> MetadataTable | None:
    """Return the metadata table that a read asks for; None where it reads logs.

    Raises OptionError for options that have no meaning for the table.
    """
    name = options.text(METADATA_OPTION)
    if name is None:
        return None
    table = table_named(name)
    idle = {option for option in options.given_names() - _TAKEN if not option.startswith((*PASSED_ON, PREFIX))}
    if idle:
        raise OptionError(
            f"{', '.join(sorted(idle))} have no meaning for the metadata table {table.name}",
            advice=(
                f"Remove them; a metadata table takes uri, which logs ({', '.join(('log', *_SELECTING))}), and "
                f"settings of clients ({', '.join(f'{prefix}...' for prefix in (*PASSED_ON, PREFIX))})"
            ),
        )
    if not table.of_logs and (options.one_log() is not None or any(map(options.given, _SELECTING))):
        raise _without_logs_error(table)
    return table


def refuse_stream(options: Options) -> None:
    """Raise OptionError where a streaming read asks for a metadata table."""
    name = options.text(METADATA_OPTION)
    if name is not None:
        raise OptionError(
            f"The metadata table {table_named(name).name} cannot be streamed: it is what there is at one moment",
            advice="Use spark.read, in foreachBatch if it is to be read again and again",
        )


def _without_logs_error(table: MetadataTable) -> OptionError:
    return OptionError(
        f"The metadata table {table.name} is of the whole namespace; a log has none of its own",
        advice=f"Name no log. Tables of logs: {', '.join(one.name for one in TABLES.values() if one.of_logs)}",
    )


def tables_page() -> str:
    """Return the tables for people: the generated part of docs/spark-metadata.md."""
    parts = []
    for table in TABLES.values():
        parts.append(f"### `{table.name}`\n\n{table.about}\n\n| column | type | meaning |\n|---|---|---|\n")
        parts += [f"| `{one.name}` | {one.kind} | {one.meaning} |\n" for one in table.columns]
        parts.append("\n")
    return "".join(parts)
