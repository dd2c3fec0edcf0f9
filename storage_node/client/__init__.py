"""The ledger client: pipelined writers, recovery, readers; over connections to bookies of the BookKeeper protocol.

client             `LedgerClient`: creates, opens, recovers and deletes ledgers
writer, pipeline   one ledger's writer, and how its machine is run (`storage_node.protocol.writing` decides)
reader, read_ahead, last_confirmed    one ledger's readers; what they read ahead; how far the ledger is confirmed
reading            entries from their replicas, by machines of `storage_node.protocol.reading`
recovering         runs the machine of `storage_node.protocol.recovery`
placement          on which bookies a ledger goes
connections, channels    to bookies, opened when they are needed
health             which bookies fail or are slow, and how long an operation waits for those away
ledger_copies      single copies of entries, for auto-recovery
"""
