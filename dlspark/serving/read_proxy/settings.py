"""`ReadProxySettings`: the settings of a read proxy. All are this project's own: upstream has no such process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dlspark.errors import SettingsError
from dlspark.serving.bindings.service import CONNECTIONS
from dlspark.serving.process.access import AccessKeys
from dlspark.serving.routing.ring import BALANCE
from dlspark.serving.security.settings import SECURITY_CLASSES, ProxySecurity
from metadata.foundation.properties import read_properties
from metadata.foundation.settings import (
    REAL,
    TEXT,
    WHOLE,
    Kind,
    Registry,
    setting,
)
from metadata.security.listening import LOOPBACK, insecure_listen_setting
from metadata.security.other_keys import SECURITY_ELSEWHERE
from storage_node.protocol.frames import MAX_FRAME_BYTES

MIB: Final = 1024 * 1024
_ENTRY_FITS: Final = 2 * MIB
"""Any entry that a log may hold fits in this."""
_FRAME_FITS: Final = MAX_FRAME_BYTES - 64 * 1024
"""A delivery of this size fits in a frame."""
PAGE: Final = "docs/settings/read-proxy.md"


def _own(
    default: int, key: str, meaning: str, *, minimum: int = 1, maximum: int | None = None, section: str = ""
) -> int:
    return setting(WHOLE, default, key, meaning, minimum=minimum, maximum=maximum, own=True, section=section)


def _text(default: str, key: str, meaning: str, *, section: str = "") -> str:
    kind: Kind[str] = TEXT
    return setting(kind, default, key, meaning, own=True, section=section)


@dataclass(frozen=True, slots=True)
class ReadProxySettings(AccessKeys):
    """The settings of one read proxy: what it may use, and where it listens (docs/settings/read-proxy.md).

    Raises SettingsError for values that contradict each other, or cannot be.
    """

    host: str = _text(
        "",
        "listenHost",
        "The address to listen on; empty: every address of the machine, which needs security or insecureListen=allow; "
        "without them the loopback address that advertisedHost names, if it names one",
        section="The process",
    )
    insecure_listen: str = insecure_listen_setting()
    port: int = _own(8100, "port", "The port for frames; 0 takes a free one", minimum=0, maximum=65535)
    grpc_port: int = _own(
        -1, "grpcPort", "The port for gRPC; 0 takes a free one, -1 leaves gRPC out", minimum=-1, maximum=65535
    )
    advertised_host: str = _text(
        "", "advertisedHost", "The name under which clients reach this host; empty: the host's own name"
    )
    max_connections: int = _own(CONNECTIONS, "maxConnections", "Connections for frames at the same time")
    connection_bytes: int = _own(
        1024 * MIB,
        "connectionBytes",
        "Bytes with which the reads under way of one connection may be answered together, by what they ask for; "
        "further ones wait",
        minimum=_ENTRY_FITS,
    )
    connections_bytes: int = _own(
        16 * 1024 * MIB,
        "connectionsBytes",
        "The same for all connections together. Readers share what they are answered with: far less is in memory",
        minimum=_ENTRY_FITS,
    )
    shutdown_grace_ms: int = _own(
        5_000, "shutdownGraceMs", "Milliseconds that a stop waits for answers to leave", minimum=0
    )
    stats_port: int = _own(
        -1,
        "statsPort",
        "The port of the page with health and metrics; 0 takes a free one, -1 leaves it out",
        minimum=-1,
        maximum=65535,
    )
    stats_host: str = _text(
        LOOPBACK,
        "statsHost",
        "The address of the page with health and metrics. Where others cannot reach it, the proxy does not announce it",
    )
    shard: int = _own(-1, "shardId", "The number of this proxy among those of the namespace; -1: none", minimum=-1)
    ring_bytes: int = _own(
        16 * MIB,
        "ringBytes",
        "Bytes of one log's newest entries that are kept for its readers",
        minimum=_ENTRY_FITS,
        section="Memory",
    )
    rings_bytes: int = _own(
        512 * MIB, "ringsBytes", "Bytes of all logs' newest entries together; the oldest go first", minimum=_ENTRY_FITS
    )
    chunk_bytes: int = _own(
        256 * 1024, "chunkBytes", "Bytes of entries, decompressed, that are decoded together", minimum=1024
    )
    decoded_bytes: int = _own(
        64 * MIB, "decodedBytes", "Bytes of decoded chunks that are kept for other readers of the same form", minimum=0
    )
    max_delivery_bytes: int = _own(
        4 * MIB,
        "maxDeliveryBytes",
        "Bytes of one delivery at most, whatever its reader asks for",
        minimum=_ENTRY_FITS,
        maximum=_FRAME_FITS,
    )
    max_readers: int = _own(
        100_000, "maxReaders", "Readers that have a session at the proxy; one more is refused", section="Readers"
    )
    max_caller_readers: int = _own(10_000, "maxReadersPerConnection", "Readers of one connection")
    max_logs: int = _own(10_000, "maxLogs", "Logs that are read at the same time; readers of another one are refused")
    read_balance: float = setting(
        REAL,
        BALANCE,
        "readBalance",
        "How far the proxy may be above its share of the logs that all read proxies read: 1.25 is a quarter. Readers "
        "of a further log are sent to a proxy that has room. 0: without a bound, as where clients can reach no proxies "
        "but those that they were given",
        minimum=0.0,
        maximum=1_000.0,
        own=True,
    )
    max_wait_ms: int = _own(
        60_000, "maxWaitMs", "Milliseconds that a read waits at the end of the log at most", minimum=0
    )
    max_open_ms: int = _own(
        10_000, "maxOpenMs", "Milliseconds that a read waits at most until its start is found; then it is to ask again"
    )
    reader_idle_ms: int = _own(
        120_000,
        "readerIdleMs",
        "Milliseconds after which the session of a reader that asks for nothing ends; it goes on by its position",
    )
    linger_ms: int = _own(
        30_000, "lingerMs", "Milliseconds for which a log is read on after its last reader has gone", minimum=0
    )
    max_searches: int = _own(16, "maxSearches", "Searches for transaction ids that run at the same time")
    max_catch_ups: int = _own(
        32,
        "maxCatchUps",
        "Places behind the rings that are read at the same time; further readers wait for their turn",
        section="Catching up",
    )
    catch_up_bytes: int = _own(
        8 * MIB, "catchUpBytes", "Bytes of entries that each of them keeps", minimum=2 * _ENTRY_FITS
    )
    catch_up_turn_bytes: int = _own(
        64 * MIB, "catchUpTurnBytes", "Bytes after which a turn ends while other readers wait for theirs"
    )
    catch_up_idle_ms: int = _own(
        5_000,
        "catchUpIdleMs",
        "Milliseconds after which a reader that asks for nothing loses its turn, and a feed without readers ends",
    )

    security: ProxySecurity = field(default_factory=ProxySecurity)
    """Whom it takes, and what it shows other proxies."""

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        self.super_subjects()
        if 0 < self.read_balance < 1:
            raise SettingsError(
                f"readBalance={self.read_balance} is below 1: not all logs could be read",
                advice="Take 1 or more, or 0 for no bound",
            )
        if self.rings_bytes < self.ring_bytes:
            raise SettingsError(
                f"ringsBytes={self.rings_bytes} is less than ringBytes={self.ring_bytes}, a single log's",
                advice="Raise the first or lower the second",
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> ReadProxySettings:
        """Return settings by key. Raises SettingsError for an unknown key or a value that cannot be honoured."""
        read = REGISTRY.read_all(values)
        return cls(**read.get(cls, {}), security=ProxySecurity().changed(read))  # type: ignore[arg-type]

    @classmethod
    def from_properties(
        cls, path: str | os.PathLike[str] | None, given: Mapping[str, object] | None = None
    ) -> ReadProxySettings:
        """Return the settings of a properties file, where there is one, and over them those given. Raises
        SettingsError, also for a file that cannot be read."""
        values: dict[str, object] = {}
        if path is not None:
            values.update(read_properties(path, SettingsError, named_by="--conf"))
        return cls.from_mapping(values | dict(given or {}))


REGISTRY: Final = Registry([ReadProxySettings, *SECURITY_CLASSES], SettingsError, page=PAGE, refused=SECURITY_ELSEWHERE)
