"""Namespaces over a real ZooKeeper: which sessions they have, their identity, and binding from outside."""

from __future__ import annotations

import threading

import pytest

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.opening import Sessions, connect_all
from dlspark.core.settings.settings import Settings
from dlspark.errors import status_code
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.namespaces import NamespaceInUseError, NamespaceUri, NotBoundError
from metadata.foundation.errors import CallerError, MetadataUnavailableError, NoAuthError
from metadata.store import RetryPolicy
from metadata.zookeeper.client import ZooKeeperStore
from metadata.zookeeper.embedded import EmbeddedZooKeeper

pytestmark = pytest.mark.processes


@pytest.fixture
def uri(zookeeper: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> str:
    """A path of the test's own."""
    return f"distributedlog-BK://{zookeeper.address}/{abs(hash(request.node.name))}/ns"


def other_name(zookeeper: EmbeddedZooKeeper) -> str:
    """The same server by another name, as another ensemble would be."""
    return zookeeper.address.replace("127.0.0.1", "localhost")


async def sessions_of(uri: str, **settings: object) -> Sessions:
    sessions = await connect_all(NamespaceUri.parse(uri), Settings(**settings))  # type: ignore[arg-type]
    for one in sessions.all:
        await one.close()
    return sessions


async def test_a_namespace_is_bound_asked_for_changed_and_unbound(uri: str, zookeeper: EmbeddedZooKeeper) -> None:
    for call in (AsyncNamespace.find_binding(uri), AsyncNamespace.unbind(uri), AsyncNamespace.bind(uri, create=False)):
        with pytest.raises(NotBoundError):
            await call
    bound = await AsyncNamespace.bind(
        uri,
        ledgers_path="/somewhere/ledgers",
        ledger_reader_servers=other_name(zookeeper),
        log_reader_servers=other_name(zookeeper),
        sanity_check_txid=False,
        encode_region_id=True,
        acl_root=".acl",
        first_lssn=5,
        federated=True,
    )
    address, path = zookeeper.address, NamespaceUri.parse(uri).path
    assert bound == Binding(
        bk_servers=address,
        ledgers_path="/somewhere/ledgers",
        dl_servers=address,
        bk_reader_servers=other_name(zookeeper),
        dl_reader_servers=other_name(zookeeper),
        sanity_check_txid=False,
        encode_region_id=True,
        acl_root_path=".acl",
        first_lssn=5,
        federated=True,
    )
    assert await AsyncNamespace.find_binding(f"{uri}/below") == (bound, path)
    changed = await AsyncNamespace.update_binding(uri, first_lssn=7, acl_root_path=None)
    assert (changed.first_lssn, changed.acl_root_path, changed.ledgers_path) == (7, None, "/somewhere/ledgers")
    assert (await AsyncNamespace.find_binding(uri))[0] == changed
    with pytest.raises(CallerError, match="federated"):
        await AsyncNamespace.bind(uri)
    with pytest.raises(TypeError):
        await AsyncNamespace.update_binding(uri, no_such_field=1)
    namespace = await AsyncNamespace.open(uri)
    await namespace.create_log("log")
    await namespace.close()
    with pytest.raises(NamespaceInUseError):
        await AsyncNamespace.unbind(uri)
    await AsyncNamespace.unbind(uri, force=True)
    with pytest.raises(NotBoundError):
        await AsyncNamespace.open(uri)


async def test_one_session_serves_a_usual_namespace(uri: str) -> None:
    await AsyncNamespace.bind(uri)
    assert len((await sessions_of(uri)).all) == 1


@pytest.mark.parametrize(
    "setting",
    [
        {"bkc_zk_session_timeout_s": 29},
        {"bkc_zk_request_rate": 1000.0},
        {"bkc_zk_retries": 1},
        {"bkc_zk_retry_start_backoff_ms": 1},
        {"bkc_zk_retry_max_backoff_ms": 1},
        {"zk_acl_id": "alice"},
        {"ledger_client": (("zkTimeout", 20_000),)},
    ],
)
async def test_ledgers_have_a_session_of_their_own_where_it_differs(uri: str, setting: dict[str, object]) -> None:
    await AsyncNamespace.bind(uri)
    sessions = await sessions_of(uri, **setting)
    assert sessions.ledgers is not sessions.logs
    assert (sessions.reader_logs, sessions.reader_ledgers) == (sessions.logs, sessions.ledgers)


async def test_the_settings_reach_the_sessions(uri: str) -> None:
    await AsyncNamespace.bind(uri)
    sessions = await sessions_of(
        uri,
        zk_session_timeout_s=11,
        zk_retries=1,
        zk_retry_start_backoff_ms=2,
        zk_retry_max_backoff_ms=3,
        zk_request_rate=40.0,
        bkc_zk_session_timeout_s=12,
        bkc_zk_retries=4,
        bkc_zk_retry_start_backoff_ms=5,
        bkc_zk_retry_max_backoff_ms=6,
    )
    logs, ledgers = sessions.logs, sessions.ledgers
    assert isinstance(logs, ZooKeeperStore)
    assert isinstance(ledgers, ZooKeeperStore)
    assert (logs.retry_policy, ledgers.retry_policy) == (RetryPolicy(1, 2, 3), RetryPolicy(4, 5, 6))
    assert (logs._timeouts_ms[0], ledgers._timeouts_ms[0]) == (11_000, 12_000)
    assert logs._rate is not None
    assert ledgers._rate is None


async def test_each_kind_of_servers_in_the_binding_is_gone_to(uri: str, zookeeper: EmbeddedZooKeeper) -> None:
    there = other_name(zookeeper)
    await AsyncNamespace.bind(uri, log_reader_servers=there, ledger_servers=there)
    sessions = await sessions_of(uri)
    assert sessions.ledgers is sessions.reader_ledgers is sessions.reader_logs is not sessions.logs
    await AsyncNamespace.bind(uri, log_servers=there, ledger_servers=there)
    sessions = await sessions_of(uri)
    assert len(sessions.all) == 1
    assert sessions.logs._servers == there  # type: ignore[attr-defined]


async def test_on_other_servers_each_session_has_the_settings_of_its_kind(
    uri: str, zookeeper: EmbeddedZooKeeper
) -> None:
    there = other_name(zookeeper)
    await AsyncNamespace.bind(uri, ledger_servers=there)
    sessions = await sessions_of(uri, zk_request_rate=40.0, zk_retries=1)
    assert sessions.ledgers.retry_policy == RetryPolicy(3, 5_000, 30_000)
    assert sessions.ledgers._rate is None  # type: ignore[attr-defined]
    await AsyncNamespace.bind(uri, ledger_servers=there, log_reader_servers=there)
    sessions = await sessions_of(uri, zk_request_rate=40.0, bkc_zk_retries=7)
    assert sessions.reader_logs is not sessions.ledgers
    assert sessions.reader_logs._rate is not None  # type: ignore[attr-defined]
    assert sessions.ledgers.retry_policy == RetryPolicy(7, 5_000, 30_000)


async def test_readers_go_to_their_own_servers(uri: str, zookeeper: EmbeddedZooKeeper) -> None:
    there = other_name(zookeeper)
    await AsyncNamespace.bind(uri, log_reader_servers=there, ledger_reader_servers=there)
    async with await AsyncNamespace.open(uri) as namespace:
        reading = namespace.services.reading
        assert reading.store is reading.ledger_store.store is not namespace.store
        assert reading.store._servers == there  # type: ignore[attr-defined]
        await namespace.create_log("log")
        log = await namespace.open_log("log")
        assert await log.segments() == []


async def test_servers_out_of_reach_leave_no_session_behind(uri: str, zookeeper: EmbeddedZooKeeper) -> None:
    await AsyncNamespace.bind(uri, log_reader_servers="127.0.0.1:1")
    before = set(threading.enumerate())
    with pytest.raises(MetadataUnavailableError):
        await connect_all(NamespaceUri.parse(uri), Settings(), connect_timeout_ms=1_000)
    assert not set(threading.enumerate()) - before, "threads of tests before this one may end meanwhile"


async def test_logs_of_an_identity_cannot_be_changed_without_it_while_ledgers_stay_open(uri: str) -> None:
    await AsyncNamespace.bind(uri, settings={"zkAclId": "alice"})
    owner = await AsyncNamespace.open(uri, {"zkAclId": "alice"})
    await owner.create_log("log")
    stranger = await AsyncNamespace.open(uri)
    try:
        for call in (
            stranger.create_log("other"),
            stranger.delete_log("log"),
            stranger.rename_log("log", "other"),
            (await stranger.open_log("log")).open_writer(),
            (await stranger.open_log("log")).set_metadata(b"x"),
        ):
            with pytest.raises(NoAuthError) as caught:
                await call
            assert status_code(caught.value) == 505
        assert await stranger.logs() == ["log"]
        assert await (await stranger.open_log("log")).segments() == []
        with pytest.raises(NoAuthError):
            await AsyncNamespace.bind(uri)
        # What the ledgers' session makes is open: storage nodes and auto-recovery have no identity.
        ledgers = owner.services.ledger_store.store
        path = f"/ledgers-{NamespaceUri.parse(uri).path.split('/')[1]}"
        await ledgers.create(path)
        await stranger.store.put(path, b"by a storage node", 0)
        await stranger.store.delete(path)
    finally:
        await stranger.close()
        await owner.close()
