"""What is built to be installed: the wheel and the source distribution, from this tree, without a network."""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes

import pytest
from helpers.paths import ROOT

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "target", "demo-output"
)
LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")


def setup_file():
    spec = importlib.util.spec_from_file_location("setup_file", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(source, target, *kinds, **options):
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", target, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution and, made from it, the wheel."""
    directory = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT, directory / "tree", symlinks=True, ignore=LEFT_OUT)
    build(directory / "tree", directory / "dist")
    (source,), (wheel,) = (list((directory / "dist").glob(kind)) for kind in ("*.tar.gz", "*.whl"))
    return source, wheel


@pytest.fixture(scope="module")
def built_twice(tmp_path_factory):
    """Both distributions, built at two places by users with another umask, hash seed and time of their files."""
    found = []
    source = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    for name, umask, seed in (("one", 0o022, "1"), ("a longer name of two", 0o077, "2")):
        directory = tmp_path_factory.mktemp("again") / name
        shutil.copytree(source, directory / "tree", symlinks=True)
        for path in (directory / "tree").rglob("*"):
            path.chmod(path.stat().st_mode & ~umask)
            os.utime(path, (1_700_000_000 + int(seed), 1_700_000_000 + int(seed)))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600", "PYTHONHASHSEED": seed}
        build(directory / "tree", directory / "dist", env=environment, umask=umask)
        found.append({path.name: path for path in (directory / "dist").iterdir()})
    return found


