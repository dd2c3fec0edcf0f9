"""Tools for a storage node that does not run, and for its place in the cluster: `python -m storage_node.bookie.tools`.

| module | holds |
|---|---|
| offline.py | a node's directories, from outside at any time; locked, its ledgers and any entry |
| verify.py | every checksum, and the index against the logs |
| repair.py | what changes directories: rebuilding the index, formatting, and letting ledgers leave limbo |
| cluster.py | cookies, the ledgers that refer to a node, decommissioning |
| commands.py | each tool as a function from arguments to a `ToolReport`; `__main__.py` and `dlspark bookie` print it |
"""
