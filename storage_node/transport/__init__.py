"""Common to servers and clients of every floor: frames over TCP, and the bounds of a server's connections.

tcp              `TcpNetwork`: connecting, listening, and what all connections share
links            `TcpLink`: one connection: sending, receiving, the end
receive_memory   what frames that are begun and not ended may take of memory
admission        which connections a server has, and which one makes room for a newcomer
budgets          bytes that all connections of a server may hold together
turns            work of many connections, shared out over the turns of the loop
http_server      a small HTTP server for probes and metrics, of a node and of a proxy
"""
