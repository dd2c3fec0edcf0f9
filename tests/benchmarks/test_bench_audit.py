"""The measurement of the auditor: that it measures what it says."""

from __future__ import annotations

import pytest

from benchmarks.audit import AuditRig, bookies, measure, metadata_store


async def test_every_pass_is_reported_with_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    await measure(200, in_memory=True)
    created, whole, lost, again, listed, claimed = capsys.readouterr().out.splitlines()
    assert created.startswith("200 ledgers created")
    assert whole.startswith("no node is lost: 200 ledgers")
    assert ", 0 marked" in whole
    assert ", 30 marked" in lost, "three of twenty ledgers name the one"
    assert ", 30 marked" in again
    assert listed.startswith("30 marks listed")
    assert claimed.startswith("30 of them claimed")


async def test_the_lost_bookie_is_the_one_that_is_named() -> None:
    async with metadata_store(in_memory=True) as store:
        rig = AuditRig(store)
        await rig.fill(40)
        await rig.lose_one()
        assert (await rig.audit()).lost == {bookies()[0]}
