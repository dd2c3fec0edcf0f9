"""The sink through write proxies that are processes: they and the sink's own die, and each row is in its log once.

Of the moments at which an appending process dies two run with --rounds only; in memory `test_sink_through_proxies` has
faults at every request.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.rounds import with_rounds
from helpers.spark.driver_processes import Spawner, fault, finish
from helpers.spark.sink_driver import Plan, read_values
from helpers.spark.typed_frames import Using
from helpers.waiting import wait_until

from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.processes, pytest.mark.torture]
BOTH = pytest.mark.usefixtures("frames")

DEATHS_OF_THE_APPENDER = ["sink.before-mark", "sink.applied", *with_rounds("sink.marked", "sink.before-publish")]
WAYS = (("append", "discover"), ("segments", ""), ("append", ""))
"""Options commitMode and proxy."""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with write proxies, which no other test needs."""
    with Sandbox(tmp_path_factory.mktemp("tier"), nodes=3, proxies=2) as running:
        yield running


def plan_of(tier: Sandbox, place: Path, name: str) -> Plan:
    name = f"{name}-{Using.frames.kind}"
    plan = Plan(
        uri=tier.uri,
        query_id=name,
        logs=(f"{name}-log",),
        batches=6,
        rows=50,
        checkpoint=str(place / "checkpoint"),
        stamped=False,
        empty=0.0,
        mode="append",
        proxy="discover",
        kind=Using.frames.kind,
    )
    plan.declare()
    return plan


def check(plan: Plan) -> None:
    """The log has everything once and in order."""
    txids, values = plan.read(plan.logs[0])
    assert values == plan.expected(plan.logs[0])
    assert txids == sorted(txids)


def owner(tier: Sandbox, log: str) -> int:
    """The number of the proxy that owns a log."""
    with Namespace.open(tier.uri) as namespace, namespace.open_log(log) as opened:
        location = opened.status().owner
    assert location is not None
    return tier.proxies.write_addresses.index(location.rpartition(";")[2])


@BOTH
def test_proxies_that_die_and_come_back_are_followed(tier: Sandbox, tmp_path: Path, spawn: Spawner) -> None:
    plan = plan_of(tier, tmp_path, "followed")
    flag, go_on = tmp_path / "flag", tmp_path / "go-on"
    driver = spawn(plan, 1, fault("sink.before-publish", "wait", flag, 2, until=go_on))
    wait_until(flag.exists, "the batch is named and not sent")
    dying = owner(tier, plan.logs[0])
    tier.proxies.kill(dying)
    try:
        go_on.touch()
        assert finish(driver) == 0
    finally:
        tier.proxies.start_one(dying)
    check(plan)


@BOTH
@pytest.mark.parametrize("point", DEATHS_OF_THE_APPENDER)
def test_an_appending_process_killed_anywhere_leaves_one_copy_in_the_proxys_log(
    tier: Sandbox, tmp_path: Path, spawn: Spawner, point: str
) -> None:
    plan = plan_of(tier, tmp_path, f"killed-{point}")
    flag = tmp_path / "flag"
    assert finish(spawn(plan, 1, fault(point, "die", flag, 1))) == 0
    assert flag.exists()
    check(plan)


@BOTH
@pytest.mark.identity("operator")
def test_ways_that_take_turns_leave_one_copy(tier: Sandbox, tmp_path: Path, spawn: Spawner) -> None:
    """Each driver dies behind a batch, the next one takes another way: the proxy gives the log up where it must, to
    who may administer it (docs/security/rights.md)."""
    plan = plan_of(tier, tmp_path, "turns")
    for number in range(plan.batches - 1):
        mode, proxy = WAYS[number % len(WAYS)]
        this = replace(plan, mode=mode, proxy=proxy)
        flag = tmp_path / f"flag-{number}"
        assert finish(spawn(this, number, fault("sink.published", "die", flag, 1))) == -signal.SIGKILL
    assert finish(spawn(plan, 99)) == 0
    check(plan)


@pytest.mark.spark
def test_a_query_writes_through_announced_and_through_named_proxies(
    tier: Sandbox, spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().selectExpr("string(value)")
    for batch, proxy in enumerate(["discover", ",".join(tier.proxies.write_addresses)], 1):
        writer = rows.writeStream.format("distributedlog").option("uri", tier.uri).option("proxy", proxy)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start("queried")
        query.awaitTermination(120)
        assert query.exception() is None
        assert len(read_values(tier.uri, "queried")[1]) >= 10 * batch
    values = [int(value) for value in read_values(tier.uri, "queried")[1]]
    assert sorted(values) == list(range(len(values)))
    assert owner(tier, "queried") in (0, 1)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"commitMode": "segments"}, "commitMode=segments writes to storage nodes itself"),
        ({"numLogs": "2"}, "numLogs spreads a batch over several logs"),
        ({}, "a batch needs a number"),
        ({"txnAppId": "large", "txnVersion": "1"}, "more than fit into a request"),
    ],
)
def test_what_is_not_one_request_is_refused_before_anything_is_written(
    tier: Sandbox, spark: SparkSession, options: dict[str, str], words: str
) -> None:
    rows = spark.range(2_000).selectExpr("repeat('x', 1000) as value").coalesce(1)
    writer = rows.write.format("distributedlog").mode("append").option("uri", tier.uri).option("proxy", "discover")
    with pytest.raises(Exception, match=words):
        writer.options(**options).save("refused-{}" if "numLogs" in options else "refused")
    assert read_values(tier.uri, "refused")[1] == []
