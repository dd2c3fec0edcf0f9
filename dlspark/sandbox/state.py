"""The state that a sandbox keeps in its directory (`sandbox.json`): its ports, and the process that owns it while it
runs.

A state file outlives the process that it names (SIGKILL, a power cut), so the process is believed to run only if it
started when the file says: a number alone may be another program's by now. Nothing of the sandbox itself is imported
here, for every program looks for one that runs.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from metadata.foundation import processes
from metadata.foundation.errors import CallerError
from metadata.foundation.private_files import write_private_text

LOCAL_HOST = "127.0.0.1"
NAMESPACE_PATH = "/distributedlog"
DEFAULT_NODES = 4
DEFAULT_NODES_A_REGION = 2
DEFAULT_ROUND_TRIP_MS = 20.0
MOST_VOTERS = 5
SECURITY_FOLDER = "security"
"""Below a secured sandbox's directory: its authority and identity folders."""
_STATE_FILE = "sandbox.json"


def default_directory() -> Path:
    """Return where `dlspark sandbox start` keeps its data if no other directory is given."""
    return Path(os.path.expanduser("~")) / ".dlspark" / "sandbox"


def entering_line(directory: Path) -> str:
    """Return the line for a shell whose programs are to enter a secured sandbox as clients."""
    return f"export DLSPARK_SECURITY={shlex.quote(str(directory.absolute() / SECURITY_FOLDER / 'client'))}"


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """Where is a region of the sandbox? Its address, and the ports of its ZooKeeper server and its gateway."""

    name: str
    host: str
    zookeeper_port: int
    quorum_port: int
    election_port: int
    gateway_port: int

    @property
    def zookeeper_server(self) -> str:
        """The ZooKeeper server as others of its ensemble reach it."""
        return f"{self.host}:{self.quorum_port}:{self.election_port}"


@dataclass(frozen=True, slots=True)
class ProxyPlace:
    """Where does a proxy of the sandbox listen? For frames, and for gRPC; in which region, where there are any."""

    region: RegionPlace | None
    frames_port: int
    grpc_port: int

    @property
    def host(self) -> str:
        """The address at which it listens, and that it announces."""
        return LOCAL_HOST if self.region is None else self.region.host

    @property
    def frames(self) -> str:
        """Its `host:port` for frames."""
        return f"{self.host}:{self.frames_port}"

    @property
    def grpc(self) -> str:
        """Its `host:port` for gRPC."""
        return f"{self.host}:{self.grpc_port}"


def voters(regions: int) -> int:
    """Return how many of so many regions have a ZooKeeper server with a vote: an odd number, five at most, for each
    change waits for most of them. The servers of the others are observers."""
    return min(regions - 1 + regions % 2, MOST_VOTERS)


