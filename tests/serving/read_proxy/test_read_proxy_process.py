"""A read proxy as a whole: its settings, its member, both ends of a connection, and its process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from helpers.logs import written
from helpers.serving.read_world import Puller, ReadWorld
from helpers.waiting import until

from dlspark.errors import SettingsError
from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.process.membership import READ_PROXIES, read_members
from dlspark.serving.protocol.operations import (
    Delivery,
    FindOwner,
    OwnerFound,
    ReadBatch,
    ReadFrom,
    Refusal,
    StatusCode,
)
from dlspark.serving.read_proxy.__main__ import main
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from storage_node.transport.tcp import TcpNetwork


def test_settings_come_from_a_file_and_over_it_from_options(tmp_path: Path):
    file = tmp_path / "read_proxy.conf"
    file.write_text("port=1234\nringBytes=4194304\n")
    settings = ReadProxySettings.from_properties(str(file), {"port": "0"})
    assert (settings.port, settings.ring_bytes) == (0, 4 << 20)


@pytest.mark.parametrize(
    "values",
    [{"prot": 1}, {"port": "x"}, {"port": 65536}, {"ringBytes": 10}, {"ringsBytes": 1 << 22}, {"maxReaders": 0}],
)
def test_settings_that_cannot_be_honoured_are_refused(values):
    with pytest.raises(SettingsError):
        ReadProxySettings.from_mapping(values)


async def test_readers_come_over_frames_and_find_the_proxy_by_its_member(read_world: ReadWorld):
    writing, serving = await read_world.namespace(), await read_world.namespace()
    await written(writing, "log", [[b"a", b"b"], [b"c"]])
    settings = ReadProxySettings(host="127.0.0.1", port=0, advertised_host="127.0.0.1", linger_ms=0)
    proxy = ReadProxy(None, settings, namespace=serving)
    await proxy.start()
    (member,) = await read_members(read_world.operator, f"/dl/{READ_PROXIES}")
    assert member == proxy.member
    assert member.frames is not None
    client = await FramesClient.connect(TcpNetwork(), str(member.frames))
    assert await client.call(FindOwner("log")) == OwnerFound(member.location)
    reader = Puller(proxy.service, "log")
    while len(reader.payloads) < 3:
        found = await client.call(ReadBatch("log", reader.position))
        assert isinstance(reader.take(found), Delivery)
    assert reader.payloads == [b"a", b"b", b"c"]
    waiting = asyncio.ensure_future(client.call(ReadBatch("log", ReadFrom.LATEST, reader=7)))
    await until(lambda: proxy.service.figures().waiting)
    await proxy.stop()
    refused = await waiting
    assert isinstance(refused, Refusal)
    assert refused.code is StatusCode.SERVICE_UNAVAILABLE
    assert await read_members(read_world.operator, f"/dl/{READ_PROXIES}") == ()
    await client.close()
    read_world.clients.remove(serving)


async def test_a_connection_that_breaks_frees_its_readers(read_world: ReadWorld):
    writing, serving = await read_world.namespace(), await read_world.namespace()
    await written(writing, "log", [[b"a"]])
    settings = ReadProxySettings(host="127.0.0.1", port=0, advertised_host="127.0.0.1", linger_ms=0)
    proxy = ReadProxy(None, settings, namespace=serving)
    await proxy.start()
    client = await FramesClient.connect(TcpNetwork(), str(proxy.member.frames))
    for number in range(20):
        found = await client.call(ReadBatch("log", ReadFrom.OLDEST, reader=number))
        assert isinstance(found, Delivery)
    assert proxy.service.figures().readers == 20
    await client.close()
    await until(lambda: not proxy.service.figures().readers)
    await proxy.stop()
    read_world.clients.remove(serving)


def test_a_process_that_cannot_start_says_why(capsys):
    assert main(["--set", "nonsense"]) == 1
    assert main(["--set", "port=x"]) == 1
    assert main(["--uri", "nowhere", "--set", "port=0"]) == 1
