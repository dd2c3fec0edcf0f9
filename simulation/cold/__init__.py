"""Runs with cold storage: the real mover over a simulated metadata store and an object store with faults.

world       hosts, a bucket that outlives them, and what each program opens
programs    writers that roll and truncate, readers that never stop, movers
checker     what must hold at every moment, and at the end
runs        one run of a seed, many runs
"""
