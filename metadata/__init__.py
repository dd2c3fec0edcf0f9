"""The metadata store of dlspark: ZooKeeper sessions and what is kept there.

Two layouts lie over one protocol: BookKeeper's znodes, of ledgers and bookies, and DistributedLog's, of logs. What the
znodes hold is in docs/reference/znodes.md.

foundation/         what every floor shares, below all of them: errors, settings, tasks, pacing, processes
store               the protocol of the store, and the checks of paths and request sizes
retry               repeating what is safe to repeat
zookeeper/          the stores, and a real server
bookkeeper/         BookKeeper's layout
distributedlog/     DistributedLog's layout
"""

BELONGS_TO = "dlspark"  # `import dlspark` looks for this line: another package of the name may be before this one
