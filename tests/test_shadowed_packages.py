"""Another module of the name of one of dlspark's packages is noticed, where the user looks, and harms nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.paths import ROOT

PYTHON = sys.executable


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_said(error: str, place: Path, todo: str = "Rename it, or move your program") -> None:
    last = error.strip().splitlines()[-1]
    assert "ShadowedModuleError: dlspark cannot be imported:" in last
    assert str(place) in last
    assert todo in last
    assert "During handling" not in error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a script."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "app.py").write_text("import dlspark\nprint('imported')\n")
    return folder


class TestScripts:
    @pytest.mark.parametrize("name", ["metadata", "storage_node"])
    def test_a_file_beside_the_script_is_named_and_not_run(self, folder: Path, name: str) -> None:
        (folder / f"{name}.py").write_text("print('run')\n")
        done = python(folder, "app.py")
        assert done.returncode == 1
        assert done.stdout == ""
        assert_said(done.stderr, folder / f"{name}.py")

    def test_a_package_beside_the_script_is_named(self, folder: Path) -> None:
        (folder / "metadata").mkdir()
        (folder / "metadata" / "__init__.py").write_text("")
        assert_said(python(folder, "app.py").stderr, folder / "metadata")

    def test_a_folder_that_is_no_package_stands_in_nobodys_way(self, folder: Path) -> None:
        (folder / "metadata").mkdir()
        (folder / "metadata" / "schema.json").write_text("{}")
        assert python(folder, "app.py").stdout == "imported\n"

    def test_the_script_itself_may_be_it(self, folder: Path) -> None:
        (folder / "metadata.py").write_text("import dlspark\n")
        assert_said(python(folder, "metadata.py").stderr, folder / "metadata.py")

    def test_one_that_was_imported_before_is_named(self, folder: Path) -> None:
        (folder / "metadata.py").write_text("")
        done = python(folder, "-c", "import metadata, sys; sys.path.pop(0); import dlspark")
        assert_said(done.stderr, folder / "metadata.py")

    def test_without_one_it_is_imported_from_anywhere(self, folder: Path) -> None:
        assert python(folder, "app.py").stdout == "imported\n"


class TestInstallations:
    def packed(self, archive: Path) -> Path:
        with zipfile.ZipFile(archive, "w") as packed:
            for package in ("dlspark", "metadata", "storage_node"):
                for file in (ROOT / package).rglob("*.py"):
                    packed.write(file, file.relative_to(ROOT))
        return archive

    def test_a_zip_file_holds_all_of_it(self, folder: Path, tmp_path: Path) -> None:
        archive = self.packed(tmp_path / "vendored.zip")
        program = f"import sys; sys.path.insert(0, {str(archive)!r}); import dlspark; print(dlspark.__file__)"
        done = python(folder, "-I", "-c", program)
        assert done.stdout.startswith(str(archive)), done.stderr

    def test_a_zip_file_behind_a_file_of_the_name_is_not_taken(self, folder: Path, tmp_path: Path) -> None:
        archive = self.packed(tmp_path / "vendored.zip")
        (folder / "metadata.py").write_text("")
        path = f"sys.path[:0] = [{str(folder)!r}, {str(archive)!r}]"
        assert_said(python(folder, "-I", "-c", f"import sys; {path}; import dlspark").stderr, folder / "metadata.py")

    def test_byte_code_alone_will_do(self, folder: Path, tmp_path: Path) -> None:
        import py_compile

        site = tmp_path / "site"
        for package in ("dlspark", "metadata", "storage_node"):
            for file in (ROOT / package).glob("*.py"):
                target = site / package / f"{file.stem}.pyc"
                target.parent.mkdir(parents=True, exist_ok=True)
                py_compile.compile(str(file), str(target))
        program = f"import sys; sys.path.insert(0, {str(site)!r}); import dlspark; print(dlspark.__file__)"
        done = python(folder, "-I", "-c", program)
        assert done.stdout == f"{site / 'dlspark' / '__init__.pyc'}\n", done.stderr

    def test_another_distribution_of_the_name_is_told_by_its_own(self, folder: Path, tmp_path: Path) -> None:
        """Installed into the same place it takes our file's place, or it comes before it on the path."""
        site = tmp_path / "site"
        (site / "metadata").mkdir(parents=True)
        (site / "metadata" / "__init__.py").write_text("VERSION = 1\n")
        info = site / "tidy_metadata-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tidy-metadata\nVersion: 1.0\n")
        (info / "top_level.txt").write_text("metadata\n")
        (info / "RECORD").write_text("metadata/__init__.py,,\n")
        done = python(folder, "app.py", PYTHONPATH=str(site))
        assert_said(done.stderr, site / "metadata", "pip uninstall tidy-metadata")

    def test_half_an_installation_says_so(self, folder: Path, tmp_path: Path) -> None:
        import shutil

        shutil.copytree(ROOT / "dlspark", tmp_path / "half" / "dlspark", ignore=shutil.ignore_patterns("*.jar"))
        program = f"import sys; sys.path.insert(0, {str(tmp_path / 'half')!r}); import dlspark"
        done = python(folder, "-I", "-S", "-c", program)
        assert "'metadata' is not found beside it. Install dlspark again" in done.stderr


