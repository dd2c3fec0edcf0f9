"""A log that is renamed between two looks of a worker: what is missing under its old name deletes nothing."""

from __future__ import annotations

import pytest

from dlspark.cold.moving.machine import Event
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.unit_steps import UnitSteps
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_steps import ColdMovedError
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdAttempt


@pytest.mark.parametrize("anew", [False, True])
async def test_a_finished_unit_of_a_renamed_log_is_not_dead_under_the_old_name(world, anew):
    namespace = await world.namespace()
    await world.write(namespace, "log", 2)
    (unit,) = world.right(await world.mover(namespace, "log").run(at_once=True)).moved
    cold = ColdStore(namespace.services.logs)
    attempt = Versioned(ColdAttempt(unit.attempt, "worker", unit.first, unit.last, unit.file.url, 0), 0)
    steps = UnitSteps(namespace.services, namespace.settings, cold, MoverStores(world.open_store), "log", "worker")
    steps._attempt = attempt
    assert await steps._look() is Event.FOUND_UNIT
    await namespace.rename_log("log", "other")
    if anew:
        await namespace.create_log("log")
        await cold.ensure("log")
        with pytest.raises(ColdMovedError):
            await cold.copies.abandon("log", attempt)
        assert await steps._look() is Event.REFUSED
    assert steps._dead == []
    assert unit.file.url in world.bucket.objects
    other = await cold.marks("other")
    assert other.names(unit.file.url)
    assert not other.dead(unit.file.url)
    if anew:
        assert not (await cold.marks("log")).dead(unit.file.url)
