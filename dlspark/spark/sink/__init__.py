"""Writing with Spark, exactly once.

The way of a batch, file by file:

1. `writer` has the classes that Spark calls; `foreach` does the same for `foreach(ForeachLogWriter(...))`. `columns`
   checks the data frame's columns, cuts Arrow batches by log and routes rows by hash.
2. In each task `staging` runs a `task.TaskWriter`: rows become entries of ledgers that no log refers to, and that are
   listed under the sink. What it has staged travels to the driver as one of the `messages`.
3. On the driver `driver` checks on the planner whether the batch could be written, and commits or aborts at the end.
   `session` is the open namespace of this process, which tasks use as well.
4. `commit` publishes: one conditional multi makes every segment of the batch visible, or none. `batch_rules` decides
   from marks whether, and into which logs (I9); `log_access` locks, completes and reads the logs; `segment_merging`
   makes fewer segments of many, so that the multi fits.
5. A small batch with a number is appended instead of published (`commit_modes` chooses): its rows travel in the
   messages (`inline_rows`), and a process beside the driver appends them. Here is `appender_client`, which finds it in
   its `appender_folder` or starts it and speaks `append_messages`; there are `appender_process`, `appender_server`,
   `appender` and `log_opening`, which takes one of three ways: `owned_log` writes the log, `proxied_log` sends to the
   proxy that owns it (`write_proxies`), `shared_log` to another query's process that does (`appender_peers`). The first
   two have their rules (I20), and keep one mark (`kept_mark`). `user_folders` is where such processes are found.
6. `leftovers` sweeps the ledgers of failed attempts, after a commit or for `dlspark sink sweep`.

What the sink raises is in `dlspark.spark.errors`.
"""
