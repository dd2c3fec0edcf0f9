"""The two ways to a `ProxyService` and back to its clients: frames on the storage node's transport, and gRPC.

service            the seam: what a proxy is to its bindings, what both ask of a client, and the limits of both
frames_server      takes connections; frames_connection: one of them; frames_client: the other end
frames_sessions    what the client of a connection has proved; grpc_tls: the same of a call, and TLS for gRPC
grpc_server        gRPC's server, with health, reflection and what its clients must know; grpc_calls: its calls
"""
