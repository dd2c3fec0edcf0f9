"""The regions of a sandbox: each with an address, a ZooKeeper server and a gateway; what is cut or slow.

Region number n is named `rn` and has the loopback address 127.0.n.1, at which all its servers listen. So an address
says where it is, and a program is in a region by its environment alone (`environment`): it dials its own region's
servers directly, and all others by way of the region's gateway (`gateways`). What has no such environment is in no
region, and reaches all without delay.

Fault model: a region is cut off (in one direction or both; what is sent meanwhile waits), is slow, or is killed, which
is a cut and then SIGKILL to all that runs in it: nobody hears of a death where the power has gone.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from dlspark.core.settings.survival import ACKNOWLEDGEMENTS, REGION, REGIONS_TO_WRITE, survival_plan
from dlspark.sandbox.delay_line import Way
from dlspark.sandbox.gateways import CARRIED_LINE, Carried, GatewayAddress, encode_start, encode_ways
from dlspark.sandbox.processes import START_TIMEOUT_S, SandboxError, child_environment, end_processes, first_line
from dlspark.sandbox.state import RegionPlace, SandboxState, voters
from metadata.foundation import socks
from metadata.foundation.errors import CallerError
from metadata.foundation.private_files import private_opener, write_private_text
from metadata.foundation.processes import ending_with_parent
from metadata.foundation.regions import REGION_VARIABLE
from metadata.zookeeper.embedded import OBSERVER, EmbeddedZooKeeper, EnsembleMember

Direction = Literal["both", "in", "out"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "in", "out")
CONF: Final = "regions.conf"
_LOG: Final = "gateways.log"


def region_environment(directory: Path, place: RegionPlace) -> dict[str, str]:
    """Return the variables that put a program into a region of the sandbox in `directory`."""
    return {
        REGION_VARIABLE: place.name,
        socks.VARIABLE: f"{place.host}:{place.gateway_port}",
        socks.DIRECT_VARIABLE: place.host,
        "DLSPARK_CONF": str(directory.absolute() / CONF),
    }


def export_line(directory: Path, place: RegionPlace) -> str:
    """Return the same for a shell."""
    variables = region_environment(directory, place)
    return "export " + " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())


class SandboxRegions:
    """The regions of one running sandbox.

    Args:
        directory: the sandbox's.
        state: with its regions.
        tick_ms: ZooKeeper's unit of time.
        spawner: the thread that starts all processes of the sandbox.
    """

    def __init__(self, directory: Path, state: SandboxState, tick_ms: int, spawner: ThreadPoolExecutor) -> None:
        self.places = {place.name: place for place in state.regions}
        self._directory = directory
        self._spawner = spawner
        self._gateways: subprocess.Popen[bytes] | None = None
        self._round_trip_ms: dict[str, float] = {}
        self._usual_ms = state.round_trip_ms
        self._cut: dict[str, Direction] = {}
        self.killed: set[str] = set()
        """Regions of which nothing runs."""
        votes = voters(len(self.places))
        servers = {
            number: place.zookeeper_server + ("" if number <= votes else OBSERVER)
            for number, place in enumerate(self.places.values(), start=1)
        }
        self._zookeepers = {
            place.name: EmbeddedZooKeeper(
                directory / f"zookeeper-{place.name}",
                host=place.host,
                port=place.zookeeper_port,
                tick_ms=tick_ms,
                member=EnsembleMember(number, servers, (place.host, place.gateway_port)),
            )
            for number, place in enumerate(self.places.values(), start=1)
        }

    @property
    def names(self) -> list[str]:
        """The names of the regions."""
        return list(self.places)

    @property
    def settings(self) -> Mapping[str, str]:
        """What programs set so that logs survive the loss of a region, by key."""
        return {
            "survive": REGION,
            "surviveBy": ACKNOWLEDGEMENTS,
            "bkEnsemblePlacementDnsResolverClass": "announced",
            f"bkc.{REGIONS_TO_WRITE}": ";".join(self.places),
        }

    def node_settings(self, name: str) -> Mapping[str, str]:
        """Return what a region's storage nodes set: where they are, and for their auto-recovery, which places copies as
        well, the same as programs."""
        plan = survival_plan(REGION, ACKNOWLEDGEMENTS, self.names)
        return {
            **{key: str(value).lower() for key, value in plan.placement.items()},
            "reppDnsResolverClass": "announced",
            "networkLocation": f"/{name}/rack1",
            REGIONS_TO_WRITE: ";".join(self.places),
        }

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables that put a program into a region. Raises CallerError."""
        return region_environment(self._directory, self._place(name))

    def zookeeper_pid(self, name: str) -> int | None:
        """Return the process of a region's ZooKeeper server; None where it does not run."""
        return self._zookeepers[name].pid

    @property
    def gateways_pid(self) -> int | None:
        """The process of all gateways; None where it does not run."""
        return None if self._gateways is None else self._gateways.pid

    # ------------------------------------------------------------------------------------ processes

    def start(self) -> None:
        """Start gateways and ZooKeeper servers, and wait until these serve. Raises SandboxError and others."""
        self._write_conf()
        self._start_gateways()
        for server in self._zookeepers.values():
            server.launch()
        for server in self._zookeepers.values():
            server.await_serving()

    def start_zookeeper(self, name: str) -> None:
        """Start a region's ZooKeeper server and wait until it serves; nothing if it runs."""
        self._zookeepers[name].start()

    def kill_zookeeper(self, name: str) -> None:
        """Kill it with SIGKILL; its data stay."""
        self._zookeepers[name].kill()

    def stop(self) -> None:
        """End all, gateways last. Idempotent."""
        for server in self._zookeepers.values():
            server.stop()
        if self._gateways is not None:
            if self._gateways.stdin is not None:
                with suppress(OSError):  # what could not be said to gateways that have died
                    self._gateways.stdin.close()
            end_processes([self._gateways])
            self._gateways = None

    def _write_conf(self) -> None:
        import javaproperties

        write_private_text(self._directory / CONF, javaproperties.dumps(dict(self.settings), timestamp=None))

    def _start_gateways(self) -> None:
        self._gateways = self._spawner.submit(self._start_process).result()
        addresses = [GatewayAddress(place.name, place.host, place.gateway_port) for place in self.places.values()]
        if self._tell(encode_start(addresses, self._ways())) != b"ready\n":
            self._gateways.kill()
            self._gateways.wait()
            raise SandboxError(
                f"the gateways between regions did not start; see {_LOG}",
                path=str(self._directory / _LOG),
                advice="Each region listens at an address of its own, 127.0.1.1 and so on. Linux has them; elsewhere "
                "add them first, for example: sudo ifconfig lo0 alias 127.0.1.1",
            )

    def _start_process(self) -> subprocess.Popen[bytes]:
        with open(self._directory / _LOG, "ab", opener=private_opener) as log:
            return subprocess.Popen(
                ending_with_parent([sys.executable, "-m", "dlspark.sandbox.gateways"], signal.SIGTERM),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=self._directory,
                env=child_environment(),
            )

    def _tell(self, line: str) -> bytes:
        gateways = self._gateways
        if gateways is None or gateways.stdin is None or gateways.stdout is None:
            raise CallerError("the sandbox is not running", advice="Call start() first")
        try:
            gateways.stdin.write(line.encode() + b"\n")
            gateways.stdin.flush()
        except OSError:
            return b""
        return first_line(gateways.stdout, START_TIMEOUT_S)

    # ------------------------------------------------------------------------------------ faults

    def cut(self, name: str, direction: Direction = "both") -> None:
        """Let nothing pass between a region and all others, or only what it receives ("in") or sends ("out"). Returns
        when that holds. Raises CallerError."""
        self._place(name)
        if direction not in DIRECTIONS:
            raise CallerError(f"{direction!r} is no direction", advice=f"Say one of {', '.join(DIRECTIONS)}")
        self._cut[name] = direction
        self._set_ways()

    def slow(self, name: str, round_trip_ms: float) -> None:
        """Let a round trip between this region and any other take so long. Raises CallerError."""
        self._place(name)
        if round_trip_ms < self._usual_ms:
            raise CallerError(
                f"a round trip of {round_trip_ms:g} ms is shorter than the usual one here, {self._usual_ms:g} ms",
                advice="Name a longer one; heal the region to have the usual one again",
            )
        self._round_trip_ms[name] = round_trip_ms
        self._set_ways()

    def heal(self, name: str) -> None:
        """Let a region be reached as at the start; what was sent while it was cut off arrives. Raises CallerError."""
        self._place(name)
        self._cut.pop(name, None)
        self._round_trip_ms.pop(name, None)
        self._set_ways()

    def condition(self, name: str) -> str:
        """Say what is wrong with a region, for people; empty where nothing is."""
        words = ["killed"] if name in self.killed else []
        if name in self._cut and name not in self.killed:
            what = {"both": "cut off", "in": "receives nothing", "out": "is not heard"}
            words.append(what[self._cut[name]])
        if name in self._round_trip_ms:
            words.append(f"slow: {self._round_trip_ms[name]:g} ms")
        return ", ".join(words)

    def carried(self) -> list[Carried]:
        """Return the bytes that went from region to region since the start, by direction and server. Raises
        SandboxError."""
        line = self._tell(CARRIED_LINE)
        if not line:
            raise self._silent_error("what passed between regions is not known")
        return [Carried(**one) for one in json.loads(line)]

    def _set_ways(self) -> None:
        if self._tell(encode_ways(self._ways())) != b"ok\n":
            raise self._silent_error("it is not known what passes between regions now")

    def _silent_error(self, unknown: str) -> SandboxError:
        return SandboxError(
            f"the gateways between regions do not answer; {unknown}",
            path=str(self._directory / _LOG),
            advice="Stop the sandbox and start it again",
        )

    def _ways(self) -> Iterable[Way]:
        for source in self.places:
            for target in self.places:
                if source != target:
                    round_trip_ms = max(
                        self._round_trip_ms.get(source, self._usual_ms), self._round_trip_ms.get(target, self._usual_ms)
                    )
                    closed = self._cut.get(source) in ("both", "out") or self._cut.get(target) in ("both", "in")
                    yield Way(source, target, round_trip_ms / 2, opened=not closed)

    def _place(self, name: str) -> RegionPlace:
        try:
            return self.places[name]
        except KeyError:
            raise CallerError(f"there is no region {name}", advice=f"It has {', '.join(self.places)}") from None
