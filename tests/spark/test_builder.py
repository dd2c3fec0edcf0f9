"""`dlspark.spark.builder`: all that a session needs, and nothing that the user has set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.paths import SPARK_PROGRAMS
from helpers.quick_start import plain_environment
from pyspark.sql import SparkSession

from dlspark.spark import builder, catalog_jar
from dlspark.spark.catalog.enabling import CATALOG_CLASS
from dlspark.spark.errors import OptionError
from dlspark.spark.session import _Builder, confs_to_come, logging_is_set_up

if TYPE_CHECKING:
    from helpers.spark.logs import Logs

    from dlspark.sandbox.sandbox import Sandbox

URI = "distributedlog://h:1/n"
ALL = {
    "spark.distributedlog.uri": URI,
    "spark.jars": str(catalog_jar()),
    "spark.python.daemon.module": "dlspark.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.catalog.dlog": CATALOG_CLASS,
    "spark.ui.showConsoleProgress": "false",
}


def missing(made: SparkSession.Builder, **elsewhere: str) -> dict[str, str]:
    assert isinstance(made, _Builder)
    return made._missing({key.replace("_", "."): value for key, value in elsewhere.items()})


def test_all_that_a_session_needs_is_set() -> None:
    assert missing(builder(URI)) == ALL
    assert missing(builder(URI, catalog="logs"))["spark.sql.catalog.logs"] == CATALOG_CLASS
    without = missing(builder(catalog=None))
    assert set(without) == set(ALL) - {"spark.distributedlog.uri", "spark.jars", "spark.sql.catalog.dlog"}


@pytest.mark.parametrize("key", [key for key in ALL if key != "spark.jars"])
def test_what_the_user_has_set_stays(key: str) -> None:
    for made in (
        builder(URI, SparkSession.builder.config(key, "mine")),
        builder(URI).config(key, "mine"),
        builder(URI, SparkSession.builder.config(map={key: "mine"}).appName("a")),
    ):
        assert key not in missing(made)
        assert made._options[key] == "mine"
    assert key not in missing(builder(URI), **{key: "mine"})


def test_jars_of_the_user_stay_beside_ours() -> None:
    mine = builder(URI, SparkSession.builder.config("spark.jars", "/a.jar,/b.jar"))
    assert missing(mine)["spark.jars"] == f"/a.jar,/b.jar,{catalog_jar()}"
    assert missing(builder(URI), spark_jars="/c.jar")["spark.jars"] == f"/c.jar,{catalog_jar()}"
    assert "spark.jars" not in missing(builder(URI).config("spark.jars", f"/elsewhere/{catalog_jar().name}"))


def test_a_builder_is_gone_on_with_and_the_one_that_was_given_is_not_changed() -> None:
    given = SparkSession.builder.appName("given")
    made = builder(URI, given).master("local[2]").appName("made")
    assert made._options["spark.master"] == "local[2]"
    assert given._options["spark.app.name"] == "given"


def test_a_name_that_cannot_be_a_catalogs_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot name a catalog"):
        builder(URI, catalog="a-b")


def test_confs_of_files_and_of_the_command_line_are_known(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.jars /a.jar\nspark.sql.catalog.dlog mine\n# spark.x y\n")
    other = tmp_path / "other.conf"
    other.write_text("spark.jars=/o.jar\n")
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    assert confs_to_come(environ) == {"spark.jars": "/a.jar", "spark.sql.catalog.dlog": "mine"}
    arguments = f"--properties-file {other} --conf 'spark.y=a b=c' --jars /j.jar pyspark-shell"
    assert confs_to_come({**environ, "PYSPARK_SUBMIT_ARGS": arguments}) == {"spark.jars": "/j.jar", "spark.y": "a b=c"}


def test_logging_that_the_user_has_set_up_is_left_alone(tmp_path: Path) -> None:
    here = {"SPARK_CONF_DIR": str(tmp_path)}
    (tmp_path / "log4j2.properties.template").touch()
    assert not logging_is_set_up({**here, "JAVA_TOOL_OPTIONS": "-Xmx1g"}, {"spark.jars": "/a.jar"})
    assert logging_is_set_up({**here, "JAVA_TOOL_OPTIONS": "-Dlog4j2.configurationFile=/mine"}, {})
    assert logging_is_set_up({**here, "LOG4J_CONFIGURATION_FILE": "/mine"}, {})
    assert logging_is_set_up(here, {"spark.driver.extraJavaOptions": "-Xmx1g"})
    (tmp_path / "log4j2.xml").touch()
    assert logging_is_set_up(here, {})


@pytest.mark.spark
@pytest.mark.processes
def test_a_program_reads_and_writes_from_threads_and_nothing_looks_like_a_failure(
    sandbox: Sandbox, logs: Logs, tmp_path: Path
) -> None:
    environment = plain_environment()
    done = subprocess.run(
        [
            sys.executable,
            str(SPARK_PROGRAMS / "builder_app.py"),
            sandbox.uri,
            logs.name("built"),
            str(tmp_path / "checkpoints"),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    hint = found.pop("partitionBy")
    assert found == {
        "read": [10, 10],
        "stream": 10,
        "sql": [10, 10],
        "conf": ["3", CATALOG_CLASS],
        "limited": [2, 2],
        "same": True,
    }
    assert 'option("partitionBy", "id")' in hint
    assert "nothing was written" in hint
    before, failed, trace = done.stderr.partition("Traceback")
    assert not failed, before[-500:] + failed + trace[:4000]
    assert "BrokenPipe" not in done.stderr
