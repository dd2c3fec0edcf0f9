"""Who tells the racks: a script, host names by racks or rows, overrides; none of it on the loop, all of it bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from helpers.waiting import until, wait_until

from metadata.foundation.errors import CallerError
from storage_node.client.placement.racks import (
    HostNameResolver,
    ScriptResolver,
    SystemHostNames,
    UnknownRacks,
    parse_overrides,
    resolver_of,
    run_script,
)
from storage_node.errors import RackResolutionError
from storage_node.settings.placement import PlacementSettings


class Names:
    """A name service that knows a few hosts."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def own(self) -> str:
        return "east-r7-own-host"

    async def address_of(self, host: str) -> str | None:
        return next((address for address, name in self.names.items() if name == host), None)

    async def name_of(self, host: str) -> str | None:
        return self.names.get(host)


def script(directory: Path, body: str) -> str:
    path = directory / "topology"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


# ------------------------------------------------------------------------------------ host names


@pytest.mark.parametrize(
    ("name", "rack", "row"),
    [
        ("east-r1-aaa-001.example.net", "/east/r1", "/east/r1"),
        ("east-r1x2-aaa-001", "/east/r1x2", "/east/r1"),
        ("regionA-row1-xx-yyy", "/regionA/row1", "/regionA/ro"),
        ("east-7-aaa-001", "/east/7", "/east/7"),
        ("east-r1-aaa.example.net", None, None),
        ("east-r1-aaa-001-x", None, None),
        ("-r1-aaa-001", None, None),
        ("localhost", None, None),
        ("", None, None),
    ],
)
def test_region_rack_and_row_are_read_from_four_part_names(name: str, rack: str | None, row: str | None) -> None:
    assert HostNameResolver({}).location_of(name) == rack
    assert HostNameResolver({}, rows=True).location_of(name) == row


def test_overrides_replace_the_region_of_single_hosts_and_keep_the_rack() -> None:
    overrides = parse_overrides(" regionA-row1-xx-yyy:regionB ; east-r1-a-1.example.net:west;")
    for rows, rack in ((False, "row1"), (True, "ro")):
        resolver = HostNameResolver(overrides, rows=rows)
        assert resolver.location_of("regionA-row1-xx-yyy") == f"/regionB/{rack}"
        assert resolver.location_of("regionA-row1-xx-yyy.example.net") == f"/regionB/{rack}"
        assert resolver.location_of("regionA-row1-xx-zzz") == f"/regionA/{rack}"
    assert HostNameResolver(overrides).location_of("east-r1-a-1.example.net") == "/west/r1"


@pytest.mark.parametrize("text", ["host", "host:", ":region", "a:b:c", "a:/b", "a:b;c"])
def test_overrides_that_are_no_pairs_are_refused(text: str) -> None:
    with pytest.raises(CallerError, match="is not a pair"):
        parse_overrides(text)


async def test_addresses_are_turned_into_names_first_and_who_has_none_is_in_no_rack() -> None:
    names = Names({"10.0.0.1": "east-r1-a-1.net", "10.0.0.2": "plain"})
    resolver = HostNameResolver({}, names=names)
    assert await resolver.locations(["10.0.0.1", "10.0.0.2", "10.0.0.3"]) == ["/east/r1", None, None]
    assert await resolver.own_location() == "/east/r7"


async def test_the_machine_s_names_need_no_question_for_names_and_loopback_addresses() -> None:
    names = SystemHostNames()
    assert await names.name_of("some-host") == "some-host"
    assert await names.name_of("127.0.0.1") is None
    assert await names.name_of("::1") is None
    assert await names.address_of("10.1.2.3") == "10.1.2.3"
    assert await names.address_of("localhost") in ("127.0.0.1", "::1")
    assert await names.address_of("no such host.invalid") is None
    assert names.own()


# ------------------------------------------------------------------------------------ script


