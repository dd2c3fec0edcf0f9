"""Frames over TCP, for bookies and clients alike.

tcp              `TcpNetwork`: connecting, listening, and what all connections share
links            `TcpLink`: one connection: sending, receiving, the end
receive_memory   what frames that are begun and not ended may take of memory
turns            work of many connections, shared out over the turns of the loop
"""
