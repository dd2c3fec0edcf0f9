"""What tests share: every module beside them that is not a test lives here.

pytest has tests/ on the path, so that `from helpers.waiting import until` works in each folder, and a helper is found
by one name only. What users get for tests of their own is `dlspark.testing`.

Any test
    paths               the repository's folders
    waiting             waiting for a condition, by the clock
    virtual_time        tests whose clock jumps to the next timer
    logs                logs that are written and read in one call
    fork_server         processes that start in milliseconds
    jvm_flags           the flags of every JVM that tests start
    quick_start/        an archive of Spark's classes, and Python workers that start quickly
    reference_vectors   the bytes of docs/reference
    upstream_keys       the settings of Apache DistributedLog
    bad_input           a sandbox with data in it, and the proof that a case lost nothing
    tiers, sharing      which tests run, and which file first
    changed             the tests of what has changed, for `make quick`

worlds/                 clusters and metadata servers, in memory, on virtual time, or as processes
    fixtures            fixtures that several folders take; those of one folder are in its conftest.py
    metadata            each metadata store, with as many sessions as a test wants
    memory_cluster      metadata and storage nodes in memory, and clients that may die: under most tests of logs
    memory_bookies      storage nodes in memory
    memory_network      a network between clients and servers of one process
    model_cluster       model bookies on virtual time, under the ledger client
    recovery_world      the same with auto-recovery
    warm_sandbox        a sandbox whose storage nodes start quickly

bookie/                 bookies in the test's process or one of their own, failing disks, damaged frames, clients that
                        know storage nodes and nothing else

serving/                proxies and thin clients
    memory_proxies      proxies in memory, under the thin client
    model_fleet         a model of proxies around one log, step by step
    scripted_service    a service that answers as a test wants it
    proxy_world         write proxies over a cluster in memory, on virtual time
    read_world          a read proxy over a cluster in memory
    strangers           raw connections that send anything
    values              strategies for every request and answer
    rounds, load        the serving tier under faults, as processes

spark/                  clusters under the connector, drivers without Spark, programs with it
    memory_world        storage nodes in this process, under the source's driver
    logs                logs in a sandbox, behind Spark's back
    churn               logs and nodes that do not stand still
    memory_read_proxies read proxies in this process; read_proxy_processes has them as processes
    sink_world          a namespace in memory, under the sink's commit
    appends_world       a cluster in memory, under batches that are appended; appended_proxies has its write proxies
    sink_driver         a driver without Spark; driver_processes has them as processes
    rounds_world        rounds of faults over one session
    programs/           programs with a session of their own
    oracle/             random queries, each asked of a log and of Parquet files

faults/                 hosts that fail, programs that write under it, and the judge
interop/                Java's software beside ours

documents/              what tests read pages with
    pages               examples, links and tables of a page
    citations           what comments and pages cite
    typed_program       a program as users write it, for mypy
    notebook_viewer     notebooks as JupyterLab shows them
"""