async def test_the_script_is_given_addresses_and_answers_in_their_order(tmp_path: Path) -> None:
    path = script(tmp_path, 'for a in "$@"; do printf "/rack-%s\\t" "${a##*.}"; done')
    resolver = ScriptResolver(path, names=Names({"10.0.0.9": "named"}))
    assert await resolver.locations(["10.0.0.1", "named", "elsewhere"]) == ["/rack-1", "/rack-9", "/rack-elsewhere"]
    assert await resolver.own_location() == "/rack-east-r7-own-host"


async def test_the_script_gets_so_many_addresses_a_call_at_most() -> None:
    calls: list[int] = []

    async def run(command: Sequence[str]) -> str:
        calls.append(len(command) - 1)
        return " ".join(f"/{address}" for address in command[1:])

    resolver = ScriptResolver("x", names=Names({}), run=run)
    hosts = [f"h{i}" for i in range(250)]
    assert await resolver.locations(hosts) == [f"/h{i}" for i in range(250)]
    assert calls == [100, 100, 50]


async def test_who_gives_up_waiting_for_a_slow_script_finds_its_answer_the_next_time() -> None:
    calls, done = 0, asyncio.Event()

    async def run(command: Sequence[str]) -> str:
        nonlocal calls
        calls += 1
        await done.wait()
        if calls == 2:
            raise RackResolutionError("broke")
        return "/a /b"

    resolver = ScriptResolver("x", names=Names({}), run=run)
    for _ in range(2):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(resolver.locations(["h1", "h2"]), 0.01)
    done.set()
    await asyncio.sleep(0)
    assert await resolver.locations(["h1", "h2"]) == ["/a", "/b"]
    assert calls == 1
    with pytest.raises(RackResolutionError, match="broke"):
        await resolver.locations(["h1", "h2"])
    assert await resolver.locations(["h1", "h2"]) == ["/a", "/b"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo /a", "gave 1 locations for 2 addresses"),
        ("echo it broke >&2; exit 3", "status 3: it broke"),
        ("kill -9 $$", "status -9"),
    ],
)
async def test_a_script_that_does_not_do_its_work_is_an_error(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(RackResolutionError, match=message):
        await ScriptResolver(script(tmp_path, body), names=Names({})).locations(["a", "b"])


async def test_a_script_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RackResolutionError, match="does not start"):
        await ScriptResolver(str(tmp_path / "missing"), names=Names({})).locations(["a"])


@pytest.mark.timeout(120)
async def test_a_script_that_hangs_is_killed_with_what_it_started_and_the_loop_goes_on(tmp_path: Path) -> None:
    child = tmp_path / "child"
    path = script(tmp_path, f"sleep 300 & echo $! > {child}.new; mv {child}.new {child}; wait")
    for timeout_s in (0.3, 3.0, 30.0):  # a busy machine may take longer than the first to start a shell
        resolver = ScriptResolver(path, names=Names({}), run=partial(run_script, timeout_s=timeout_s))
        resolving = asyncio.ensure_future(resolver.locations(["a"]))
        await until(lambda resolving=resolving: child.exists() or resolving.done())  # type: ignore[misc]
        went_on = not resolving.done()
        with pytest.raises(RackResolutionError, match=f"not ended after {timeout_s:g} s"):
            await resolving
        if went_on:
            break
    assert went_on, "the loop stood still meanwhile"
    pid = int(child.read_text())
    wait_until(lambda: _has_ended(pid), "the script's own child was left running")


def _has_ended(pid: int) -> bool:
    """Whether the process is gone, or only waits to be reaped."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


# ------------------------------------------------------------------------------------ settings


async def test_the_settings_choose_the_resolver() -> None:
    assert isinstance(resolver_of(PlacementSettings()), UnknownRacks)
    assert await resolver_of(PlacementSettings()).locations(["a", "b"]) == [None, None]
    assert await resolver_of(PlacementSettings()).own_location() is None
    by_script = PlacementSettings(network_topology_script_file_name="/x", network_topology_script_number_args=7)
    assert isinstance(resolver_of(by_script), ScriptResolver)
    for kind, expected in (("racks", "/west/r7"), ("rows", "/west/r7")):
        named = PlacementSettings(repp_dns_resolver_class=kind, dns_resolver_overrides="east-r7-own-host:west")
        assert await resolver_of(named, Names({})).own_location() == expected
