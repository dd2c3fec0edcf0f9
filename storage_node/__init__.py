"""The log segment store of dlspark: BookKeeper's protocol, the storage node, the ledger client, auto-recovery."""

BELONGS_TO = "dlspark"  # `import dlspark` looks for this line: another package of the name may be before this one
