"""The first way of writing: a batch's rows in ledgers of their own, published as whole segments.

`task` writes a task's rows, each ledger by `staged_ledger`; `commit` publishes what all tasks have staged, and needs
`log_access`, which locks, completes and reads the logs, and `merging`, which chooses what is written again by
`rewriting`: many segments as fewer, or with higher ids. `leftovers` sweeps what failed attempts have left. Nothing here
knows the other way, `append`.
"""
