"""`dlspark doctor` in environments that are broken on purpose: it says what, and what to do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.security.minting import DAY, MintedAuthority, now, write_folder

from dlspark.cli import doctor_checks
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import SandboxState, default_directory
from metadata.foundation import processes


class Doctor:
    """Runs it as a user does, in a folder and a home of its own; all is well unless a test breaks it."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "work"
        self.folder.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")},
            "HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.environment.pop("DLSPARK_URI", None)

    def run(self, *arguments: str, limit: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        def lower() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        done = subprocess.run(
            [sys.executable, "-c", "from dlspark.cli.__main__ import main; main()", "doctor", "--json", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            preexec_fn=lower,
        )
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)["findings"]

    def only(self, check: str, *arguments: str, limit: int | None = None) -> tuple[int, dict[str, Any]]:
        """The exit status, and the one finding of this check that is not ok."""
        status, findings = self.run(*arguments, limit=limit)
        bad = [one for one in findings if one["check"] == check and one["verdict"] != "ok"]
        assert len(bad) == 1, findings
        assert bad[0]["todo"]
        return status, bad[0]


@pytest.fixture
def doctor(no_namespace: Path) -> Doctor:
    return Doctor(no_namespace)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_where_nothing_is_wrong_nothing_fails(doctor: Doctor) -> None:
    status, findings = doctor.run()
    assert [one for one in findings if one["verdict"] == "fail"] == []
    assert status == 0
    seen = {one["check"] for one in findings}
    assert seen == {
        "python",
        "speed",
        "workers",
        "modules",
        "threads",
        "java",
        "descriptors",
        "ports",
        "disk",
        "clock",
        "identity",
        "namespace",
    }


def test_the_text_has_a_line_a_finding_and_what_to_do_below(doctor: Doctor) -> None:
    doctor.environment["JAVA_HOME"] = "/nowhere"
    done = subprocess.run(
        [sys.executable, "-m", "dlspark.cli", "doctor"],
        cwd=doctor.folder,
        env=doctor.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = done.stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("fail  java: JAVA_HOME is /nowhere"))
    assert lines[at + 1].startswith("      Install OpenJDK")
    assert lines[-1].startswith("1 failure, ")
    assert done.returncode == 3


class TestWorkers:
    def test_an_interpreter_that_is_not_there(self, doctor: Doctor) -> None:
        doctor.environment["PYSPARK_PYTHON"] = "/nowhere/python"
        status, found = doctor.only("workers")
        assert (status, found["verdict"]) == (3, "fail")
        assert "/nowhere/python (PYSPARK_PYTHON), which is not there" in found["found"]
        assert f"PYSPARK_PYTHON={sys.executable}" in found["todo"]

    def test_one_without_dlspark(self, doctor: Doctor, tmp_path: Path) -> None:
        bare = script(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        doctor.environment["PYSPARK_PYTHON"] = str(bare)
        status, findings = doctor.run()
        said = [one["found"] for one in findings if one["verdict"] == "fail"]
        assert status == 3
        assert any("dlspark cannot be imported in" in one and "No module named 'dlspark'" in one for one in said)

    def test_python3_on_the_path_is_asked_where_nothing_is_named(self, doctor: Doctor, tmp_path: Path) -> None:
        script(tmp_path / "bin" / "python3", "#!/bin/sh\necho broken >&2\nexit 4\n")
        del doctor.environment["PYSPARK_PYTHON"]
        doctor.environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{doctor.environment['PATH']}"
        _, found = doctor.only("workers")
        assert "(python3 on the PATH) does not work as an interpreter: status 4, broken" in found["found"]

    @pytest.mark.parametrize(
        ("changed", "verdict", "said"),
        [
            ({"python": "3.9.1"}, "fail", "is Python 3.9.1, and this is"),
            ({"pyarrow": "1.0.0"}, "fail", "pyarrow is 1.0.0 in"),
            ({"pyarrow": None}, "fail", "pyarrow is not installed in"),
            ({"pyspark": "3.5.0"}, "warn", "pyspark is 3.5.0 in"),
            ({"dlspark": "0.0.1"}, "fail", "dlspark is 0.0.1 in"),
            ({"found": False}, "fail", "does not find pyspark_distributedlog"),
        ],
    )
    def test_one_of_other_versions(
        self, doctor: Doctor, tmp_path: Path, changed: dict[str, object], verdict: str, said: str
    ) -> None:
        """An interpreter that says of itself what the test has it say."""
        import platform
        from importlib import metadata

        from dlspark import __version__

        same = {
            "python": platform.python_version(),
            "executable": "/other/python",
            "pyspark": metadata.version("pyspark"),
            "pyarrow": metadata.version("pyarrow"),
            "dlspark": __version__,
            "found": True,
        }
        answer = json.dumps({**same, **changed})
        doctor.environment["PYSPARK_PYTHON"] = str(script(tmp_path / "python", f"#!/bin/sh\necho '{answer}'\n"))
        status, found = doctor.only("workers")
        assert (status, found["verdict"]) == (3 if verdict == "fail" else 0, verdict)
        assert said in found["found"]

    def test_a_module_in_the_way_of_workers_that_start_here(self, doctor: Doctor) -> None:
        """The command is imported from elsewhere, as an installed one is."""
        (doctor.folder / "metadata.py").write_text("")
        program = Path(sys.executable).with_name("dlspark")
        if not program.exists():
            pytest.skip("the command dlspark is not installed beside this interpreter")
        done = subprocess.run(
            [program, "doctor", "--json"], cwd=doctor.folder, env=doctor.environment, capture_output=True, timeout=240
        )
        bad = [one for one in json.loads(done.stdout)["findings"] if one["verdict"] == "fail"]
        assert [one["check"] for one in bad] == ["modules"]
        assert str(doctor.folder / "metadata.py") in bad[0]["found"]


class TestJavaAndSpark:
    def test_java_home_that_leads_nowhere(self, doctor: Doctor) -> None:
        doctor.environment["JAVA_HOME"] = "/nowhere"
        status, found = doctor.only("java")
        assert (status, found["verdict"]) == (3, "fail")
        assert "JAVA_HOME is /nowhere, where there is no bin/java" in found["found"]

    def test_a_java_home_that_is_too_old(self, doctor: Doctor, tmp_path: Path) -> None:
        script(tmp_path / "jdk" / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
        doctor.environment["JAVA_HOME"] = str(tmp_path / "jdk")
        status, found = doctor.only("java")
        assert (status, found["verdict"]) == (3, "fail")

    def test_a_spark_home_of_another_version(self, doctor: Doctor, tmp_path: Path) -> None:
        (tmp_path / "RELEASE").write_text("Spark 3.5.1 built for Hadoop 3.3.4\n")
        doctor.environment["SPARK_HOME"] = str(tmp_path)
        _, found = doctor.only("spark")
        assert "SPARK_HOME is Spark 3.5.1" in found["found"]


class TestMachine:
    @pytest.mark.parametrize(("limit", "verdict", "status"), [(200, "fail", 3), (1024, "warn", 0)])
    def test_few_descriptors(self, doctor: Doctor, limit: int, verdict: str, status: int) -> None:
        ended, found = doctor.only("descriptors", limit=limit)
        assert (ended, found["verdict"]) == (status, verdict)
        assert f"at most {limit} open files" in found["found"]
        assert "ulimit -n" in found["todo"]

    def test_a_port_that_the_sandbox_keeps_and_another_has(self, doctor: Doctor, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            SandboxState(port, ()).save(tmp_path)
            status, found = doctor.only("ports", "--dir", str(tmp_path))
            assert (status, found["verdict"]) == (3, "fail")
            assert f"1 port is in use by others: {port};" in found["found"]

    @pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this machine has no file system in memory at /dev/shm")
    def test_a_disk_that_is_memory(self) -> None:
        found = list(doctor_checks.check_disk(Path("/dev/shm/none")))
        assert [one.found for one in found if one.verdict is doctor_checks.CheckOutcome.WARN and "tmpfs" in one.found]

    def test_a_directory_that_takes_no_file(self) -> None:
        """Nobody writes there, root neither."""
        found = list(doctor_checks.check_disk(Path("/proc")))
        assert [
            one
            for one in found
            if one.verdict is doctor_checks.CheckOutcome.FAIL and "nothing can be written" in one.found
        ]

    def test_little_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage, size = shutil.disk_usage(tmp_path), 20 << 30
        for free, verdict in (
            (1 << 20, doctor_checks.CheckOutcome.FAIL),
            (2 << 30, doctor_checks.CheckOutcome.WARN),
            (8 << 30, doctor_checks.CheckOutcome.OK),
        ):
            monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: type(usage)(size, size - free, free))
            assert next(doctor_checks.check_disk(tmp_path)).verdict is verdict

    def test_a_clock_that_was_never_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor_checks.time, "time", lambda: 86_400.0)
        (found,) = doctor_checks.check_clock()
        assert (found.verdict, "1970-01-02" in found.found) == (doctor_checks.CheckOutcome.FAIL, True)

    def test_nothing_is_left_where_it_looked(self, tmp_path: Path) -> None:
        list(doctor_checks.check_disk(tmp_path))
        assert list(tmp_path.iterdir()) == []


class TestNamespace:
    def test_one_that_does_not_answer(self, doctor: Doctor) -> None:
        status, found = doctor.only("namespace", "--uri", "distributedlog://127.0.0.1:1/none")
        assert (status, found["verdict"]) == (3, "fail")
        assert "no ZooKeeper server answered" in found["found"]

    @pytest.mark.processes
    def test_one_that_answers_and_is_bound_or_not(self, doctor: Doctor, cli_sandbox: Sandbox) -> None:
        _, findings = doctor.run("--uri", cli_sandbox.uri)
        found = {one["check"]: one for one in findings}
        assert found["namespace"]["verdict"] == "ok"
        # Three nodes and three copies: the next loss stops writers.
        assert (found["nodes"]["verdict"], found["nodes"]["found"][:27]) == ("warn", "3 storage nodes are writabl")
        status, bad = doctor.only("namespace", "--uri", f"distributedlog://{cli_sandbox.zookeeper_address}/none")
        assert status == 3
        assert "bind the namespace" in bad["todo"]


@pytest.mark.parametrize(
    ("age", "left", "mode", "verdicts"),
    [(10, 90, "", ["ok"]), (80, 10, "", ["warn", "ok"]), (10, 90, "optional", ["warn"]), (90, -1, "", ["fail"])],
)
def test_an_identity_that_ends_or_protects_little_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: int, left: int, mode: str, verdicts: list[str]
) -> None:
    folder = MintedAuthority().folder(tmp_path / "id", begins=now() - age * DAY, ends=now() + left * DAY)
    if mode:
        monkeypatch.setenv("DLSPARK_SET_security", mode)
        monkeypatch.setenv("DLSPARK_SET_securityDirectory", str(folder))
    else:
        monkeypatch.setenv("DLSPARK_SECURITY", str(folder))
    assert [one.verdict.value for one in doctor_checks.check_identity()] == verdicts


def test_an_identity_that_its_own_list_has_revoked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = MintedAuthority()
    pair, other = authority.issue("client"), authority.issue("other")
    folder = write_folder(tmp_path / "id", pair, authority.pem, authority.revoke(other))
    monkeypatch.setenv("DLSPARK_SECURITY", str(folder))
    assert [one.verdict.value for one in doctor_checks.check_identity()] == ["ok"]
    write_folder(folder, pair, authority.pem, authority.revoke(other, pair))
    (found,) = doctor_checks.check_identity()
    assert found.verdict.value == "fail"
    assert "has revoked it" in found.found


def test_an_identity_that_is_not_there_is_found_and_what_to_do_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLSPARK_SECURITY", str(tmp_path / "missing"))
    (found,) = doctor_checks.check_identity()
    assert found.verdict.value == "fail"
    assert str(tmp_path / "missing") in found.found
    assert "securityDirectory" in found.todo
    assert found.todo not in found.found


@pytest.mark.parametrize(("secured", "named", "verdict"), [(True, "", "warn"), (False, "", "ok"), (True, "x", "ok")])
def test_a_shell_that_is_not_in_the_secured_sandbox_that_runs_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secured: bool, named: str, verdict: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DLSPARK_URI", named)
    directory = default_directory()
    directory.mkdir(parents=True)
    SandboxState(1, (2,), os.getpid(), processes.started(os.getpid()), secured=secured).save(directory)
    (found,) = doctor_checks.check_identity()
    assert found.verdict.value == verdict
    assert (f"DLSPARK_SECURITY={directory}/security/client" in found.todo) == (verdict == "warn")


def test_without_security_an_identity_is_not_missed() -> None:
    (found,) = doctor_checks.check_identity()
    assert (found.verdict.value, found.found[:15]) == ("ok", "security is off")
