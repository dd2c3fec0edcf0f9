"""Reading with Spark, batch and streaming.

The way of a batch, file by file:

1. `selection` reads the options: which logs (`Selection`), from where to where, and the limits of a micro-batch.
   `offsets` is the form of positions in options and in Spark's checkpoint; `schema` is the columns of records, and
   `frame_columns` says whether a frame has those or a log's own; `loading` asks the log when a frame is loaded.
2. `readers` has the classes that Spark calls. A batch read plans each scan of a query by what the query has seen of its
   logs (`query_snapshot`); where Spark keeps a plan and runs it again, its tasks add what was appended since
   (`kept_plan`). A stream asks for the end of each micro-batch first. What filters leave is in `filters`.
3. On the driver `driver` holds the ZooKeeper session and a `driver_log_view` of each log: where it begins and ends, and
   what lies between. That counts records by `segment_records`, and bytes and time by `extents`; `lag` is how far the
   query is behind. New logs of a pattern wake the query.
4. `batch_ends` decides how far a micro-batch goes. `data_loss` decides what becomes of a position that is not there any
   more (I8), and `query_cursor` publishes how far the query has come.
   `declared_columns` looks at what the log of a typed frame declares, for each plan anew.
5. `log_spans` finds what a plan reads of each log, and refuses what storage nodes cannot serve; `planning` cuts that
   into partitions.
6. In a task `partition_reader` fetches the entries of its partition, decodes them and yields record batches. Entries
   come from storage nodes (`span_entries`), or through read proxies (`proxy_entries`, option `proxy`). Of a typed frame
   `typed_records` makes rows of them.

A task has no ZooKeeper session, but for those of a kept plan that look for more: what it imports (`readers`,
`partition_reader`, `span_entries`, `proxy_entries`, `planning`, `selection`, `filters`, `offsets`, `schema`,
`frame_columns`, `typed_records`) must not import the driver's side.
"""
