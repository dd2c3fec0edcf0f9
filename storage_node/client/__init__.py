"""The ledger client: pipelined writers, recovery, readers; over connections to bookies of the BookKeeper protocol."""

from storage_node.client.client import LedgerClient
from storage_node.client.reader import LedgerLocation, LedgerReader, ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.settings.client import ClientSettings

__all__ = [
    "ClientSettings",
    "LedgerClient",
    "LedgerLocation",
    "LedgerReader",
    "LedgerWriter",
    "ReplicaReader",
]
