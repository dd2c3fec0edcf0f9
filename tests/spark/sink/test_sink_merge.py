"""A batch of more segments than one ZooKeeper transaction holds, on real storage nodes: merged, whole and in order."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from helpers.spark.sink_driver import Plan, columns_in, plan_batches
from helpers.spark.typed_frames import Using

from dlspark.core.runtime import Runtime
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.driver import commit_batch
from dlspark.spark.sink.messages import JobId
from dlspark.spark.sink.segments import commit as sink_commit
from dlspark.spark.sink.segments.task import run_task
from dlspark.spark.sink.session import open_session

if TYPE_CHECKING:
    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("frames")]

TASKS = 12
ROWS = 40


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_segments_of_many_tasks_are_merged_into_one_multi(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, stamped: bool, compression: str
) -> None:
    monkeypatch.setattr(sink_commit, "SURELY_FITS", 1)
    monkeypatch.setattr(sink_commit, "MAX_MULTI_BYTES", 7_500)
    options = Options({"uri": sandbox.uri, "compressionType": compression}, Scope.SINK_STREAM)
    name = f"merged-{uuid.uuid4().hex[:8]}"
    logs = [f"{name}-{number}" for number in range(2)]
    job = JobId(name, 0, uuid.uuid4().hex)
    plan = Plan(sandbox.uri, name, tuple(logs), 1, TASKS * ROWS, "", stamped, kind=Using.frames.kind)
    plan.declare()
    columns = columns_in(plan, options)
    rows = [(number, logs[number % 2], f"row {number} ".encode() * (number % 90)) for number in range(TASKS * ROWS)]
    messages = [
        run_task(options, columns, job, task, 1000, plan_batches(plan, columns, rows[task * ROWS : (task + 1) * ROWS]))
        for task in range(TASKS)
    ]
    assert sum(len(message.segments) for message in messages) == 2 * TASKS
    commit_batch(options, messages, 0)
    for place, log in enumerate(logs):
        txids, values = plan.read(log)
        assert values == [value for _, _, value in rows[place::2]]
        assert txids == ([1000] * len(values) if stamped else list(range(place, TASKS * ROWS, 2)))

    async def look() -> tuple[int, int]:
        session = await open_session(options)
        segments = [await session.namespace.services.logs.segments(log) for log in logs]
        return sum(map(len, segments)), len(await session.sinks.staged(name))

    segments, staged = Runtime.shared().run(look())
    assert 2 <= segments < 2 * TASKS
    assert staged == 0
