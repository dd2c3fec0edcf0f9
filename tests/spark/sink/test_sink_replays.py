"""Batches that come again, through the sink's own tasks and commit on real storage nodes: skipped or refused."""

from __future__ import annotations

import logging
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.spark.sink_driver import Plan, columns_in, plan_batches
from helpers.spark.typed_frames import Using

from dlspark.core.sync.namespace import Namespace
from dlspark.spark.errors import ReplayDiffersError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.driver import commit_batch
from dlspark.spark.sink.messages import JobId
from dlspark.spark.sink.segments.task import run_task

if TYPE_CHECKING:
    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("frames")]


class Query:
    """Runs batches of one query as Spark does, each in tasks of the given sizes."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.log = f"replays-{uuid.uuid4().hex[:8]}"
        self.plan = Plan(uri, self.log, (self.log,), 0, 0, "", stamped=True, kind=Using.frames.kind)
        self.plan.declare()

    def run(self, batch: int, values: list[str], tasks: int = 2, **more: str) -> None:
        options = Options({"uri": self.uri, **more}, Scope.SINK_STREAM)
        job = JobId(self.log, batch, uuid.uuid4().hex)
        columns = columns_in(self.plan, options)
        rows = [(0, self.log, value.encode()) for value in values]
        cuts = [len(rows) * task // tasks for task in range(tasks + 1)]
        messages = [
            run_task(options, columns, job, task, 1000, plan_batches(self.plan, columns, rows[begin:end]))
            for task, (begin, end) in enumerate(pairwise(cuts))
        ]
        commit_batch(options, messages, batch, (self.log,))

    def values(self) -> list[str]:
        return [value.decode() for value in self.plan.read(self.log)[1]]


def test_a_replay_is_skipped_however_it_is_cut_and_an_empty_batch_counts(sandbox: Sandbox) -> None:
    query = Query(sandbox.uri)
    batches = [["a", "b", "c"], [], ["d"]]
    for number, values in enumerate(batches):
        query.run(number, values)
    for number, values in enumerate(batches):
        for tasks in (1, 3):
            query.run(number, values, tasks)
    query.run(3, ["e"])
    assert query.values() == ["a", "b", "c", "d", "e"]


def test_another_batch_under_a_published_number_is_refused_unless_loss_is_allowed(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(sandbox.uri)
    query.run(0, ["a", "b"])
    query.run(1, ["c"])
    for number, values in ((0, ["a", "b", "c"]), (0, []), (1, ["c", "d"])):
        with pytest.raises(ReplayDiffersError, match="rolled back") as caught:
            query.run(number, values)
        assert caught.value.log == query.log
    assert query.values() == ["a", "b", "c"]
    with caplog.at_level(logging.WARNING):
        query.run(1, ["c", "d"], failOnDataLoss="false")
    assert "failOnDataLoss is false" in caplog.text
    query.run(2, ["e"])
    assert query.values() == ["a", "b", "c", "e"]


@pytest.mark.parametrize("frames", ["raw"], indirect=True)  # a log that is made anew declares nothing
def test_a_replay_of_an_empty_batch_brings_no_deleted_log_back(sandbox: Sandbox) -> None:
    query = Query(sandbox.uri)
    query.run(0, [], log=query.log)
    with Namespace.open(sandbox.uri) as namespace:
        assert namespace.log_exists(query.log)
        namespace.delete_log(query.log)
        query.run(0, [], log=query.log, compressionType="lz4")  # a session that has not seen the log
        assert not namespace.log_exists(query.log)
        query.run(1, [], log=query.log, compressionType="lz4")
        assert namespace.log_exists(query.log)
