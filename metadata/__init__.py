"""The metadata store of dlspark: ZooKeeper sessions and what is kept there.

Two layouts lie over one protocol: BookKeeper's znodes, of ledgers and bookies, and DistributedLog's, of logs. What the
znodes hold is in docs/reference/znodes.md.

The store
    foundation          what every floor shares, below all of them: errors, settings, tasks, pacing, processes
    store               the protocol of the store, and the checks of paths and request sizes
    zookeeper           the store on a real ZooKeeper; zookeeper_edge has its threads, sockets and limits of time
    memory              the store in memory, for tests and simulation
    session, retry      what both stores share on the client's side; repeating what is safe to repeat
    embedded            starts a real ZooKeeper server from PySpark's jars

BookKeeper's layout
    ledgers             the ledgers of a cluster: their ids, znodes and conditional updates
    ledger_metadata     one ledger's metadata: ensembles, state, end
    bookies             registration, cookies, the cluster's instance
    replication         under-replication: marks, locks, and what to repair next
    auditors            the auditor's election and the times of its checks
    protos              the protobuf messages in all of these znodes

DistributedLog's layout
    namespaces, bindings    a namespace: its root, and where its ledgers are
    log_folders, log_names  below which znodes logs are; names, and the paths of one log
    log_queries, logs       finding, opening, listing logs; creating them, starting and completing segments
    log_admin, log_watch    renaming and deleting logs; logs that come and go
    segments                a segment as a value; segment_listing reads them, segment_changes marks and removes
    locks, owner_names      the writer's lock; what the name of its owner says of who that is
    allocators              ledgers that were created ahead
    subscribers             positions and locks of readers
    permissions             what may be done with logs
    sinks, sink_marks       what Spark sinks have staged and published
    execution_notes         what the tasks of one execution of a Spark query agree to see
"""

BELONGS_TO = "dlspark"  # `import dlspark` looks for this line: another package of the name may be before this one
