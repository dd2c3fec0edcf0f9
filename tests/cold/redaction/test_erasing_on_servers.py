"""Records erased, and a log rebuilt from its files, on places for objects that another process can open: with --rounds
on every one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.cold.moved_logs import moved, units_of
from helpers.logs import payloads, written
from helpers.rounds import with_rounds
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.cold.redaction.erasing import LogErasure
from dlspark.cold.redaction.selection import ErasureRequest
from dlspark.cold.restoring.rebuilding import LogRebuild, check_files, find_files
from dlspark.objects.opening import open_store

SEGMENTS = [[b"a0", b"a1"], [b"b0"], [b"c0"]]


@pytest.mark.parametrize("place", ["folder", "seaweed", *with_rounds("moto", "hdfs")], indirect=True)
async def test_records_are_erased_and_a_log_is_rebuilt(place, monkeypatch):
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    cluster = MemoryCluster()
    await cluster.start()
    namespace = await cluster.namespace()
    await written(namespace, "log", SEGMENTS)
    await moved(namespace, "log", place.root, [(1, 2)], options=place.options)
    settings = replace(namespace.services.settings)
    erasure = LogErasure(namespace.services, settings, "log")
    report = await erasure.run(await erasure.plan(ErasureRequest(where="value = 'a1'")))
    assert report.records == 1
    async with await namespace.open_log("log") as log:
        assert await payloads(log) == [b"a0", b"", b"b0", b"c0"]
    (unit,) = await units_of(namespace, "log")
    assert dict(unit.file.options) == dict(place.options)

    store = open_store(place.root, place.options)
    found = await find_files(store, f"{place.root}/")
    assert [one.url for one in found.chosen.files] == [unit.file.url]
    assert len(found.chosen.passed) == 1
    rebuild = LogRebuild(namespace.services, settings, "again", options=place.options)
    await rebuild.run(found, await check_files(store, found), namespace_id="b" * 32)
    async with await namespace.open_log("again") as log:
        assert await payloads(log) == [b"a0", b"", b"b0"]
    await store.close()
    await cluster.stop()
