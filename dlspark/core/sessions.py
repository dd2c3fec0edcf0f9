"""The ZooKeeper sessions of a namespace: for the logs and for the ledgers, each for writers and for readers.

Mostly that is one session. The binding may name other servers for each of the four; and the ledgers have a session of
their own where its settings are others, and with `zkAclId`: what the logs' session creates is closed to other
identities, while ledgers must be open to the storage nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings import Settings
from dlspark.core.settings.cluster import ZooKeeperKeys
from metadata.namespaces import Binding, NamespaceStore, NamespaceUri
from metadata.store import MetadataStore

CONNECT_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions, which may be fewer than four, and the binding that says where they go."""

    binding: Binding
    logs: MetadataStore
    ledgers: MetadataStore
    reader_logs: MetadataStore
    reader_ledgers: MetadataStore

    @property
    def all(self) -> tuple[MetadataStore, ...]:
        """Each once."""
        return tuple(dict.fromkeys((self.logs, self.ledgers, self.reader_logs, self.reader_ledgers)))


async def connect_all(
    uri: NamespaceUri, settings: Settings, *, connect_timeout_ms: int = CONNECT_TIMEOUT_MS
) -> Sessions:
    """Connect to the namespace at `uri`, read its binding, and connect to where that says.

    Raises NotBoundError, MetadataUnavailableError; then nothing stays open.
    """
    for_logs: dict[frozenset[str], MetadataStore] = {}
    for_ledgers: dict[frozenset[str], MetadataStore] = {}

    async def session(servers: str, *, ledgers: bool = False) -> MetadataStore:
        servers = servers.replace(";", ",")
        key = frozenset(servers.split(","))
        shared = not ledgers or (key in for_logs and not _ledgers_apart(settings))
        opened = for_logs if shared else for_ledgers
        if key not in opened:
            opened[key] = await (connect_logs if shared else connect_ledgers)(servers, settings, connect_timeout_ms)
        return opened[key]

    try:
        first = await session(uri.servers)
        binding = await NamespaceStore(first, uri.path).resolve()
        sessions = Sessions(
            binding,
            logs=await session(binding.dl_servers),
            reader_logs=await session(binding.dl_reader_servers or binding.dl_servers),
            ledgers=await session(binding.bk_servers, ledgers=True),
            reader_ledgers=await session(binding.bk_reader_servers or binding.bk_servers, ledgers=True),
        )
    except BaseException:
        for one in (*for_ledgers.values(), *for_logs.values()):
            await one.close()
        raise
    if first not in sessions.all:
        await first.close()  # it told where to go
    return sessions


def _ledgers_apart(settings: Settings) -> bool:
    """Whether the ledgers' session has to be another one than the logs', also on the same servers."""
    plain = ZooKeeperKeys()
    own = any(
        getattr(settings, name) != getattr(plain, name)
        for name in ("bkc_zk_session_timeout_s", "bkc_zk_request_rate", "bkc_zk_retry_policy")
    )
    return own or bool(settings.zk_acl_id) or bool(settings.client_settings().zk_timeout_ms)


async def connect_logs(servers: str, settings: Settings, connect_timeout_ms: int = CONNECT_TIMEOUT_MS) -> MetadataStore:
    """A session for logs on `servers` ("host:port,host:port"). Raises MetadataUnavailableError."""
    # Imported here: everything else works over any metadata store, without a ZooKeeper client installed.
    from metadata.zookeeper import ZooKeeperStore

    return await ZooKeeperStore.connect(
        servers,
        session_timeout_ms=settings.zk_session_timeout_s * 1000,
        connect_timeout_ms=connect_timeout_ms,
        acl_id=settings.zk_acl_id or None,
        requests_per_second=settings.zk_request_rate,
        retry_policy=settings.zk_retry_policy,
    )


async def connect_ledgers(
    servers: str, settings: Settings, connect_timeout_ms: int = CONNECT_TIMEOUT_MS
) -> MetadataStore:
    """A session for ledgers on `servers`. Raises MetadataUnavailableError."""
    from metadata.zookeeper import ZooKeeperStore

    return await ZooKeeperStore.connect(
        servers,
        session_timeout_ms=settings.client_settings().zk_timeout_ms or settings.bkc_zk_session_timeout_s * 1000,
        connect_timeout_ms=connect_timeout_ms,
        acl_id=settings.zk_acl_id or None,
        restrict=False,
        requests_per_second=settings.bkc_zk_request_rate,
        retry_policy=settings.bkc_zk_retry_policy,
    )
