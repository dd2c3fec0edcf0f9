"""The second way of writing: a small batch is appended to a segment that stays open from batch to batch.

In the driver's commit `clients` finds a process beside the driver in its `folders`, or starts it, and hands it the
batch. There `process` starts the `server`, which hands each batch to the `appender`; `log_opening` chooses one of
three ways into the log: `owned_log`, `proxied_log`, or another query's process. All keep the sink's mark by `marks`.
"""
