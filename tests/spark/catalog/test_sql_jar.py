"""The SQL catalog's jar is what its sources give, is in every distribution, and knows its Spark versions."""

from __future__ import annotations

import configparser
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

from dlspark.spark import catalog_jar
from dlspark.spark.catalog.enabling import CATALOG_CLASS, check_version, supported_spark_versions
from dlspark.spark.errors import OptionError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """jvm-shim/build.py."""
    spec = importlib.util.spec_from_file_location("shim_build", ROOT / "jvm-shim" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("jar", ["CATALOG", "ZOOKEEPER"])
def test_the_jar_was_built_from_these_sources(build: ModuleType, jar: str) -> None:
    built = getattr(build, jar)
    manifest = build.manifest_of(built.path)
    assert manifest["Source-Digest-1"] + manifest["Source-Digest-2"] == build.source_digest(built), "run: make shim"


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
@pytest.mark.parametrize("jar", ["CATALOG", "ZOOKEEPER"])
def test_building_again_gives_the_same_bytes(build: ModuleType, tmp_path: Path, jar: str) -> None:
    built, again = getattr(build, jar), tmp_path / "again.jar"
    build.build(built, again)
    if build.manifest_of(built.path)["Build-Jdk-Spec"] != str(build.javac_version()):
        pytest.skip("another major version of javac may write other bytes")
    assert again.read_bytes() == built.path.read_bytes(), "run: make shim"


def test_a_wheel_and_a_source_distribution_contain_the_jar() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert "dlspark-sql.jar" in config["options.package_data"]["dlspark.spark.catalog"]
    assert catalog_jar().relative_to(ROOT).as_posix() == "dlspark/spark/catalog/dlspark-sql.jar"


def test_the_versions_are_those_that_the_project_supports() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert supported_spark_versions() == ("4.2", "4.3")
    assert "pyspark>=4.2,<5" in config["options"]["install_requires"].split()
    check_version(pyspark.__version__)


@pytest.mark.parametrize("version", ["4.1.4", "4.4.0", "5.0.0-SNAPSHOT", "4", ""])
def test_a_spark_that_was_not_tested_is_refused_by_name(version: str) -> None:
    with pytest.raises(OptionError, match=r"tested with Spark 4\.2 and 4\.3"):
        check_version(version)


def test_the_conf_file_of_the_repository_switches_the_catalog_on() -> None:
    lines = [line.split() for line in (ROOT / "spark-defaults.conf").read_text().splitlines()]
    conf = {line[0]: line[1] for line in lines if len(line) == 2}
    assert conf["spark.sql.catalog.dlog"] == CATALOG_CLASS
    assert ROOT / conf["spark.jars"] == catalog_jar()