def test_a_notebook_says_it_in_the_cell(folder: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    (folder / "metadata.py").write_text("")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import dlspark")])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ShadowedModuleError") as raised:
        nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    assert str(folder / "metadata.py") in str(raised.value)


SPARK = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
said = {}
for name, action in {
    "read": lambda: spark.read.format("distributedlog").option("uri", URI).load("events").collect(),
    "write": lambda: spark.range(1).selectExpr("cast(id as string) as value")
    .write.format("distributedlog").option("uri", URI).mode("append").save("events"),
}.items():
    try:
        action()
        said[name] = "done"
    except Exception as error:
        said[name] = str(error)
print(json.dumps(said))
""".replace("URI", '"distributedlog://127.0.0.1:1/none"')


@pytest.mark.spark
def test_a_spark_job_whose_workers_find_another_module_first_says_so(folder: Path) -> None:
    """Spark starts its workers in the driver's folder, and Python looks there first."""
    (folder / "metadata.py").write_text("")
    (folder / "job.py").write_text(SPARK)
    done = python(folder, "job.py", PYSPARK_PYTHON=PYTHON)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.strip().splitlines()[-1])
    for name in ("read", "write"):
        assert f"dlspark cannot be imported: {folder / 'metadata.py'} has the name of" in said[name], said[name]
        assert "DATA_SOURCE_NOT_FOUND" not in said[name]


TASK = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.addPyFile(sys.argv[1])

def use(_):
    import dlspark
    return [1]

try:
    spark.sparkContext.parallelize([1], 1).mapPartitions(use).collect()
except Exception as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.spark
def test_a_module_sent_with_the_job_is_noticed_in_its_tasks(folder: Path, tmp_path: Path) -> None:
    """As `--py-files` sends it: it is in front in every worker, while the driver's folder is clean."""
    sent = tmp_path / "sent" / "metadata.py"
    sent.parent.mkdir()
    sent.write_text("")
    (folder / "job.py").write_text(TASK)
    done = python(folder, "job.py", str(sent), PYSPARK_PYTHON=PYTHON)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert "ShadowedModuleError: dlspark cannot be imported:" in said
    assert "metadata.py has the name of dlspark's own package 'metadata'" in said


@pytest.mark.processes
def test_a_sandbox_starts_from_a_folder_with_such_a_file(folder: Path) -> None:
    """Its nodes are Python processes of their own, and need not be started there."""
    (folder / "metadata.py").write_text("")
    program = Path(PYTHON).with_name("dlspark")
    where = ("--dir", "sandbox")  # not absolute: below the user's folder all the same
    if not program.exists():
        pytest.skip("the command dlspark is not installed beside this interpreter")
    run = subprocess.run([program, "sandbox", "start", *where, "--nodes", "1", "--detach"], cwd=folder, timeout=120)
    try:
        assert run.returncode == 0
        assert (folder / "sandbox" / "sandbox.json").exists()
    finally:
        subprocess.run([program, "sandbox", "stop", *where], cwd=folder, timeout=120, check=False)
