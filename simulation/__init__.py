"""Deterministic simulation of whole clusters: the real code on a simulated clock, network, disk and metadata store.

One seed is one run, in one thread; the same seed is the same run. docs/simulation.md tells how it works.

run_seed(17)                          a run drawn from a seed: cluster, workload, faults, healing, proof
run_many(range(300))                  many of them, and what they reached
World, Nemesis, Workload              to build scenarios of one's own
python -m simulation  the same from the command line
"""

from simulation.checkers import ViolationError
from simulation.cluster import Client, Node, World
from simulation.faults import Nemesis
from simulation.points import FAULT_POINTS
from simulation.runner import Summary, run_many
from simulation.scenarios import Report, run_seed
from simulation.workload import Chain, Workload

__all__ = [
    "FAULT_POINTS",
    "Chain",
    "Client",
    "Nemesis",
    "Node",
    "Report",
    "Summary",
    "ViolationError",
    "Workload",
    "World",
    "run_many",
    "run_seed",
]
