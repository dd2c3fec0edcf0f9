"""Requests of clients, and a node's answers (docs/reference/wire.md#bookie-promises).

connections   frames in, adds, and what has to wait, in which order
requester     the client at the other end, as the handlers of its requests see it
reads         plain, fencing and batch reads, long polls, reads of the LAC
handlers      every other request
dialects      the two protocol versions: how requests are read and answers written
limits        how much may be under way before a client waits: requests, bytes (`store.storage` refuses)
"""
