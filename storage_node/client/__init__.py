"""The ledger client: pipelined writers, recovery, readers; over connections to bookies of the BookKeeper protocol."""
