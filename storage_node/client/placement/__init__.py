"""Data placement: which bookies an ensemble is made of.

Import `make_placement` from `storage_node.client.placement.factory`: it stands above the connections, this below.
"""

from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.policies import Placement, RackAwarePlacement, UniformPlacement
from storage_node.client.placement.resolvers import RackResolver, StaticResolver

__all__ = [
    "Adherence",
    "Placement",
    "RackAwarePlacement",
    "RackResolver",
    "StaticResolver",
    "UniformPlacement",
]
