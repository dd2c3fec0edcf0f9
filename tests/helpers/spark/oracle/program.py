"""Play scenes of the oracle in a session of its own.

    PYTHONPATH=tests python -m helpers.spark.oracle.program URI --seeds 0:200 --mode jar|plain

`jar` is a session that `dlspark.spark.builder` makes, with the catalog; `plain` one of `SparkSession.builder`, with
nothing but Python. Each prints differences as it finds them, and at the end how many queries of which kind there were,
as JSON; it exits with 1 if there was a difference.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from dlspark.spark.catalog.enabling import DEFAULT_NAME
from helpers.spark.oracle.scene import QUERIES, Scene

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
}


def session(mode: str, uri: str, place: Path) -> SparkSession:
    """Make the session of a mode."""
    from pyspark.sql import SparkSession

    import dlspark.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = dlspark.spark.builder(uri) if mode == "jar" else SparkSession.builder
    for key, value in {**CONFS, "spark.sql.warehouse.dir": str(place / "warehouse")}.items():
        made = made.config(key, value)
    return made.master("local[2]").getOrCreate()


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # where a scene hangs
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri")
    parser.add_argument("--seeds", default="0:10", help="one seed, or first:end")
    parser.add_argument("--mode", choices=("jar", "plain"), default="jar")
    parser.add_argument("--queries", type=int, default=QUERIES, help="queries of each scene")
    parser.add_argument("--trace", action="store_true", help="say each query before it is asked")
    given = parser.parse_args()
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    asked: Counter[str] = Counter()
    different = []
    refused = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oracle-") as made:
        place = Path(made)
        spark = session(given.mode, given.uri, place)
        for seed in seeds:
            scene = Scene(spark, given.uri, seed, place, catalog=DEFAULT_NAME if given.mode == "jar" else None)
            scene.trace = given.trace
            try:
                for found in scene.play(given.queries):
                    different.append(seed)
                    print(f"DIFFERENCE {given.mode} {found}\n", flush=True)
            except Exception:
                different.append(seed)
                print(f"DIFFERENCE {given.mode} seed {seed} ended in an error\n{traceback.format_exc()}\n", flush=True)
            asked += scene.asked
            refused += scene.refused
        spark.stop()
    said = {
        "mode": given.mode,
        "scenes": len(seeds),
        "queries": asked.total(),
        "refused": refused,
        "kinds": dict(asked),
    }
    print(json.dumps({**said, "different": different, "seconds": round(time.monotonic() - began)}), flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
