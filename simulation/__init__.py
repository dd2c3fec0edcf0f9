"""Deterministic simulation of whole clusters: the real code on a simulated clock, network, disk and metadata store.

One seed is one run, in one thread; the same seed is the same run. docs/simulation.md says how it works.

    python -m simulation                    from the command line (`simulation.__main__`)
    runs.seeds.run_seed(17)                 a run drawn from a seed: cluster, workload, faults, healing, proof

The rooms, from the lowest to the highest; each imports only what stands above it in this list:

    environment    what the real code runs on: event loop, network, disk, metadata store
    checkers       what must hold, and the history and trace of a run
    cluster        the hosts of storage nodes and clients, put together as one `World`
    tier           write proxies on hosts of that world
    faults         `Nemesis`, which breaks things; the coverage points that a suite of runs must have reached
    workloads      what clients do: chains of ledgers, logs, their whole lives, names that move, thin clients
    runs           a run and many of them by seed; failovers of a log's writer; fleets of proxies and clients
    mutations      the product with one of its safety rules taken out, to check the checkers
"""
