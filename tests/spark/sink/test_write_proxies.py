"""What the sink makes of a proxy's answers while it waits for a log that the proxy owns."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from helpers.waiting import until

from dlspark.errors import RequestDeniedError
from dlspark.serving.protocol.operations import Answer, ReleaseStream
from dlspark.spark.sink import write_proxies
from dlspark.spark.sink.write_proxies import WriteProxies


async def test_a_proxy_that_denies_to_give_a_log_up_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = 0

    class Denying:
        async def ask(self, request: Any) -> Answer:
            nonlocal released
            if isinstance(request, ReleaseStream):
                released += 1
                raise RequestDeniedError("etl may not administer", log="orders")
            return cast(Answer, None)

        async def close(self) -> None:
            pass

    async def connect() -> Denying:
        return Denying()

    async def own(self: WriteProxies, services: object, log: str) -> bool:
        return True

    monkeypatch.setattr(write_proxies, "ASK_AGAIN_S", 0)
    monkeypatch.setattr(WriteProxies, "own", own)
    proxies = WriteProxies(connect, "/ns")
    with caplog.at_level(logging.WARNING, logger=write_proxies.__name__):
        async with proxies.asked_to_yield(cast(Any, None), "orders"):
            await until(lambda: released > 2)
            await asyncio.sleep(0)
    await proxies.close()
    [said] = [record.getMessage() for record in caplog.records if record.name == write_proxies.__name__]
    assert "orders is waited for" in said
    assert "etl may not administer" in said
