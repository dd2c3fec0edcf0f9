"""Clusters that the interoperability tests share: our sandbox, real Java bookies, and both in one ensemble.

Everything is started once a session and stopped at its end. One JVM of each version under test is client, log library
and host of its own bookies at the same time: two cores do not carry more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from helpers.interop.clusters import (
    NEWEST,
    InteropCluster,
    JavaBookies,
    JavaProcesses,
    all_back,
    our_bookie,
    sandbox_cluster,
)
from helpers.interop.log_sides import WAYS, JavaLog, Pair, pair_of
from helpers.security.secured_runs import OPTION

from dlspark.sandbox.sandbox import Sandbox
from dlspark.testing.java_process import JavaTool

_log_numbers = count(1)
NODE_SETTINGS = {"zkTimeout": 3000}
"""A node that was killed cannot register again before its former session has expired."""
SECURED_ELSEWHERE = "Java's processes get their keys from the tests of secured clusters: docs/interop.md"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.processes)
            if config.getoption(OPTION):
                item.add_marker(pytest.mark.skip(reason=SECURED_ELSEWHERE))


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcesses]:
    started = JavaProcesses(tmp_path_factory.mktemp("java"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def version() -> str:
    """Give the version of the Java software; the tests that matter most are parametrised over all."""
    return NEWEST


@pytest.fixture
def java(processes: JavaProcesses, zk: str, version: str) -> JavaTool:
    """Give the JVM of this version (started after ZooKeeper, so that it ends before it)."""
    return processes.get(version)


@pytest.fixture
def victim(processes: JavaProcesses, zk: str, version: str) -> Iterator[JavaTool]:
    """Start a JVM of this test alone, to be killed."""
    tool = processes.spawn(version, "victims.log")
    try:
        yield tool
    finally:
        tool.stop()


@pytest.fixture(scope="session")
def sandbox_beside_java(processes: JavaProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    processes.get(NEWEST)  # no sandbox is started where the Java software is out of reach
    with Sandbox(tmp_path_factory.mktemp("sandbox"), nodes=4, node_settings=NODE_SETTINGS) as running:
        yield running
        processes.stop()


@pytest.fixture(scope="session")
def zk(sandbox_beside_java: Sandbox) -> str:
    """Give the one ZooKeeper under all clusters; each cluster has a root of its own in it."""
    return sandbox_beside_java.zookeeper_address


@pytest.fixture
def ours(sandbox_beside_java: Sandbox, processes: JavaProcesses) -> InteropCluster:
    """Give four storage nodes of ours, all alive."""
    cluster = sandbox_cluster(sandbox_beside_java)
    all_back(cluster, processes)
    return cluster


@pytest.fixture(scope="session")
def bookies_of(
    processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], JavaBookies]:
    started: dict[str, JavaBookies] = {}
    directory = tmp_path_factory.mktemp("java-bookies")

    def get(version: str) -> JavaBookies:
        if version not in started:
            tool, root = processes.get(version), f"/java-{version}"
            count = 4 if version == NEWEST else 3
            started[version] = JavaBookies(tool, zk, root, directory / version, count)
        return started[version]

    return get


@pytest.fixture
def theirs(bookies_of: Callable[[str], JavaBookies], processes: JavaProcesses, version: str) -> InteropCluster:
    """Give real bookies, all alive."""
    cluster = bookies_of(version).cluster
    all_back(cluster, processes)
    return cluster


@pytest.fixture(params=["our nodes", "Java bookies"])
def either_cluster(request: pytest.FixtureRequest) -> InteropCluster:
    """Give each kind of storage node: a test that takes this runs on both."""
    found: InteropCluster = request.getfixturevalue("ours" if request.param == "our nodes" else "theirs")
    return found


@pytest.fixture(scope="session")
def mixed_cluster(
    processes: JavaProcesses, zk: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InteropCluster]:
    root, directory = "/mixed", tmp_path_factory.mktemp("mixed")
    with ExitStack() as stack:
        java = JavaBookies(processes.get(NEWEST), zk, root, directory / "java", 2)
        stack.callback(java.stop_all)
        own = [stack.enter_context(our_bookie(zk, root, directory / f"own-{index}")) for index in range(2)]
        nodes = {bookie.id: bookie for bookie in own}

        def lose(bookie: str) -> None:
            if bookie in nodes:
                nodes[bookie].kill()
            else:
                java.stop(bookie)

        def restore() -> bool:
            lost = [node for node in own if not node.alive]
            for node in lost:
                node.start()
            return java.start_all() or bool(lost)

        yield InteropCluster(zk, root, (*java.cluster.bookies, *nodes), lose, restore)


@pytest.fixture
def mixed(mixed_cluster: InteropCluster, processes: JavaProcesses) -> InteropCluster:
    """Give two real bookies and then two storage nodes of ours under one root, all alive."""
    all_back(mixed_cluster, processes)
    return mixed_cluster


@pytest.fixture
def log_name() -> str:
    return f"flights-{next(_log_numbers)}"


@pytest.fixture
def uri(sandbox_beside_java: Sandbox, ours: InteropCluster) -> str:
    """Give the sandbox's namespace, on storage nodes of ours."""
    return sandbox_beside_java.uri


@pytest.fixture(params=["none", "lz4"])
def compression(request: pytest.FixtureRequest) -> str:
    """Give the compression with which both sides write; what is read tells its own."""
    value: str = request.param
    return value


@pytest.fixture
def java_log(java: JavaTool, uri: str, log_name: str, compression: str) -> JavaLog:
    return JavaLog(java, uri, log_name, compressionType=compression)


@pytest.fixture
def plain_java_log(java: JavaTool, uri: str, log_name: str) -> JavaLog:
    return JavaLog(java, uri, log_name)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Give which library writes a log and which reads it."""
    found: str = request.param
    return found


@pytest.fixture
def plain_pair(java: JavaTool, uri: str, log_name: str, way: str) -> Iterator[Pair]:
    """Give a log written by one library and read by the other."""
    with pair_of(java, uri, log_name, way) as opened:
        yield opened
