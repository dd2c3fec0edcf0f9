"""A query whose driver forgets a commit writes nothing twice. Needs a running cluster: see examples/README.md."""

import tempfile
from pathlib import Path

import dlspark.spark
from dlspark import Namespace

LOG = "example-exactly-once"

namespace = Namespace.open()
if namespace.log_exists(LOG):
    namespace.delete_log(LOG)
spark = dlspark.spark.builder().master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()


def copy_files(directory: Path) -> None:
    """Copy what the directory's files hold into the log, a file a batch: each is in the log whole or not at all."""
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(directory / "in"))
        .writeStream.format("distributedlog")
        .option("log", LOG)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def records() -> int:
    """Return how many records the log has."""
    with namespace.open_log(LOG) as log:
        return log.record_count()


with tempfile.TemporaryDirectory() as scratch:
    (Path(scratch) / "in").mkdir()
    for number in range(3):
        lines = "".join(f"line {number * 1_000 + n}\n" for n in range(1_000))
        (Path(scratch) / "in" / f"{number}.txt").write_text(lines)
    copy_files(Path(scratch))
    print(f"{records():,} records")

    # A driver that is killed after the sink has published a batch, and before Spark has noted that, leaves this behind:
    newest = max((Path(scratch) / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    copy_files(Path(scratch))  # Spark runs the batch again; the sink knows it and skips it
    print(f"{records():,} records after batch {newest.name} was run again")
namespace.close()
spark.stop()
