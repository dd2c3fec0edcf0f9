"""Logs of `dlspark bench` without a server: taken away however a run ends, and its end is seen."""

from __future__ import annotations

import pytest

from dlspark.bench.our_systems import logs_while
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import NotAppliedError


class KnownLogs:
    """Logs that can be made and deleted, save for some."""

    def __init__(self, *, not_made: str = "", not_deleted: str = "") -> None:
        self.there: list[str] = []
        self.asked: list[str] = []
        self._not_made, self._not_deleted = not_made, not_deleted

    async def create(self, name: str) -> None:
        if name == self._not_made:
            raise NotAppliedError("it cannot be made")
        self.there.append(name)

    async def delete(self, name: str) -> None:
        self.asked.append(name)
        if name == self._not_deleted:
            raise NotAppliedError("it cannot be deleted")
        if name not in self.there:
            raise LogNotFoundError("no such log", log=name)
        self.there.remove(name)


async def test_a_log_that_cannot_be_made_is_what_is_said_and_those_before_it_are_deleted() -> None:
    logs = KnownLogs(not_made="c")
    with pytest.raises(NotAppliedError, match="it cannot be made"):
        async with logs_while(["a", "b", "c", "d"], logs.create, logs.delete):
            pytest.fail("not all logs are there")
    assert (logs.there, logs.asked) == ([], ["a", "b", "c"])


async def test_what_ends_a_run_is_seen_though_a_log_stays() -> None:
    logs = KnownLogs(not_deleted="a")
    with pytest.raises(KeyboardInterrupt):
        async with logs_while(["a", "b"], logs.create, logs.delete):
            raise KeyboardInterrupt
    assert logs.there == ["a"]


async def test_a_log_that_stays_behind_a_run_that_was_done_is_said() -> None:
    logs = KnownLogs(not_deleted="a")
    with pytest.raises(NotAppliedError, match="it cannot be deleted"):
        async with logs_while(["a", "b"], logs.create, logs.delete):
            pass
    assert logs.there == ["a"]
