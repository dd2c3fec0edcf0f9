"""What travels between clients and proxies. No I/O: nothing here knows a socket, a loop or a library of RPC."""
