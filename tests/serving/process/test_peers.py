"""Which proxies there are, as one of them knows them."""

from __future__ import annotations

from dataclasses import replace

from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember, proxy_member
from dlspark.serving.process.peers import ProxyDirectory
from dlspark.serving.protocol.operations import ListedProxy, ProxyKind, ProxyList


def member(number: int, *, grpc: int | None = None, name: str | None = None) -> ProxyMember:
    address = ProxyEndpoint("host", grpc) if grpc is not None else None
    found = proxy_member(ProxyEndpoint("host", 8000 + number), number, grpc=address)
    return replace(found, name=f"member_{number}" if name is None else name)


def test_proxies_have_two_names() -> None:
    directory = ProxyDirectory()
    directory.use(ProxyKind.WRITE, [member(1, grpc=9001), member(2)])
    directory.use(ProxyKind.READ, [member(3, grpc=9003)])
    assert directory.grpc_address("1;1;host:8001") == "host:9001"
    assert [directory.grpc_address(one) for one in ("1;2;host:8002", "1;7;host:8007", "")] == ["", "", ""]
    assert directory.location("host:9001") == "1;1;host:8001"
    assert [directory.location(one) for one in ("host:8001", "1;1;host:8001", "host:9999")] == [
        "host:8001",
        "1;1;host:8001",
        "host:9999",
    ]
    assert directory.listed() == ProxyList(
        (
            ListedProxy(ProxyKind.WRITE, "1;1;host:8001", "host:9001"),
            ListedProxy(ProxyKind.WRITE, "1;2;host:8002"),
            ListedProxy(ProxyKind.READ, "1;3;host:8003", "host:9003"),
        )
    )


def test_who_knows_speaks_grpc_though_it_is_no_member() -> None:
    directory = ProxyDirectory()
    directory.use_own(member(1, grpc=9001, name=""))
    assert directory.grpc_address("1;1;host:8001") == "host:9001"
    assert not directory.announced("1;1;host:8001")
    assert directory.listed() == ProxyList(())


def test_only_write_proxies_own_logs() -> None:
    directory = ProxyDirectory()
    directory.use(ProxyKind.WRITE, [member(1)])
    directory.use(ProxyKind.READ, [member(2)])
    assert [directory.announced(one) for one in ("1;1;host:8001", "host:8001", "1;2;host:8002")] == [True, True, False]


def test_who_came_again_at_the_same_address_has_gone_once() -> None:
    directory = ProxyDirectory()
    assert directory.use(ProxyKind.WRITE, [member(1), member(2)]) == frozenset()
    assert directory.use(ProxyKind.WRITE, [member(1), member(2)]) == frozenset()
    assert directory.use(ProxyKind.WRITE, [member(1), member(2, name="member_3")]) == {"host:8002"}
    assert directory.use(ProxyKind.WRITE, []) == {"host:8001", "host:8002"}
