"""A program in Go writes and reads logs through real proxies: what docs/serving/other-languages.md says is done.

The page's commands are run as they stand: they generate the code, build examples/go, start the proxies, write, print.
Where there is no Go the tests are skipped; where there is, but grpcio-tools or Go's modules are not to be had, they are
skipped as well, and fail in CI. The first build takes 40 s of a processor; later ones find it in Go's own cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from helpers.documents.pages import broken_links, linked_files
from helpers.paths import DOCS, ROOT

from dlspark import Client
from dlspark.core.runtime import Runtime

PAGE = DOCS / "serving" / "other-languages.md"
EXAMPLE = ROOT / "examples" / "go"
PROTO = Path("dlspark") / "serving" / "protocol" / "distributedlog.proto"
BUILD, START, USE = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
WRITERS, READER = "127.0.0.1:8001 127.0.0.1:8002", "127.0.0.1:8101"
LIMIT_S = 400

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(480),
    pytest.mark.plain_only(reason="the page starts an open sandbox, and its Go program dials without TLS"),
]


def cannot(reason: str) -> NoReturn:
    """What CI must have is missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Build:
    """The page's first commands under way, in a copy of what they need of the repository."""

    checkout: Path
    process: subprocess.Popen[str]

    @property
    def program(self) -> Path:
        """The program, when it is built."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, out
        return self.checkout / "examples" / "go" / "logs"


@pytest.fixture(scope="module", name="build")
def _build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go (https://go.dev/dl)")
    if find_spec("grpc_tools") is None:
        cannot("there is no protoc: pip install grpcio-tools")
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(EXAMPLE, checkout / "examples" / "go", ignore=shutil.ignore_patterns("bin", "serving", "logs"))
    (checkout / PROTO.parent).mkdir(parents=True)
    shutil.copy(ROOT / PROTO, checkout / PROTO)
    modules = subprocess.run(
        [go, "mod", "download"], cwd=checkout / "examples" / "go", capture_output=True, text=True, timeout=LIMIT_S
    )
    if modules.returncode:
        assert "checksum mismatch" not in modules.stderr, modules.stderr
        cannot(f"Go's modules cannot be downloaded: {modules.stderr.strip()[-300:]}")
    protoc = checkout / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    # Neither optimized nor with tables for debuggers: half the time.
    flags = f"""{os.environ.get("GOFLAGS", "")} '-gcflags=all=-N -l' '-ldflags=-s -w'"""
    environment = os.environ | {"PATH": f"{checkout}:{os.environ['PATH']}", "GOFLAGS": flags, "CGO_ENABLED": "0"}
    process = subprocess.Popen(
        ["bash", "-ec", BUILD],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield Build(checkout, process)
    process.kill()
    process.communicate()


@dataclass
class Tier:
    """Two write proxies and a read proxy, started by the page's commands."""

    uri: str
    writers: list[str]
    """The addresses of the write proxies for gRPC."""
    frames: set[str]
    """Likewise for frames."""
    reader: str


