"""A server listens on more than loopback only with security, or where one named key says that this is meant."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dlspark.core.metrics.registries import serve_metrics
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import ProxyConfiguration, WriteProxySettings, read_configuration
from metadata.foundation.errors import CallerError
from metadata.security.listening import ListeningRule, is_loopback
from metadata.zookeeper.embedded import EmbeddedZooKeeper
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.__main__ import main as run_node
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.endpoints import shown
from storage_node.bookie.node.identity import listening_host
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

OUTSIDE = ("", "0.0.0.0", "::", "10.1.2.3", "::ffff:10.1.2.3", "localhost.example", "machine", "128.0.0.1")
WAYS_ON = ("127.0.0.1", "security", "insecureListen=allow", "--insecure-listen")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_loopback_is_known_by_its_addresses_and_its_one_name(host: str) -> None:
    assert is_loopback(host)
    assert ListeningRule("it", "key").host(host, secured=False) == host


@pytest.mark.parametrize("host", OUTSIDE)
def test_what_others_can_reach_is_refused_with_all_ways_on_and_taken_by_either_of_them(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(CallerError, match=r"without security.*It did not start") as refused:
        ListeningRule("it", "listenHere").host(host, secured=False, advertised="10.9.9.9")
    assert all(words in str(refused.value) for words in (*WAYS_ON, "listenHere=127.0.0.1"))
    assert ListeningRule("it", "key").host(host, secured=True) == host
    assert ListeningRule("it", "key", "allow").host(host, secured=False) == host


@pytest.mark.parametrize(
    ("advertised", "host"), [("localhost", "127.0.0.1"), ("127.0.3.1", "127.0.3.1"), ("[::1]", "::1")]
)
def test_without_an_address_it_is_the_advertised_one_of_this_machine(advertised: str, host: str) -> None:
    assert ListeningRule("it", "key").host("", secured=False, advertised=advertised) == host
    assert ListeningRule("it", "key", "allow").host("", secured=False, advertised=advertised) == ""


def node(**values: object) -> BookieSettings:
    return BookieSettings(("/nowhere/j",), ("/nowhere/l",), **values)  # type: ignore[arg-type]


async def test_a_storage_node_refuses_before_it_touches_anything(tmp_path: Path) -> None:
    settings = BookieSettings((str(tmp_path / "j"),), (str(tmp_path / "l"),), bookie_port=0)
    with pytest.raises(BookieConfigurationError, match="the storage node would listen on every address"):
        await Bookie(settings, MemoryStore(MemoryTree())).start()
    assert os.listdir(tmp_path) == []
    assert listening_host(node(advertised_address="127.0.0.1")) == "127.0.0.1"
    assert listening_host(node(insecure_listen="allow")) == ""


def test_a_nodes_process_ends_with_the_reason_and_goes_on_by_its_option(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "node.conf"
    conf.write_text(f"journalDirectories={tmp_path}/j\nledgerDirectories={tmp_path}/l\nzkServers=127.0.0.1:1\n")
    assert run_node(["--conf", str(conf)]) == 1
    assert all(words in caplog.text for words in WAYS_ON)
    ran: list[str] = []

    def note(settings: BookieSettings, **_: object) -> int:
        ran.append(listening_host(settings))
        return 0

    monkeypatch.setattr("storage_node.bookie.__main__.run", note)
    assert run_node(["--conf", str(conf), "--insecure-listen"]) == 0
    assert ran == [""]


async def test_the_pages_of_a_node_are_for_this_machine_unless_told() -> None:
    assert node().http_server_host == "127.0.0.1"
    settings = node(http_server_enabled=True, http_server_host="0.0.0.0", http_server_port=0)
    with pytest.raises(BookieConfigurationError, match=r"httpServerHost=127\.0\.0\.1"):
        async with shown(settings, Bookie(settings, MemoryStore(MemoryTree()))):
            pass


@pytest.mark.parametrize("values", [{}, {"host": "10.1.2.3"}, {"host": "127.0.0.1", "stats_host": "", "stats_port": 0}])
async def test_proxies_refuse_before_they_open_anything(values: dict[str, object]) -> None:
    reads, writes = ReadProxySettings(**values), WriteProxySettings(**values)  # type: ignore[arg-type]
    where, logs = "distributedlog://127.0.0.1:1/x", read_configuration(None, {}, {}).logs
    for proxy in (ReadProxy(where, reads), WriteProxy(where, ProxyConfiguration(writes, logs))):
        with pytest.raises(CallerError, match="without security"):
            await asyncio.wait_for(proxy.start(), 60)


def test_the_key_has_one_name_and_two_values() -> None:
    assert WriteProxySettings.from_mapping({"insecureListen": "Allow"}).insecure_listen == "allow"
    assert ReadProxySettings.from_mapping({"insecureListen": "allow"}).insecure_listen == "allow"
    with pytest.raises(CallerError, match="refuse, allow"):
        WriteProxySettings.from_mapping({"insecureListen": "true"})


def test_an_embedded_zookeeper_and_a_programs_metrics_ask_for_a_word_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="the embedded ZooKeeper would listen on every address"):
        EmbeddedZooKeeper(tmp_path, host="0.0.0.0")
    EmbeddedZooKeeper(tmp_path, host="0.0.0.0", insecure_listen=True)
    with pytest.raises(CallerError, match="to whoever asks; they are not served"):
        serve_metrics(0, host="0.0.0.0")
    serve_metrics(0, host="0.0.0.0", insecure_listen=True)()
