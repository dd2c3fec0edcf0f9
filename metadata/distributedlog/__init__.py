"""DistributedLog's znodes, and those of the sinks.

namespaces, bindings    a namespace: its root, and where its ledgers are
log_folders, log_names  below which znodes logs are; names, and the paths of one log
log_queries, logs       finding, opening, listing logs; creating them, starting and completing segments
log_admin, log_watch    renaming and deleting logs; logs that come and go
segments                a segment as a value; segment_listing reads them, segment_changes marks and removes
cold_units, cold_places what znodes say of segments that lie in files, and where one is
cold_store, cold_steps  the steps of segments into files and out; cold_deletions: what deleted logs have left;
                        cold_away: which places movers cannot reach
cold_returns            segments that come back from files onto the list
cold_listing            what readers see: the list, and before it what lies in files alone
cold_kept               units with their versions, for who takes steps, without reading all of them each time
producer_segments       which segments say what a log knows of its producers, and how often it lost that
locks, owner_names      the writer's lock; the kind of its owner, by the name
allocators              ledgers that were created ahead
subscribers             positions and locks of readers
permissions             what may be done with logs
sinks, sink_marks       what Spark sinks have staged and published
execution_notes         what the tasks of one execution of a Spark query agree to see
"""
