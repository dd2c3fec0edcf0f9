"""Logs as tables of Spark SQL. Needs a running cluster: see examples/README.md."""

import dlspark.spark

spark = (
    dlspark.spark.builder()  # with the catalog `dlog`: a namespace of tables for each folder of logs
    .master("local[2]")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

spark.sql("DROP TABLE IF EXISTS dlog.example.sql")
spark.sql("CREATE TABLE dlog.example.sql")
for begin, end in ((0, 500), (500, 800)):  # each INSERT is whole or not at all
    spark.sql(
        f"""
        INSERT INTO dlog.example.sql (transaction_id, value)
        SELECT 1700000000000 + id * 1000, CAST(concat('order ', id) AS BINARY) FROM range({begin}, {end})
        """
    )
spark.sql("SELECT count(*) AS orders, min(timestamp) AS first, max(timestamp) AS last FROM dlog.example.sql").show()

# A filter on the timestamp is a rewind; so is an option of the source.
spark.sql(
    "SELECT CAST(value AS STRING) AS value FROM dlog.example.sql WHERE timestamp >= '2023-11-14 22:26:37' ORDER BY 1"
).show()
spark.sql("SELECT count(*) AS recent FROM dlog.example.sql WITH (startingTimestamp = '2023-11-14T22:26:37Z')").show()

# The cluster's view of the log is a table as well: each INSERT has made a segment a task.
spark.sql("SELECT segment, state, records, first_dlsn, last_dlsn FROM dlog.example.sql.segments ORDER BY 1").show()
# The log as it was: up to and with the last record of the first INSERT.
spark.sql("SELECT count(*) AS before FROM dlog.example.sql VERSION AS OF '2:0:249'").show()
spark.stop()
