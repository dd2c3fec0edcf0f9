"""Words of a log are counted by MapReduce, and a mapper is killed. Needs a running cluster: see examples/README.md."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from operator import add

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql import functions as f

import dlspark.spark
from dlspark import Namespace

LOG = "example-map-reduce"
WORDS = ["a", "log", "is", "list", "of", "records", "that", "grows", "at", "its", "end"]
KILLED = "mappers killed"  # counted like a word
FIRST, END = 1_000, 7_000  # transaction ids: the part of the log that is asked for


def count_words(lines: Iterable[Row]) -> Iterator[tuple[str, int]]:
    """Map: count the words of one part of the log. Who does so for the second part first is killed on the way."""
    task, counts = TaskContext.get(), Counter[str]()
    assert task is not None
    for line in lines:
        counts.update(line.value.split())
        if task.partitionId() == 1 and task.attemptNumber() == 0 and counts.total() > 1_000:
            os.kill(os.getpid(), signal.SIGKILL)
    yield from counts.items()
    yield KILLED, task.attemptNumber()


with Namespace.open() as namespace:
    if namespace.log_exists(LOG):
        namespace.delete_log(LOG)
    namespace.create_log(LOG)
    chance = random.Random(1)
    log = namespace.open_log(LOG)
    for begin in range(0, 8_000, 2_000):
        with log.open_writer() as writer:  # each writer begins a segment
            for number in range(begin, begin + 2_000):
                writer.write(number, " ".join(chance.choices(WORDS, k=6)).encode())
    part = takewhile(lambda record: record.txid < END, log.open_reader(FIRST))
    by_hand = Counter(word for record in part for word in record.payload.decode().split())

# local[2, 3]: two tasks at a time, and up to three attempts at each, as a cluster makes them too
spark = dlspark.spark.builder().master("local[2, 3]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")  # or Spark shows how the mapper died
records = spark.read.format("distributedlog").option("minPartitions", 4).load(LOG)
wanted = records.where((f.col("transaction_id") >= FIRST) & (f.col("transaction_id") < END))
lines = wanted.select(f.col("value").cast("string").alias("value")).rdd
counts = dict(lines.mapPartitions(count_words).reduceByKey(add).collect())
print(f"{lines.getNumPartitions()} mappers, one a segment; {counts.pop(KILLED)} was killed, and its part done again")
print("most often:", Counter(counts).most_common(3))
print(f"{sum(counts.values()):,} words, as counted without Spark:", counts == by_hand)
assert counts == by_hand
spark.stop()
