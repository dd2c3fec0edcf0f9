"""Auto-recovery: an auditor finds ledgers that lack copies, replication workers restore them. BookKeeper's znodes and
order, so that processes of both kinds may share a cluster.

    auditor      audits: which bookies are missing, which ledgers lack copies or break the placement policy; publishes
    checker      which entries lie where (`Fragment`), and which bookies lack the copies that they should have
    worker       takes published ledgers, one after the other, under their locks, and restores their copies
    daemon       all of it, for one process, and the vote for the one auditor of a cluster
    status       what all of it does at present, by its znodes: for operators

The keys are in `storage_node.settings.autorecovery`.
"""