@dataclass(frozen=True, slots=True)
class SandboxState:
    """Which ports has a sandbox, and does it run? The ports stay; while it runs there is the process that owns it, when
    that was started, and which proxies it has: the first `proxies` of the write proxies' ports, and where there are
    any, a read proxy, or one in each region.
    """

    zookeeper_port: int
    node_ports: tuple[int, ...]
    pid: int | None = None
    started: str | None = None
    proxy_ports: tuple[int, ...] = ()
    """Of write proxies, for frames; for gRPC they have `proxy_grpc_ports`."""
    read_proxy_port: int | None = None
    """In each region the same: their addresses differ."""
    proxies: int = 0
    proxy_grpc_ports: tuple[int, ...] = ()
    read_proxy_grpc_port: int | None = None
    cold: str | None = None
    """The folder of its cold storage, while it runs with one."""
    regions: tuple[RegionPlace, ...] = ()
    """Storage node number i, and write proxy number i, is in region i modulo their number. Empty: all is at 127.0.0.1.
    """
    round_trip_ms: float = 0.0
    """Between any two regions."""
    control_port: int | None = None
    """Where the process takes commands about regions, while it does."""
    secured: bool = False
    """All connections are by TLS, and both ends prove who they are."""

    @property
    def uri(self) -> str:
        """The URI of the sandbox's namespace."""
        return f"distributedlog://{self.zookeeper_servers}{NAMESPACE_PATH}"

    @property
    def zookeeper_servers(self) -> str:
        """ZooKeeper's `host:port`, or those of all regions with commas between them."""
        places = [(place.host, place.zookeeper_port) for place in self.regions] or [(LOCAL_HOST, self.zookeeper_port)]
        return ",".join(f"{host}:{port}" for host, port in places)

    def node_region(self, index: int) -> RegionPlace | None:
        """Return where a storage node is; None in a sandbox without regions."""
        return self.regions[index % len(self.regions)] if self.regions else None

    def node_id(self, index: int) -> str:
        """Return a storage node's id, `host:port`."""
        place = self.node_region(index)
        return f"{LOCAL_HOST if place is None else place.host}:{self.node_ports[index]}"

    @property
    def write_proxies(self) -> list[ProxyPlace]:
        """The write proxies that it has while it runs, by index."""
        ports = zip(self.proxy_ports, self.proxy_grpc_ports, strict=False)  # more than run now, where more ran before
        every = [ProxyPlace(self.node_region(index), *pair) for index, pair in enumerate(ports)]
        return every[: self.proxies]

    @property
    def read_proxies(self) -> list[ProxyPlace]:
        """The read proxies: one, or one in each region, in their order; none where there are no write proxies."""
        frames, grpc = self.read_proxy_port, self.read_proxy_grpc_port
        if not self.proxies or frames is None or grpc is None:
            return []
        return [ProxyPlace(place, frames, grpc) for place in self.regions or (None,)]

    @classmethod
    def load(cls, directory: Path) -> SandboxState | None:
        """Return the state kept in `directory`, None where there is none. Raises CallerError for one that cannot be
        used."""
        path = directory / _STATE_FILE
        try:
            text = path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CallerError(
                f"the sandbox's state cannot be read: {error.strerror}", path=str(path), advice="Name another directory"
            ) from error
        try:
            raw = json.loads(text)
            ports = tuple(int(port) for port in raw["node_ports"])
            pid, start = raw["pid"], raw.get("started")
            reader, reader_grpc = raw.get("read_proxy_port"), raw.get("read_proxy_grpc_port")
            return cls(
                int(raw["zookeeper_port"]),
                ports,
                None if pid is None else int(pid),
                start and str(start),
                tuple(int(port) for port in raw.get("proxy_ports", ())),
                None if reader is None else int(reader),
                int(raw.get("proxies", 0)),
                tuple(int(port) for port in raw.get("proxy_grpc_ports", ())),
                None if reader_grpc is None else int(reader_grpc),
                None if raw.get("cold") is None else str(raw["cold"]),
                tuple(RegionPlace(**place) for place in raw.get("regions", ())),
                float(raw.get("round_trip_ms", 0.0)),
                None if raw.get("control_port") is None else int(raw["control_port"]),
                bool(raw.get("secured", False)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CallerError(
                f"{path} is not a sandbox's state file: {error!r}",
                advice="Name another directory, or restore the file; the logs beside it are untouched",
            ) from error

    def save(self, directory: Path) -> None:
        """Keep the state in `directory`; a reader sees the old file or the new one, whole."""
        path = directory / _STATE_FILE
        scratch = path.with_suffix(".tmp")
        write_private_text(scratch, json.dumps(asdict(self), indent=2) + "\n")
        scratch.replace(path)  # a rename is atomic

    def running(self) -> bool:
        """Return whether the process that owns the sandbox is alive, and is the one that was recorded."""
        return self.pid is not None and self.started is not None and processes.started(self.pid) == self.started

    def signal_owner(self, number: signal.Signals) -> bool:
        """Send a signal to the owner; False where it does not run any more: another process never gets it."""
        return self.pid is not None and self.started is not None and processes.send(self.pid, self.started, number)