def test_two_builds_of_one_tree_are_the_same_bytes(built_twice):
    one, two = built_twice
    assert len(one) == 2
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].read_bytes() == two[name].read_bytes(), f"{name} depends on who builds it, where and when"
    source = next(path for name, path in one.items() if name.endswith(".tar.gz"))
    with tarfile.open(source) as archive:
        members = archive.getmembers()
    assert {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in members} == {(0, 0, "", "", 1767225600)}
    (wheel,) = [path for name, path in one.items() if name.endswith(".whl")]
    bill = json.loads(zipfile.ZipFile(wheel).read(bill_of(wheel)))
    assert bill["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"


def bill_of(wheel):
    """The name of the bill of materials in a wheel, where PEP 770 wants it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
    return name


def test_the_wheel_has_a_bill_of_what_it_asks_for(built):
    with zipfile.ZipFile(built[1]) as archive:
        bill = json.loads(archive.read(bill_of(built[1])))
        metadata = message_from_bytes(archive.read(bill_of(built[1]).split("/")[0] + "/METADATA"))
    # The rules of CycloneDX 1.6 that this one could break.
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill.keys() <= {"bomFormat", "specVersion", "version", "metadata", "components", "dependencies"}
    parts = [bill["metadata"]["component"], *bill["components"]]
    references = [one["bom-ref"] for one in parts]
    assert len(set(references)) == len(references)
    for one in parts:
        assert one["name"]
        assert one["type"] in ("library", "file")
        assert one.get("scope", "required") in ("required", "optional")
        assert "version" not in one or one is parts[0], "a range is no version"
        assert all(set(pair) == {"name", "value"} and pair["value"] for pair in one.get("properties", ()))
    assert {one["ref"] for one in bill["dependencies"]} == set(references)
    assert {ref for one in bill["dependencies"] for ref in one.get("dependsOn", ())} == set(references[1:])
    # And what it says is so.
    assert parts[0]["purl"] == f"pkg:pypi/dlspark@{metadata['Version']}"
    asked = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    wanted = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in asked}
    assert {one["name"].lower() for one in parts if one.get("scope") == "required"} == wanted
    assert {"cryptography", "joserfc"} <= {one["name"] for one in parts if one.get("scope") == "optional"}
    assert not {"pytest", "dlspark"} & {one["name"] for one in parts[1:]}
    binaries = [one for one in parts if one["type"] == "file"]
    assert [one["name"].split("/")[-1] for one in binaries] == ["dlspark-sql.jar", "dlspark-zookeeper.jar"]
    for one in binaries:
        content = (ROOT / one["name"]).read_bytes()
        assert one["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]


def files(*parts):
    """Paths of the files below a folder of this tree, relative to its top."""
    below = ROOT.joinpath(*parts)
    found = (path for path in below.rglob("*") if path.is_file() and not {"__pycache__"} & set(path.parts))
    return {path.relative_to(ROOT).as_posix() for path in found if ".ipynb_checkpoints" not in path.parts}


def test_the_source_distribution_holds_what_everything_is_made_from(built):
    with tarfile.open(built[0]) as archive:
        members = archive.getmembers()
    top = members[0].name.split("/")[0]
    held = {member.name.removeprefix(f"{top}/") for member in members if member.isfile()}
    assert not [member.name for member in members if not (member.isfile() or member.isdir())], "no links"
    for folder in ("jvm-shim", "docs", "conf", "examples", "notebooks", "dlspark", "storage_node", "metadata"):
        missing = files(folder) - held
        assert not missing
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "setup.py", "setup.cfg", "pyproject.toml", "Makefile"):
        assert name in held
    assert not [name for name in held if name.endswith((".pyc", ".class"))]


def test_the_wheel_holds_the_packages_and_their_data_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        licence = [archive.read(name) for name in archive.namelist() if name.endswith("/LICENSE")]
    packages = {name for folder in ("dlspark", "storage_node", "metadata") for name in files(folder)}
    assert held == packages | {"pyspark_distributedlog.py"}
    assert {"dlspark/py.typed", "storage_node/py.typed", "metadata/py.typed"} <= held
    assert {"dlspark/spark/catalog/dlspark-sql.jar", "metadata/zookeeper/dlspark-zookeeper.jar"} <= held
    assert licence == [(ROOT / "LICENSE").read_bytes()]


def test_the_metadata_says_what_an_index_shows(built):
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Author"]
    assert metadata["License"] == "Apache-2.0"
    assert "spark" in metadata["Keywords"].split(",")
    urls = [url.split(", ", 1)[1] for url in metadata.get_all("Project-URL")]
    assert urls
    assert all(url.startswith("https://") for url in urls)
    classifiers = metadata.get_all("Classifier")
    for wanted in ("Operating System ::", "Typing :: Typed", "Topic ::", "Development Status ::"):
        assert any(one.startswith(wanted) for one in classifiers)
    # Beside `license` it is deprecated: setuptools says so in twelve lines, three times in `make setup`.
    assert not any(one.startswith("License ::") for one in classifiers)
    versions = {one.rsplit(" ", 1)[1] for one in classifiers if one.startswith("Programming Language :: Python :: 3.")}
    assert versions == {"3.10", "3.11", "3.12", "3.13"}
    assert metadata["Requires-Python"] == ">=3.10"
    description = metadata.get_payload()
    assert "# dlspark" in description
    relative = [target for target in LINK.findall(description) if not target.startswith("https://")]
    assert relative == [], "an index shows no other file of the project"


def test_links_of_the_description_lead_to_the_source_where_there_is_one():
    text = "See [the guide](docs/spark.md), [this](#here) and [that](https://spark.apache.org/)."
    description = setup_file().description
    kept = "[this](#here) and [that](https://spark.apache.org/)."
    assert description(text) == f"See the guide, {kept}"
    guide = "[the guide](https://host.example/x/blob/main/docs/spark.md)"
    assert description(text, "https://host.example/x/") == f"See {guide}, {kept}"


def test_what_is_used_beyond_its_public_names_has_an_upper_bound():
    """kazoo: attributes of its client; PySpark: the modules of its workers (see the sources' comments)."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = settings["options"]["install_requires"].splitlines()
    for package in ("kazoo", "pyspark"):
        (line,) = [line for line in required if line.startswith(package)]
        assert ",<" in line


def test_an_installed_wheel_writes_a_nodes_configuration(built, tmp_path):
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed]
    subprocess.run([*pip, built[1]], check=True, timeout=120)
    command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-m", "dlspark.cli", "bookie", "init"]
    command += ["node.conf", "--journal", "journal", "--ledgers", "ledgers"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "node.conf").read_text().splitlines()
    assert f"journalDirectories={tmp_path / 'journal'}" in lines
    assert len(lines) == len((ROOT / "conf" / "bookie.conf").read_text().splitlines())
