"""What tests share: every module beside them that is not a test lives here.

pytest has tests/ on the path, so that `from helpers.waiting import until` works in each folder, and a helper is found
by one name only. What users get for tests of their own is `dlspark.testing`.

Any test
    paths               the repository's folders
    waiting             waiting for a condition, by the clock
    virtual_time        tests whose clock jumps to the next timer
    fork_server         processes that start in milliseconds
    warm_sandbox        a sandbox whose storage nodes start that way
    jvm_flags           the flags of every JVM that tests start
    quick_start         an archive of Spark's classes, and Python workers that start quickly
    sharing             which test file runs first

Metadata and logs
    metadata_worlds     each metadata store, with as many sessions as a test wants
    logs                logs that are written and read in one call
    memory_bookies      storage nodes in memory, under tests of logs
    upstream_keys       the settings of Apache DistributedLog

Storage nodes
    bookie/             bookies in the test's process or one of their own, failing disks, damaged frames
    model_cluster       model bookies on virtual time, under the ledger client
    recovery_world      the same with auto-recovery
    strangers           adds by a client that knows storage nodes and nothing else
    wire_bytes          bytes that a well-behaved client never sends to a node

Real processes
    faults/             hosts that fail, programs that write under it, and the judge
    interop/            Java's software beside ours
    bad_input           a sandbox with data in it, and the proof that a case lost nothing

Documents
    pages               examples, links and tables of a page
    citations           what comments and pages cite
    reference_vectors   the bytes of docs/reference
    typed_program       a program as users write it, for mypy
    notebook_viewer     notebooks as JupyterLab shows them
"""
