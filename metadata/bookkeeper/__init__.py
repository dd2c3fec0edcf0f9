"""BookKeeper's znodes.

ledgers             the ledgers of a cluster: their ids, znodes and conditional updates
ledger_metadata     one ledger's metadata: ensembles, state, end
bookies             registration, cookies, the cluster's instance
replication         under-replication: marks, locks, and what to repair next
auditors            the auditor's election and the times of its checks
protos              the protobuf messages in all of these znodes
"""
