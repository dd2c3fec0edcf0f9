"""How requests reach a `ProxyService`, and answers their clients: frames on the storage node's transport, and gRPC."""
