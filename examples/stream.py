"""A streaming query over a log. Needs a running cluster: see examples/README.md."""

import tempfile

from pyspark.sql import functions as f

import dlspark.spark
from dlspark import Namespace

LOG = "example-stream"
START_MS = 1_700_000_000_000

with Namespace.open() as namespace:
    if namespace.log_exists(LOG):
        namespace.delete_log(LOG)
    namespace.create_log(LOG)
    with namespace.open_log(LOG) as log, log.open_writer() as writer:
        # A reading of one of four sensors every 100 ms, five minutes long.
        writer.write_bulk([(START_MS + 100 * n, b"%d" % (n % 4)) for n in range(3_000)])

spark = (
    dlspark.spark.builder()
    .master("local[2]")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
readings = (
    spark.readStream.format("distributedlog")
    .option("subscribe", LOG)  # several logs: separated by commas, or subscribePattern
    .option("maxOffsetsPerTrigger", 1_000)
    .load()
    .select("timestamp", f.col("value").cast("string").alias("sensor"))
)
with tempfile.TemporaryDirectory() as checkpoint:
    query = (
        readings.withWatermark("timestamp", "10 seconds")
        .groupBy(f.window("timestamp", "1 minute"), "sensor")
        .count()
        .writeStream.format("memory")
        .queryName("per_minute")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # ends when what is there has been read; without it the query follows the log
        .start()
    )
    query.awaitTermination()
    print("rows of the batches:", [p.numInputRows for p in query.recentProgress if p.numInputRows])
    spark.table("per_minute").orderBy("window", "sensor").show(4, truncate=False)
    print("readings counted:", spark.table("per_minute").agg(f.sum("count")).first()[0])
spark.stop()
