"""Writing with Spark, exactly once.

The way of a batch, file by file:

1. `writer` has the classes that Spark calls; `foreach` does the same for `foreach(ForeachLogWriter(...))`. `columns`
   checks the data frame's columns, `log_rows` cuts Arrow batches by log and routes rows by hash. `row_cutting` decides
   whether a frame has bytes or a log's own columns, by what `declared_logs` finds; those `row_encoding` makes records
   of.
2. `segments.task` is the task: rows become entries of ledgers that no log refers to, and that are listed under the
   sink. What it has staged travels to the driver as one of the `messages`. `session` is the open namespace of this
   process, which tasks and the driver use.
3. On the driver `driver` checks on the planner whether the batch could be written, and commits or aborts at the end.
4. `segments.commit` publishes: one conditional multi, within its size, makes every segment of the batch visible, or
   none. `batch_rules` decides from marks whether, and into which logs (I9); `segments.log_access` locks, completes and
   reads the logs; `segments.merging` makes fewer segments of many, so that the multi fits; `segments.leftovers` sweeps
   the ledgers of failed attempts, afterwards or for `dlspark sink sweep`.
5. A small batch with a number is appended instead of published (`commit_modes` chooses, and refuses): its rows travel
   in the messages (`inline_rows`), and a process beside the driver appends them. `append` is that process, and how the
   driver reaches it; it keeps the same marks (I20).

Both ways meet `write_proxies`: one asks the proxy that owns a log to give it up, the other may send through it.
`segments` does not know `append`; `driver` joins them.

What the sink raises is in `dlspark.spark.errors`.
"""
