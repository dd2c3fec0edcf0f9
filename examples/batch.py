"""A data frame into a log and back. Needs a running cluster: see examples/README.md."""

from pyspark.sql import functions as f

import dlspark.spark
from dlspark import Namespace

LOG = "example-batch"

with Namespace.open() as namespace:
    if namespace.log_exists(LOG):
        namespace.delete_log(LOG)

spark = dlspark.spark.builder().master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()

# A log's rows have a value and, if they like, a transaction id: numbers that do not go down, often a time.
orders = spark.range(1_000).select(
    (f.lit(1_700_000_000_000) + f.col("id") * 1_000).alias("transaction_id"),
    f.to_json(f.struct(f.col("id").alias("order"), (f.col("id") % 7).alias("customer"))).alias("value"),
)
orders.write.format("distributedlog").option("log", LOG).mode("append").save()

# Every record has come back with its position and its transaction id.
written = spark.read.format("distributedlog").load(LOG)
print(f"{written.count():,} records in {written.select('segment').distinct().count()} segments")  # one a task
written.select("segment", "entry", "slot", "timestamp", f.col("value").cast("string")).show(3, truncate=False)

# Filters on transaction id or timestamp are looked up in the log, not scanned for.
late = written.where(f.col("transaction_id") >= 1_700_000_990_000)
print(f"{late.count()} records of the last ten seconds")

customer = f.get_json_object(f.col("value").cast("string"), "$.customer").alias("customer")
print("customers:", written.select(customer).distinct().count())
spark.stop()
