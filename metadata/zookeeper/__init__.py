"""The stores behind `metadata.store`, and a server.

client      the store on a real ZooKeeper; edge has its threads, sockets and limits of time
memory      the store in memory, for tests and simulation
session     what both share on the client's side
outages     says that a session has had no connection for a while
embedded    starts a real ZooKeeper server from PySpark's jars
"""
