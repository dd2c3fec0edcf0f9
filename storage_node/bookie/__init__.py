"""The storage node: journal, entry logs, index, and the protocol's server side.

Bookie(settings, store)      a node on the running loop
BookieSettings               its configuration
python -m storage_node.bookie --conf FILE
"""

from storage_node.bookie.node.bookie import Bookie
from storage_node.settings.bookie import BookieSettings

__all__ = ["Bookie", "BookieSettings"]
