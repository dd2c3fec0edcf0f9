"""Auto-recovery: an auditor finds ledgers that lack copies, replication workers restore them. BookKeeper's znodes and
order, so that processes of both kinds may share a cluster.

    settings     the keys
    election     one auditor a cluster
    losses       when the lists of bookies call for an audit
    auditor      audits: which bookies are missing, which ledgers lack copies; publishes them
    fragments    which entries lie where: arithmetic
    checker      asks bookies for the copies that they should have
    replicator   restores the copies of one fragment
    worker       takes published ledgers, one after the other, under their locks
    daemon       all of it, for one process
"""
