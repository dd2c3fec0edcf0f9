"""Both networks of the fault tests: a blocked direction is silent, the other is not, and what waited arrives."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.faults.forwarding import FaultNetwork, ForwardedNetwork
from helpers.faults.namespaces import NamespacedNetwork, unavailable
from helpers.fork_server import Child, ForkServer

pytestmark = pytest.mark.processes

PORT = 7321
SILENCE_S = 0.3
PROGRAM = '''
import socket, sys

def listen(name, address, port):
    """Print what arrives; send back what is said on standard input."""
    import threading
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        connection, _ = listener.accept()
        def say():
            for line in sys.stdin:
                connection.sendall(line.encode())
        threading.Thread(target=say, daemon=True).start()
        for line in connection.makefile():
            print(line.strip(), flush=True)
    return 0

def dial(name, address, port):
    connection = socket.create_connection((address, port), 5)
    connection.settimeout(None)
    import threading
    def hear():
        try:
            for line in connection.makefile():
                print(line.strip(), flush=True)
        except ConnectionError:
            pass
        print("closed", flush=True)
    print("connected", flush=True)
    threading.Thread(target=hear, daemon=True).start()
    for line in sys.stdin:
        connection.sendall(line.encode())
    return 0
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    directory = tmp_path_factory.mktemp("networks")
    (directory / "talk.py").write_text(PROGRAM)
    with ForkServer(("talk",), log=directory / "log", paths=[str(directory)]) as running:
        yield running


@pytest.fixture(params=["forwarders", "namespaces"])
def network(request: pytest.FixtureRequest, server: ForkServer) -> Iterator[FaultNetwork]:
    made: ForwardedNetwork | NamespacedNetwork
    if request.param == "forwarders":
        made = ForwardedNetwork(("one", "two"))
    elif (reason := unavailable()) is not None:
        pytest.skip(reason)
    else:
        made = NamespacedNetwork(("one", "two"), server)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def talk(network: FaultNetwork, server: ForkServer) -> Iterator[tuple[Child, Child]]:
    """Give a connection that `one` has dialled to `two`."""
    arguments = {"name": "two", "address": network.address("two"), "port": PORT}
    two = server.spawn("talk:listen", arguments, join=network.join("two"))
    assert two.lines.get(timeout=60) == "listening"
    address, port = network.dial("one", "two", PORT)
    one = server.spawn("talk:dial", {"name": "one", "address": address, "port": port}, join=network.join("one"))
    assert one.lines.get(timeout=60) == "connected"
    one.send("begin")
    assert two.lines.get(timeout=60) == "begin"
    yield one, two
    one.kill()
    two.kill()


def is_silent(child: Child) -> bool:
    """Return whether nothing was to be heard for a while: an absence has no event to wait for."""
    threading.Event().wait(SILENCE_S)
    return child.lines.empty()


def test_one_direction_is_lost_and_the_other_is_not(network: FaultNetwork, talk: tuple[Child, Child]) -> None:
    one, two = talk
    network.block("two", "one")
    one.send("to two")
    two.send("to one")
    assert two.lines.get(timeout=60) == "to two"
    assert is_silent(one)
    network.unblock("two", "one")
    assert one.lines.get(timeout=60) == "to one"


def test_a_full_partition_is_silent_until_it_heals(network: FaultNetwork, talk: tuple[Child, Child]) -> None:
    one, two = talk
    network.block("one", "two")
    network.block("two", "one")
    one.send("to two")
    two.send("to one")
    assert is_silent(one)
    assert is_silent(two)
    network.unblock("one", "two")
    network.unblock("two", "one")
    assert two.lines.get(timeout=60) == "to two"
    assert one.lines.get(timeout=60) == "to one"


def test_a_death_behind_a_partition_is_not_heard_before_it_heals(
    network: FaultNetwork, talk: tuple[Child, Child]
) -> None:
    one, two = talk
    network.block("two", "one")
    two.signal(signal.SIGKILL)
    two.wait()
    assert is_silent(one)
    network.unblock("two", "one")
    one.send("is anybody there?")
    assert one.lines.get(timeout=60) == "closed"


def test_a_slow_direction_delivers_late_what_was_sent(network: FaultNetwork, talk: tuple[Child, Child]) -> None:
    one, two = talk
    if not network.can_delay:
        pytest.skip(f"{network.kind} cannot delay")
    network.delay("one", "two", SILENCE_S * 2)
    sent_s = time.monotonic()
    one.send("slowly")
    assert two.lines.get(timeout=60) == "slowly"
    assert time.monotonic() - sent_s >= SILENCE_S * 2


def test_a_small_disk_is_seen_from_outside_and_goes_with_its_host(server: ForkServer, tmp_path: Path) -> None:
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    network = NamespacedNetwork(("one",), server)
    try:
        disk = network.mount_small_disk("one", tmp_path / "small", 1 << 20)
        (disk.outside / "file").write_bytes(b"there")
        assert not (tmp_path / "small" / "file").exists()
        with pytest.raises(OSError, match="No space"):
            (disk.outside / "too much").write_bytes(bytes(2 << 20))
        (disk.outside / "too much").unlink()
        disk.fill()
        with pytest.raises(OSError, match="No space"):
            (disk.outside / "some").write_bytes(bytes(1 << 18))
        disk.make_room()
        (disk.outside / "some").write_bytes(bytes(1 << 18))
    finally:
        network.close()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
