"""docs/connectors.md: every option of Kafka's connector has its row, and every test and option that is named exists."""

from __future__ import annotations

import re

from helpers.documents import pages
from helpers.paths import DOCS

import dlspark.spark
from dlspark.core.settings.settings import describe_settings
from dlspark.spark.options.query_options import ELSEWHERE
from dlspark.spark.options.registry import OPTIONS
from storage_node.settings.client import REGISTRY as CLIENT_REGISTRY

ROWS = list(pages.table_rows(DOCS / "connectors.md"))
KAFKA = """
    kafka.bootstrap.servers assign subscribe subscribePattern startingOffsets startingTimestamp
    startingOffsetsByTimestamp startingOffsetsByTimestampStrategy endingOffsets endingTimestamp
    endingOffsetsByTimestamp failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries
    fetchOffset.retryIntervalMs maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions
    maxRecordsPerPartition groupIdPrefix kafka.group.id includeHeaders topic
    spark.sql.streaming.kafka.useDeprecatedOffsetFetching spark.kafka.consumer.cache.*
    spark.kafka.consumer.fetchedData.cache.* spark.kafka.producer.cache.*
"""
"""The options and confs of Spark's Kafka connector (4.x), but those of delegation tokens, which have one row."""
SPARKS = {"earliest", "latest", "foreachBatch", "from_json", "from_avro", "toTable"}
"""Words in backticks that are Spark's, or an option's values."""


def _named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_option_of_kafkas_connector_has_a_row() -> None:
    named = {name for heading, row in ROWS if heading.startswith("Kafka") for name in _named(row[0])}
    assert set(KAFKA.split()) - named == set()


def test_every_option_of_other_connectors_that_is_refused_with_advice_has_a_row() -> None:
    named = {name.lower() for _, row in ROWS for name in _named(row[0])}
    assert set(ELSEWHERE) - named == set()


def test_every_option_of_ours_is_compared() -> None:
    named = {name for _, row in ROWS for name in _named(row[1])}
    assert {option.key for option in OPTIONS} - named == set()


def test_every_option_setting_and_class_that_is_named_exists() -> None:
    known = {option.key for option in OPTIONS} | SPARKS | {"bkc.<key>", "distributedlog.<key>"}
    known |= {f"bkc.{key}" for key in CLIENT_REGISTRY} | {f"distributedlog.{info.key}" for info in describe_settings()}
    known |= set(dlspark.spark.__all__)
    words = re.compile(r"[a-z]\w*|(?:bkc|distributedlog)\.\S+|[A-Z][a-z]\w*")
    named = {name for _, row in ROWS for name in _named(row[1]) if words.fullmatch(name)}
    assert len(named) > 40
    assert named - known == set()


def test_what_is_there_is_shown_by_a_test_and_what_is_not_has_its_reason() -> None:
    for theirs, here, test in (row for _, row in ROWS):
        assert not here.startswith("no") or here.startswith("no: "), theirs
        assert test != "-" or here.startswith("no: "), theirs


def test_every_test_that_is_named_exists() -> None:
    assert [row for _, row in ROWS if row[2] != "-" and not pages.is_test(row[2])] == []
