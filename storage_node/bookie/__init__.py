"""The storage node (bookie): `python -m storage_node.bookie --conf FILE`.

Five rooms, each of which imports only those below it:

    node/       the life of a node: start, modes, stop; its name, what it shows over HTTP
    requests/   connections: what clients ask, in which order it is begun, and how much may be under way
    store/      what a node holds: ledgers, entry logs, index, checkpoints, compaction, garbage collection
    journal/    what makes it durable before it is answered: batches, files, replay
    disk/       the file system, its space and file descriptors, slabs, records, cookies

`tools/` reads and repairs the directories of a node that does not run.
"""