@pytest.fixture(scope="module", name="tier")
def _tier(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if name != "DLSPARK_URI"} | {"HOME": str(home)}
    cli = home / "dlspark"
    cli.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dlspark.cli "$@"\n')
    cli.chmod(0o755)
    environment |= {"PATH": f"{home}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(command: str) -> str:
        return subprocess.run(
            command, shell=True, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
        ).stdout

    begin, listing = START.splitlines()
    uri = run(begin).strip()
    try:
        assert len(run(listing).splitlines()) > 4
        rows = json.loads(run(f"{listing} --output json"))["proxies"]
        (reader,) = (row["grpc"] for row in rows if row["kind"] == "read")
        writers = [row for row in rows if row["kind"] == "write"]
        yield Tier(uri, [row["grpc"] for row in writers], {row["address"] for row in writers}, reader)
    finally:
        Runtime.shared().close()
        run("dlspark sandbox stop")


def go(build: Build, *arguments: str) -> subprocess.Popen[str]:
    """The program, with pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen([build.program, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def written(client: Client, log: str, count: int) -> list[tuple[str, str]]:
    """The first so many records, as the program prints them."""
    with client.reader(log, "earliest") as reader:
        found = [reader.read_next() for _ in range(count)]
    return [(str(record.dlsn), record.payload.decode()) for record in found]


def test_the_page_s_commands_write_and_print_what_python_reads_and_writes(build: Build, tier: Tier) -> None:
    write, tail = USE.replace(WRITERS, " ".join(tier.writers)).splitlines()
    assert build.program.is_file()
    subprocess.run(write, shell=True, cwd=build.checkout, check=True, timeout=60)
    command = tail.replace(READER, tier.reader)
    assert command != tail
    with (
        Client.connect(tier.uri) as client,
        subprocess.Popen(
            f"exec {command}", shell=True, cwd=build.checkout, stdout=subprocess.PIPE, text=True
        ) as printing,
    ):
        assert printing.stdout is not None
        try:
            printed = [printing.stdout.readline().strip() for _ in range(100)]
            assert printed == [" ".join(record) for record in written(client, "orders", 100)]
            assert [line.split()[1] for line in printed] == [str(number) for number in range(1, 101)]
            place = client.write("orders", "wörter".encode())
            assert printing.stdout.readline() == f"{place} wörter\n"
        finally:
            printing.kill()


def test_an_owner_that_another_proxy_names_is_asked_where_it_speaks_grpc(build: Build, tier: Tier) -> None:
    with Client.connect(tier.uri) as client:
        client.write("owned", b"by one of them")
        for turn, writer in enumerate(tier.writers):
            with go(build, "owned", f"turn-{turn}", writer) as writing:
                _, errors = writing.communicate(f"{turn}", timeout=60)
            assert (writing.returncode, errors) == (0, "")
        assert [payload for _, payload in written(client, "owned", 3)] == ["by one of them", "0", "1"]


def test_a_long_line_is_one_record_and_one_that_is_too_long_is_none(build: Build, tier: Tier) -> None:
    with Client.connect(tier.uri) as client:
        for turn, (line, refused) in enumerate([("x" * 100_000, False), ("y" * 3_000_000, True)]):
            with go(build, "long", f"long-{turn}", *tier.writers) as writing:
                _, errors = writing.communicate(f"{line}\n", timeout=60)
            assert (writing.returncode, "TOO_LARGE_RECORD" in errors) == (int(refused), refused)
        client.write("long", b"end")
        assert [payload for _, payload in written(client, "long", 2)] == ["x" * 100_000, "end"]


def test_a_producer_that_is_fenced_ends_with_the_reason(build: Build, tier: Tier) -> None:
    with Client.connect(tier.uri) as client, go(build, "fenced", "twin", *tier.writers) as writing:
        assert writing.stdin is not None
        client.heartbeat("fenced")
        writing.stdin.write("before\n")
        writing.stdin.flush()
        written(client, "fenced", 1)
        client.begin_epoch("fenced", "twin")
        _, errors = writing.communicate("after\n", timeout=60)
        assert writing.returncode == 1
        assert "REASON_PRODUCER_FENCED" in errors
        client.write("fenced", b"end")
        assert [payload for _, payload in written(client, "fenced", 2)] == ["before", "end"]


@pytest.mark.parametrize(("log", "code"), [("a name\x07", "INVALID_STREAM_NAME"), ("nowhere", "LOG_NOT_FOUND")])
def test_what_no_proxy_will_do_ends_the_program_at_once(build: Build, tier: Tier, log: str, code: str) -> None:
    with go(build, log, "-", tier.reader) as printing:
        out, errors = printing.communicate(timeout=60)
    assert (printing.returncode, out) == (1, "")
    assert code in errors


def test_what_it_writes_is_there_once_when_the_log_is_moved_and_its_owner_killed(build: Build, tier: Tier) -> None:
    """The last one: the tier has one write proxy less then."""

    def say(*numbers: int) -> None:
        assert writing.stdin is not None
        writing.stdin.write("".join(f"{number}\n" for number in numbers))
        writing.stdin.flush()

    with Client.connect(tier.uri) as client:
        client.create("moved")
        with go(build, "moved", "mover", *tier.writers) as writing:
            say(*range(20))
            assert [payload for _, payload in written(client, "moved", 20)] == [str(number) for number in range(20)]
            (target,) = tier.frames - {client.owner("moved")}
            client.move("moved", target)
            say(*range(20, 40))
            written(client, "moved", 40)
            assert client.owner("moved") == target
            kill_proxy(target)
            say(*range(40, 60))
            _, errors = writing.communicate(timeout=100)
        assert (writing.returncode, errors) == (0, "")
        client.write("moved", b"last")
        found = [payload for _, payload in written(client, "moved", 61)]
    assert found == [*(str(number) for number in range(60)), "last"]


def kill_proxy(address: str) -> None:
    """SIGKILL the write proxy of the tier at this address."""
    argument = f"server_port={address.rpartition(':')[2]}"
    (found,) = (one for one in psutil.process_iter(["cmdline"]) if f"--set={argument}" in (one.info["cmdline"] or ()))
    found.kill()


def test_the_program_is_short_and_the_page_leads_to_it() -> None:
    program = (EXAMPLE / "main.go").read_text()
    assert len(program.splitlines()) <= 105
    assert max(map(len, program.splitlines())) <= 130
    assert broken_links(PAGE) == []
    assert {EXAMPLE / "main.go", ROOT / PROTO} <= linked_files(PAGE)
    assert PAGE in linked_files(DOCS / "serving.md")
