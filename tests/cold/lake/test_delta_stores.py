"""Delta tables in S3: what makes commits safe there is seen to, and a conflict there says nothing of who was first."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path

import pytest
from helpers.cold.fault_proxy import FaultPlan, HttpFault
from helpers.cold.lake_tables import use_keys
from helpers.cold.lake_worlds import LakeModel
from helpers.cold.proxy_process import proxy_process
from helpers.cold.servers import BUCKET, REGION, S3Server

from dlspark.cold.lake.columns import table_columns
from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.planning import plan_changes
from dlspark.cold.lake.targets import TableUnclearError, TableUnreachableError
from metadata.distributedlog.cold_tables import DELTA, ColdTable, table_logs
from metadata.foundation.errors import CallerError

COLUMNS = table_columns({"flights": None})


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)


def table_at(endpoint: str, **options: str) -> ColdTable:
    """Return the declaration of a table below a prefix of its own."""
    told = {"endpoint": endpoint, "region": REGION, "allow_http": "true", **options}
    place = f"s3://{BUCKET}/{uuid.uuid4().hex}/flights"
    return ColdTable("flights", "id", DELTA, place, "", table_logs(["flights"]), told)


def keys_below(server: S3Server, table: ColdTable) -> list[str]:
    prefix = table.place.removeprefix(f"s3://{BUCKET}/")
    found = server.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return [one["Key"].removeprefix(prefix) for one in found.get("Contents", ())]


def test_a_store_that_makes_an_object_twice_gets_no_table(moto):
    with proxy_process(moto.endpoint, FaultPlan(unknown=b"if-none-match")) as proxy:
        table = table_at(proxy.endpoint)
        with pytest.raises(CallerError, match="makes an object twice"):
            open_table(table).ensure(COLUMNS)
        assert keys_below(moto, table) == []


def test_a_store_that_makes_it_once_is_left_with_the_table_alone(moto):
    table = table_at(moto.endpoint)
    target = open_table(table)
    target.ensure(COLUMNS)
    assert keys_below(moto, table) == ["/_delta_log/00000000000000000000.json"]
    assert target.load().rows == 0


def test_a_store_that_cannot_be_tried_gets_no_table(moto):
    plan = FaultPlan(random.Random(0), {HttpFault.REFUSED_503: 1.0}, "^PUT")
    with proxy_process(moto.endpoint, plan) as proxy:
        table = table_at(proxy.endpoint)
        with pytest.raises(TableUnreachableError, match="no table was made"):
            open_table(table).ensure(COLUMNS)
        assert keys_below(moto, table) == []


def test_commits_are_conditional_whatever_the_environment_says(moto, monkeypatch):
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    target = open_table(table_at(moto.endpoint))
    target.ensure(COLUMNS)
    assert target.load().rows == 0


def test_a_declaration_that_gives_conditions_up_is_refused():
    with pytest.raises(CallerError, match="would replace each other"):
        open_table(table_at("http://127.0.0.1:1", AWS_Conditional_Put="disabled"))
    open_table(table_at("http://127.0.0.1:1", conditional_put="ETag"))


@pytest.mark.parametrize("fault", [HttpFault.DONE_500, HttpFault.CUT_AFTER])
async def test_a_commit_that_its_own_repetition_conflicts_with_is_in_doubt(moto, tmp_path: Path, fault):
    """deltalake repeats the request, and the store says that the version is there: it is this one."""
    model = LakeModel(tmp_path, random.Random(1), moto)
    unit = model.add()
    plan = FaultPlan()
    plan.order(r"^PUT \S+/_delta_log/0*1\.json", fault)
    with proxy_process(moto.endpoint, plan) as proxy:
        table = table_at(proxy.endpoint)
        target = open_table(table)
        await asyncio.to_thread(target.ensure, COLUMNS)
        state = target.load()
        changes = plan_changes(state, await model.logs(table))
        with pytest.raises(TableUnclearError, match="by another commit, or by this one"):
            target.commit(state, changes, await model.figures(changes))
        assert proxy.met() == {fault: 1}
        after = target.load()
        assert (after.watermarks["log-id"], after.rows) == (unit.last, sum(model.rows.values()))
        assert not plan_changes(after, await model.logs(table))
