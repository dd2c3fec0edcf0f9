"""A program that sets nothing itself but what `dlspark.spark.builder` sets: from threads, in SQL, with limits.

    python builder_app.py URI LOG

Prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import dlspark.spark


def main(uri: str, log: str) -> None:
    made = dlspark.spark.builder(uri).master("local[2]").config("spark.ui.enabled", "false")
    spark = made.config("spark.log.level", "ERROR").config("spark.sql.shuffle.partitions", "3").getOrCreate()

    def write(number: int) -> None:
        frame = spark.range(10).selectExpr(f"concat('{number}-', id) AS value")
        frame.write.format("distributedlog").mode("append").save(f"{log}-{number}")

    def read(number: int) -> int:
        return spark.read.format("distributedlog").load(f"{log}-{number}").count()

    def stream(number: int) -> int:
        source = spark.readStream.format("distributedlog").load(f"{log}-{number}").selectExpr("value")
        writer = source.writeStream.format("distributedlog").option("log", f"{log}-copy-{number}")
        place = f"{sys.argv[3]}/{number}"
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.read.format("distributedlog").load(f"{log}-copy-{number}").count()

    def sql(number: int) -> int:
        return int(spark.sql(f"SELECT count(*) FROM dlog.`{log}-{number}`").collect()[0][0])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(3)))
        found: dict[str, object] = {one.__name__: list(pool.map(one, range(2))) for one in (read, sql)}
        found["stream"] = pool.submit(stream, 0).result()  # one at a time: Spark gives its Python 10 s to start
    keys = ("spark.sql.shuffle.partitions", "spark.sql.catalog.dlog")
    found["conf"] = [spark.conf.get(key) for key in keys]
    found["limited"] = [len(spark.sql(f"SELECT * FROM dlog.`{log}-0` LIMIT 2").collect()) for _ in range(2)]
    try:
        spark.range(3).selectExpr("'a' AS value", "id").write.format("distributedlog").mode("append").partitionBy(
            "id"
        ).save(log)
    except Exception as error:
        found["partitionBy"] = str(error)
    again = dlspark.spark.builder(uri).getOrCreate()
    found["same"] = again.sparkContext is spark.sparkContext
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
