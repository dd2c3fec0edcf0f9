"""Options of gRPC's channels, for both sides. They are made together: what one side does the other must bear.

A server of gRPC ends a connection (GOAWAY, too_many_pings) that is pinged more often than every five minutes while it
sends nothing, and more often than every two hours while there are no calls on it, unless it is told otherwise. Here
`least_ping_ms` says how often, and it holds without calls, too. Pings that come sooner are counted (strikes) until the
server sends something; MAX_STRIKES of them may come late or together, as they do when a process was held up. Lengths
of messages come from the request's limit, not from gRPC's default of 4 MB.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from dlspark.serving.bindings.bounds import STEP_BYTES, GrpcLimits

Options: TypeAlias = tuple[tuple[str, int], ...]

CLIENT_KEEPALIVE_MS: Final = 30_000
CLIENT_KEEPALIVE_TIMEOUT_MS: Final = 20_000
MAX_STRIKES: Final = 2
"""gRPC's own number; 0 would mean that pings are never too many."""


def server_options(limits: GrpcLimits) -> Options:
    """Options of a server with these limits."""
    return (
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", max(limits.message_bytes, limits.read_bytes) + STEP_BYTES),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_metadata_size", limits.metadata_bytes),
        ("grpc.absolute_max_metadata_size", limits.metadata_bytes),
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
        ("grpc.max_connection_idle_ms", limits.idle_ms),
        ("grpc.keepalive_time_ms", limits.keepalive_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.least_ping_ms),
        ("grpc.http2.max_ping_strikes", MAX_STRIKES),
        ("grpc.so_reuseport", 0),  # two proxies that share a port by mistake would share its clients by chance
    )


def client_options(
    *, message_bytes: int = GrpcLimits().message_bytes, keepalive_ms: int = CLIENT_KEEPALIVE_MS
) -> Options:
    """Options of a client's channel to such a server: it takes what the server sends, and lives while it is idle."""
    return (
        ("grpc.max_receive_message_length", message_bytes + STEP_BYTES),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", CLIENT_KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
