"""Back to a point in time. Needs a running cluster: see examples/README.md."""

from datetime import datetime, timedelta, timezone

import dlspark.spark
from dlspark import Namespace

LOG = "example-rewind"
BEGIN = datetime(2024, 1, 1, tzinfo=timezone.utc)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def ms(moment: datetime) -> int:
    """Return a moment as a transaction id: milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)  # whole numbers: a float would lose milliseconds


namespace = Namespace.open()
if namespace.log_exists(LOG):
    namespace.delete_log(LOG)
namespace.create_log(LOG)

with namespace.open_log(LOG) as log:
    for month in range(4):  # a segment each: they are Spark's partitions
        with log.open_writer() as writer:
            days = [BEGIN + timedelta(days=31 * month + day) for day in range(31)]
            writer.write_bulk([(ms(day), day.date().isoformat().encode()) for day in days])

    # The library: a position by transaction id, found by binary search whatever the log's length.
    march = log.find_txid(ms(datetime(2024, 3, 1, tzinfo=timezone.utc)))
    with log.open_reader(march) as reader:
        first = reader.read_next()
    print(f"March begins at {march}: {first.payload.decode()}")
    print(f"{log.record_count(march)} records from there on, found by reading {log.probes.entries} entries")

spark = dlspark.spark.builder().master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
since = spark.read.format("distributedlog").option("startingTimestamp", "2024-03-01T00:00:00Z").load(LOG)
print(f"Spark reads {since.count()} records, beginning with {since.orderBy('sequence_id').first().value.decode()}")

between = since.where("timestamp < timestamp'2024-04-01T00:00:00Z'")  # narrows what is read, as the option does
print(f"{between.count()} of them in March")
spark.stop()
namespace.close()
