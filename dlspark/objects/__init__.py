"""Object stores: whole files that never change, and ranges of them, in a folder, on S3 or HDFS. They know no log.

    store, opened_store          what every store does; what they share: reads are tried again, in one process alone
    addresses, opening           what an address means; the store that is there
    threaded_writer              what is written by calls that block
    local                        a folder
    s3, s3_changes, s3_options   S3: obstore reads, botocore writes
    hdfs, webhdfs                HDFS, by WebHDFS
    memory, memory_faults        one in memory, with faults drawn from a seed: for tests and the simulation
    ranges                       ranges that lie close together are fetched as one
    errors                       what can go wrong, in the four kinds of `metadata.foundation.errors`

A library of a store is loaded when a store of its kind is opened. No store lives over a fork.
"""
