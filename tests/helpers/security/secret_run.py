"""A run with secrets in it, and what it leaves: `python -m helpers.security.secret_run FOLDER` (test_secrets_nowhere).

Its settings are in a file that DLSPARK_CONF names, credentials of S3 in the environment; storage nodes ask for SCRAM or
DIGEST-MD5, whose files are in the folder SASL_FOLDER. In the folder are afterwards: the sandbox, Spark's event log,
checkpoint, local files and pages, what commands and errors said, the command lines that processes of this machine had
meanwhile (`argv`), and the variables of those of Java (`environ`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dlspark.spark
from dlspark import Namespace
from dlspark.core.settings.settings import Settings
from dlspark.errors import DistributedLogError
from dlspark.sandbox.sandbox import Sandbox
from helpers.spark.programs.pages import save_pages
from metadata.foundation.socks import socks_proxy
from storage_node.settings.files import NodeFile


class CommandLines:
    """All command lines that are seen while a block runs, and the variables of Java processes, each kept in a file:
    `argv`, and `environ` beside it. Variables that `given` has as they are were set by the user, and are left out."""

    def __init__(self, path: Path, given: Mapping[str, str]) -> None:
        self._path = path
        self._given = {os.fsencode(f"{name}={value}") for name, value in given.items()}
        self._done = threading.Event()
        self._seen: set[bytes] = set()
        self._variables: set[bytes] = set()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._path.write_bytes(b"\n".join(sorted(self._seen)))
        self._path.with_name("environ").write_bytes(b"\n".join(sorted(self._variables - self._given)))

    def have(self, words: bytes) -> bool:
        """Return whether a command line was seen that ends so."""
        return any(seen.endswith(words) for seen in list(self._seen))

    def _look(self) -> None:
        while not self._done.wait(0.05):
            for process in os.listdir("/proc"):
                if process.isdigit():
                    with contextlib.suppress(OSError):
                        self._look_at(Path("/proc", process))

    def _look_at(self, process: Path) -> None:
        words = (process / "cmdline").read_bytes()
        self._seen.add(words)
        if words.partition(b"\0")[0].endswith(b"java"):
            self._variables |= set((process / "environ").read_bytes().split(b"\0"))


def command(said: Any, *arguments: str) -> None:
    """Run a command of the program; what it says goes to a file."""
    done = subprocess.run(
        [sys.executable, "-m", "dlspark.cli", *arguments], input=b"a record\n", capture_output=True, check=False
    )
    said.write(f"{arguments}: {done.returncode}\n".encode() + done.stdout + done.stderr)


def told(said: Any, work: Any) -> None:
    """Note an error with all that a traceback shows, and its representation."""
    try:
        work()
    except Exception as error:
        said.write("".join(traceback.format_exception(error)).encode())
        said.write(repr((error, getattr(error, "__dict__", None))).encode())
    else:
        said.write(b"(no error)\n")


def use(uri: str, folder: Path, said: Any) -> None:
    """Write, read, stream, explain, show, and fail in some ways."""
    with Namespace.open(uri) as namespace:
        namespace.create_log("flights")
        with namespace.open_log("flights") as log:
            with log.open_writer() as writer:
                writer.write_bulk([(n, b"%d" % n) for n in range(100)])
            for shown in (namespace, log, log.status(), namespace.settings if hasattr(namespace, "settings") else None):
                said.write(repr(shown).encode())
                html = getattr(shown, "_repr_html_", None)
                said.write(str(html() if html is not None else "").encode())
    for arguments in (["log", "show", "flights"], ["write", "flights"], ["doctor"], ["--verbose", "log", "list"]):
        command(said, *arguments)
    spark = (
        dlspark.spark.builder()
        .master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .config("spark.eventLog.compress", "true")
        .config("spark.eventLog.compression.codec", "zstd")
        .config("spark.eventLog.rolling.enabled", "true")
        .config("spark.sql.catalog.dlog.minPartitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.distributedlog.uri", uri)
        .getOrCreate()
    )
    frame = spark.read.format("distributedlog").load("flights")
    with contextlib.redirect_stdout(open(folder / "explained", "w")):
        frame.explain("extended")
        frame.explain("formatted")
    assert frame.count() >= 100
    frame.selectExpr("'copies' AS log", "value").write.format("distributedlog").mode("append").save("copies")
    stream = spark.readStream.format("distributedlog").option("subscribe", "flights").load()
    query = (
        stream.select("value")
        .writeStream.format("distributedlog")
        .option("path", "streamed")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    said.write(str(query.lastProgress).encode())
    told(said, lambda: spark.sql("SELECT no_such_column FROM dlog.flights").count())
    told(said, lambda: spark.sql("CREATE TABLE dlog.t TBLPROPERTIES (`distributedlog.digestPw`='x')"))
    said.write(str(spark.sql("SELECT count(*) FROM dlog.flights").collect()).encode())
    cold = spark.read.format("distributedlog").option("endpoint", "nonsense://user:pass@host")
    told(said, lambda: cold.load("flights").count())
    save_pages(spark, folder / "pages")
    spark.stop()


def use_sasl(uri: str, folder: Path, said: Any) -> None:
    """Write as a client of DIGEST-MD5, and be refused as one with a wrong password, by either mechanism."""
    digest = {
        "bkc.clientAuthProviderFactoryClass": "sasl",
        "bkc.saslJaasConfigurationFile": str(folder / "jaas.conf"),
        "bkc.saslDigestMd5WithoutTls": "true",
    }
    tried = [("by-digest", digest), ("liar", {**digest, "bkc.saslJaasClientSectionName": "Liar"})]
    tried.append(("wrong", {"bkc.scramPasswordFile": str(folder / "wrong")}))
    for log, settings in tried:

        def write(log: str = log, settings: Mapping[str, str] = settings) -> None:
            quick = {"bkc.outageWaitMillis": "0", "bkc.addEntryTimeoutSec": "5"}
            with Namespace.open(uri, settings=Settings.from_environment().with_values({**quick, **settings})) as made:
                made.create_log(log)
                with made.open_log(log) as opened, opened.open_writer() as writer:
                    writer.write(1, b"x").result(20)

        told(said, write)


def main(folder: Path) -> None:
    """Do all of it; the environment has the secrets."""
    for name in ("events", "local"):
        (folder / name).mkdir()
    logging.basicConfig(level=logging.DEBUG, filename=folder / "debug.log")
    logging.getLogger("metadata.zookeeper.client.kazoo").setLevel(1)
    conf = os.environ["DLSPARK_CONF"]
    sasl = Path(os.environ["SASL_FOLDER"])
    asks = {
        "bookieAuthProviderFactoryClass": "scram,sasl",
        "scramUsersFile": sasl / "scram.json",
        "saslJaasConfigurationFile": sasl / "jaas.conf",
        "saslDigestMd5WithoutTls": "true",
        "auditLog": folder / "audit.log",
    }
    with (
        CommandLines(folder / "argv", os.environ),
        (folder / "said").open("wb") as said,
        Sandbox(folder / "sandbox", nodes=1, node_settings=asks) as made,
    ):
        os.environ["DLSPARK_URI"] = made.uri
        use(made.uri, folder, said)
        use_sasl(made.uri, sasl, said)
        said.write(repr(Settings.from_properties(conf)).encode())
        said.write(repr(Settings.from_environment()).encode())
        wrong = Settings.from_properties(conf).with_values({"digestPw": os.environ["OTHER_PASSWORD"]})

        def read_with_another_password() -> None:
            with Namespace.open(made.uri, settings=wrong) as other, other.open_log("flights") as log:
                log.open_writer().write(200, b"x")

        told(said, read_with_another_password)
        told(said, lambda: Settings.from_mapping({"digestPw": "x", "digestPW": os.environ["OTHER_PASSWORD"]}))
        told(said, lambda: Settings.from_mapping({"coldStoragePath": f"s3://me:{os.environ['OTHER_PASSWORD']}@b/x"}))
        told(said, lambda: socks_proxy({"DLSPARK_SOCKS": f"socks5://me:{os.environ['OTHER_PASSWORD']}@host:1"}))
        store = {"httpServerKeyStorePassword": os.environ["OTHER_PASSWORD"], "httpServerTlsEnable": "perhaps"}
        told(said, lambda: NodeFile({"journalDirectories": "/j", "ledgerDirectories": "/l", **store}).bookie())
        told(said, lambda: (_ for _ in ()).throw(DistributedLogError("the last line")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
