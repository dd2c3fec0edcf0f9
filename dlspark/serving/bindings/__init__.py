"""The two ways to a `ProxyService` and back to its clients: frames on the storage node's transport, and gRPC."""
