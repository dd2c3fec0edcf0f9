"""Peers by their addresses: `kafka=HOST:PORT`, `kafka-synced=HOST:PORT`, `pulsar=pulsar://HOST:PORT`.

What stands behind the kind tells several of one kind apart: `pulsar-on-bookies=pulsar://HOST:PORT`.
"""

from __future__ import annotations

import socket
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from dlspark.bench.systems import System
from metadata.foundation.errors import CallerError, NotAppliedError

SYNCED: Final = "kafka-synced"
CONNECT_S: Final = 5.0
_MODULES: Final = {"kafka": "confluent_kafka", "pulsar": "pulsar"}
_PORTS: Final = {"kafka": 9092, "pulsar": 6650, "pulsar+ssl": 6651, "http": 8080, "https": 8443}
_USAGE: Final = "Give kafka=HOST:PORT, kafka-synced=HOST:PORT, or pulsar=pulsar://HOST:PORT"


def peer_of(given: str, server_pids: tuple[int, ...] = ()) -> System:
    """Return a peer as users name it. Raises CallerError, also where its client library is not installed."""
    name, equals, address = given.partition("=")
    kind = name.partition("-")[0]
    if kind not in _MODULES or not equals or not address:
        raise CallerError(f"{given!r} names no peer; nothing was started", advice=_USAGE)
    if find_spec(_MODULES[kind]) is None:
        raise CallerError(
            f"the client of {kind} is not installed; nothing was started",
            advice="Install it with: pip install 'dlspark[bench]'",
        )
    if kind == "kafka":
        from dlspark.bench.kafka_system import KafkaTopic

        return KafkaTopic(address, name, name == SYNCED, server_pids)
    from dlspark.bench.pulsar_system import PulsarTopics

    return PulsarTopics(address, name, server_pids)


def check_answers(given: str) -> None:
    """Raise NotAppliedError if no server of a peer, named as for `peer_of`, takes a connection: its client would try
    for minutes."""
    name, _, address = given.partition("=")
    kind = name.partition("-")[0]
    reason = ""
    scheme = ""
    for one in address.split(","):
        try:
            said, _, host = one.strip().rpartition("://")
            scheme = said or scheme  # Pulsar's is said once, before the first
            place = urlsplit(f"//{host}")
            port = place.port or _PORTS.get(scheme, _PORTS[kind])
            socket.create_connection((place.hostname or "", port), CONNECT_S).close()
        except (OSError, ValueError) as error:
            reason = reason or f"{one.strip()}: {error}"
        else:
            return
    raise NotAppliedError(
        f"{name} does not answer ({reason}); nothing was started", advice=f"Start it, or correct its address. {_USAGE}"
    )
