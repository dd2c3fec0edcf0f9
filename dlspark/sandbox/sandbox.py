"""The embedded scale: a real ZooKeeper and storage nodes as local processes, kept in one directory.

`Sandbox` owns the processes it started and ends them with itself: on `stop`, at interpreter exit, and (on Linux) even
when its own process is killed. Ports are chosen once and kept in `sandbox.json`, because a storage node's identity is
its address: starting the same directory again finds the same logs under the same URI.

Fault model: a node or ZooKeeper may be killed at any time (`kill_node`, `kill_zookeeper` do it on purpose) and started
again on its own directory. Nothing here holds data: what was acknowledged is in the nodes' journals.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from dlspark.sandbox.beginning import LEDGERS_PATH, initialise
from dlspark.sandbox.mover import SandboxMover
from dlspark.sandbox.ports import free_ports, region_place
from dlspark.sandbox.processes import (
    START_TIMEOUT_S,
    SandboxError,
    child_environment,
    end_processes,
    first_line,
    log_tail,
)
from dlspark.sandbox.proxies import SandboxProxies
from dlspark.sandbox.region_control import RegionControl
from dlspark.sandbox.regions import SandboxRegions
from dlspark.sandbox.state import (
    DEFAULT_NODES,
    DEFAULT_NODES_A_REGION,
    DEFAULT_ROUND_TRIP_MS,
    SandboxState,
)
from metadata.foundation import processes, socks
from metadata.foundation.errors import CallerError
from metadata.foundation.opened_here import OpenedHere
from metadata.foundation.private_files import DIRECTORY_MODE, make_private_directory, private_opener, write_private_text
from metadata.foundation.processes import ending_with_parent
from metadata.zookeeper.embedded import TICK_MS, EmbeddedZooKeeper

if TYPE_CHECKING:
    from dlspark.sandbox.security import SandboxSecurity

COPIES = 3
"""How many nodes a ledger has where settings say nothing else. With fewer nodes than that the namespace says less."""
ACKNOWLEDGED = 2
"""How many of them have a record when it is acknowledged."""
MAX_REGIONS = 9
_PORTS_A_REGION = 4
_LOCK_FILE = "sandbox.lock"


class Sandbox(OpenedHere):
    """Is there a cluster to try things with? ZooKeeper and some storage nodes of this machine. Usable as a context
    manager.

    Three replicas need three nodes; the fourth is the spare that lets a node be lost without stopping a writer. With
    one node or two, which is enough for a small test, the namespace asks for as many copies as there are nodes.

    Args:
        directory: all data, which stay, and the logs of the processes.
        nodes: storage nodes.
        port: ZooKeeper's; 0: a free one, kept from then on.
        node_settings: further settings of the storage nodes (keys of conf/bookie.conf).
        zookeeper_tick_ms: ZooKeeper's unit of time: a session lasts two at least.
        auto_recovery: every node runs auto-recovery as well: entries that a lost node held are copied to the others.
        proxies: write proxies; with any there is a read proxy, too. With regions: in each of them.
        cold: a folder for cold storage, which is made: a mover runs, and `settings` has what writers need.
        regions: how many regions there are, each with `nodes` storage nodes (2 if not said) and one of ZooKeeper's
            servers; 0: none, all is in one place. See `regions`. A directory keeps their number.
        round_trip_ms: between any two regions.
        secure: TLS on every connection, and rights: `security` has the folders that prove who one is, `settings` what
            programs set. A directory keeps to it.

    Raises:
        CallerError: there cannot be so many nodes, proxies or regions.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        nodes: int | None = None,
        port: int = 0,
        node_settings: Mapping[str, object] | None = None,
        zookeeper_tick_ms: int = TICK_MS,
        auto_recovery: bool = False,
        proxies: int = 0,
        cold: str | Path | None = None,
        regions: int = 0,
        round_trip_ms: float = DEFAULT_ROUND_TRIP_MS,
        secure: bool = False,
    ) -> None:
        if regions and secure:
            raise CallerError(
                "a sandbox with regions is not secured: nothing was started",
                advice="Leave one of the two out. Regions of machines are secured as any cluster: docs/security.md",
            )
        if regions and not 3 <= regions <= MAX_REGIONS:
            raise CallerError(
                f"a sandbox cannot have {regions} regions: most of ZooKeeper's voters must run when one is lost",
                advice=f"Take 3, or up to {MAX_REGIONS}",
            )
        if regions and port:
            raise CallerError("with regions there are several ZooKeeper servers, whose ports cannot be chosen")
        if regions and cold is not None:
            raise CallerError(
                "a sandbox with regions has no cold storage of its own: it would be in no region",
                advice="Leave it out, and start a mover with the variables of its region (sandbox status)",
            )
        if round_trip_ms < 0:
            raise CallerError(f"a round trip of {round_trip_ms} ms cannot be")
        if nodes is None:
            nodes = DEFAULT_NODES_A_REGION if regions else DEFAULT_NODES
        if nodes < 1:
            raise CallerError(f"a sandbox needs at least one storage node, not {nodes}")
        self._regions_wanted = regions
        self._round_trip_ms = round_trip_ms
        self._regions: SandboxRegions | None = None
        self._control: RegionControl | None = None
        if proxies < 0:
            raise CallerError(f"a sandbox cannot have {proxies} proxies")
        self.directory = Path(directory).absolute()
        self._nodes_wanted = nodes * max(1, regions)
        self._proxies_wanted = proxies * max(1, regions)
        self._proxies: SandboxProxies | None = None
        self._cold_wanted = Path(cold).absolute() if cold is not None else None
        self._mover: SandboxMover | None = None
        self._port_wanted = port
        recovering = {"autoRecoveryDaemonEnabled": "true"} if auto_recovery else {}
        self._node_settings: dict[str, object] = {**recovering, **(node_settings or {})}
        self._tick_ms = zookeeper_tick_ms
        self._secure = secure
        self._security: SandboxSecurity | None = None
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._spawner: ThreadPoolExecutor | None = None
        self._log_begins: dict[int, int] = {}
        self._state: SandboxState | None = None
        self._lock: IO[bytes] | None = None
        self._stopping = False

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def state(self) -> SandboxState:
        """The ports, and the process that owns the sandbox. Raises CallerError before `start`."""
        if self._state is None:
            raise CallerError("the sandbox is not running", advice="Call start() first")
        return self._state

    @property
    def uri(self) -> str:
        """The namespace's URI: `distributedlog://127.0.0.1:<port>/distributedlog`."""
        return self.state.uri

    @property
    def zookeeper_address(self) -> str:
        """ZooKeeper's `host:port`, or several with commas between them."""
        return self.state.zookeeper_servers

    @property
    def node_ids(self) -> list[str]:
        """The storage nodes' ids, `host:port` each, by index."""
        return [self.state.node_id(index) for index in range(self.node_count)]

    @property
    def node_count(self) -> int:
        """How many storage nodes the sandbox has, whether they run or not."""
        return len(self.state.node_ports)

    @property
    def proxies(self) -> SandboxProxies:
        """Its proxies. Raises CallerError where it has none."""
        if self._proxies is None:
            raise CallerError("the sandbox has no proxies", advice="Start it with proxies=2, or --proxies 2")
        return self._proxies

    @property
    def mover(self) -> SandboxMover:
        """Its mover. Raises CallerError where it has no cold storage."""
        if self._mover is None:
            raise CallerError("the sandbox has no cold storage", advice="Start it with cold=DIR, or --cold DIR")
        return self._mover

    @property
    def security(self) -> SandboxSecurity:
        """Its identity folders. Raises CallerError where it is not secured."""
        if self._security is None:
            raise CallerError("the sandbox is not secured", advice="Start it with secure=True, or --secure")
        return self._security

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings for programs that open its namespace: those of its cold storage, its regions and its security, as a
        client; none without."""
        cold = self._mover.settings if self._mover is not None else {}
        regions = self._regions.settings if self._regions is not None else {}
        return {**cold, **regions, **(self._security.settings("client") if self._security is not None else {})}

    @property
    def regions(self) -> SandboxRegions:
        """Its regions, which can be cut off and slowed down. Raises CallerError where it has none."""
        if self._regions is None:
            raise CallerError("the sandbox has no regions", advice="Start it with regions=3, or --regions 3")
        return self._regions

    def take_commands(self) -> None:
        """Let `dlspark sandbox region` do to its regions what `regions`, `kill_region` and `heal_region` do. From then
        on they are for these commands alone. Raises CallerError where there are no regions."""
        if self._control is None and self.regions:
            self._control = RegionControl(self)
            self._state = replace(self.state, control_port=self._control.port)
            self._state.save(self.directory)

    def region_nodes(self, name: str) -> list[int]:
        """Return the indexes of a region's storage nodes."""
        number = self.regions.names.index(name)
        return list(range(number, self.node_count, len(self.regions.names)))

    def kill_region(self, name: str) -> None:
        """Cut a region off and kill all that runs in it with SIGKILL. Raises CallerError for a name that is none."""
        self.regions.cut(name)
        self.regions.killed.add(name)
        for index in self.region_nodes(name):
            self.kill_node(index)
        if self._proxies is not None:
            self._proxies.kill_region(name)
        self.regions.kill_zookeeper(name)

    def heal_region(self, name: str) -> None:
        """Take all faults from a region: it is reached as at the start, and what was killed runs again."""
        self.regions.heal(name)
        if name in self.regions.killed:
            self.regions.start_zookeeper(name)
            # Those that an earlier try has started run already, where another one had failed.
            killed = [index for index in self.region_nodes(name) if self.node_pid(index) is None]
            for index in killed:
                self._spawn(index)
            for index in killed:
                self._await_ready(index)
            if self._proxies is not None:
                self._proxies.start_region(name)
            self.regions.killed.discard(name)

    def node_pid(self, index: int) -> int | None:
        """Return the process of a node, or None where it does not run."""
        process = self._processes.get(index)
        return process.pid if process is not None and process.poll() is None else None

    @property
    def zookeeper_pid(self) -> int | None:
        """ZooKeeper's process, or None where it does not run, or each region has one (`regions.zookeeper_pid`)."""
        return self._zookeeper.pid if self._zookeeper is not None else None

    def node_directory(self, index: int) -> Path:
        """Return where a storage node's journal and ledgers are."""
        return self.directory / f"node-{index}"

    def start(self) -> None:
        """Start everything and wait until it serves. Raises SandboxError, or CallerError for a directory that cannot be
        used; then nothing is left running."""
        _refuse_proxied_shell()
        self._stopping = False
        atexit.register(self.stop)
        try:
            self._take_directory()
            self._state = self._claim()
            # Before any node starts: its address is its identity, so the ports must be kept even if the start fails.
            self._state.save(self.directory)
            if self._secure:
                self._security = _secured(self.directory)
            self.start_zookeeper()
            self._initialise_metadata()
            for index in range(self.node_count):
                self._spawn(index)
            for index in range(self.node_count):
                self._await_ready(index)
            if self._cold_wanted is not None:
                self._mover = SandboxMover(
                    self.directory, self.uri, self._cold_wanted, self._spawner_thread(), self._security
                )
                self._mover.start()
            if self._proxies_wanted:
                conf = self._mover.conf if self._mover is not None else None
                self._proxies = SandboxProxies(
                    self.directory, self.state, self._spawner_thread(), conf, self._regions, self._security
                )
                self._proxies.start()
        except OSError as error:
            self.stop()
            raise CallerError(
                f"the sandbox cannot use its directory: {error.strerror or error}; it was not started",
                path=os.fsdecode(error.filename) if error.filename else str(self.directory),
                advice="Name another directory",
            ) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, proxies first and ZooKeeper last, so that all can leave in order. Idempotent."""
        atexit.unregister(self.stop)
        self._stopping = True
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._proxies is not None:
            self._proxies.stop()
            self._proxies = None
        if self._mover is not None:
            self._mover.stop()
            self._mover = None
        # Before ZooKeeper: a node that ends in order takes its registration away, and needs the store for it.
        end_processes(self._processes.values())
        self._processes.clear()
        if self._zookeeper is not None:
            self._zookeeper.stop()
            self._zookeeper = None
        if self._regions is not None:
            self._regions.stop()
            self._regions = None
        if self._spawner is not None:
            self._spawner.shutdown()
            self._spawner = None
        if self._state is not None:
            state, self._state = self._state, None
            with contextlib.suppress(OSError):  # Readers find out themselves that its processes are gone.
                replace(state, pid=None, started=None, proxies=0, cold=None, control_port=None).save(self.directory)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill_node(self, index: int) -> None:
        """Kill one storage node with SIGKILL."""
        process = self._processes[index]
        process.kill()
        process.wait()

    def pause_node(self, index: int) -> None:
        """Stop one storage node with SIGSTOP; `resume_node` lets it go on."""
        self._processes[index].send_signal(signal.SIGSTOP)

    def resume_node(self, index: int) -> None:
        """Let a storage node go on with SIGCONT that `pause_node` has stopped."""
        self._processes[index].send_signal(signal.SIGCONT)

    def start_node(self, index: int) -> None:
        """Start a killed node again on its own directory and wait until it serves."""
        self._spawn(index)
        self._await_ready(index)

    def kill_zookeeper(self) -> None:
        """Kill ZooKeeper with SIGKILL; its data stay on disk. Raises CallerError where each region has a server."""
        if self._regions is not None:
            raise CallerError(
                "each region has a ZooKeeper server: none was killed", advice="Use regions.kill_zookeeper"
            )
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper = None

    def start_zookeeper(self) -> None:
        """Start a killed ZooKeeper again on its own directory; nothing if it runs."""
        if self.state.regions:
            if self._regions is None:
                self._regions = SandboxRegions(self.directory, self.state, self._tick_ms, self._spawner_thread())
                self._regions.start()
        elif self._zookeeper is None:
            directory, port = self.directory / "zookeeper", self.state.zookeeper_port
            security = self._security.zookeeper() if self._security is not None else None
            zookeeper = EmbeddedZooKeeper(directory, port=port, tick_ms=self._tick_ms, security=security)
            zookeeper.start()
            self._zookeeper = zookeeper

    def _take_directory(self) -> None:
        """Make the directory and hold its lock: of two processes that start at a time one gets to the state file."""
        if "," in str(self.directory):
            raise CallerError(
                "a sandbox's directory cannot have a comma in its name: storage nodes take that for two",
                path=str(self.directory),
                advice="Name another directory",
            )
        self.directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        lock = open(self.directory / _LOCK_FILE, "ab", opener=private_opener)  # noqa: SIM115  # held until stop
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            kept = SandboxState.load(self.directory)
            raise _already_running_error(self.directory, kept) from error
        self._lock = lock  # held until `stop`; the kernel drops it if this process dies

    def _claim(self) -> SandboxState:
        """Return the state to run with: the directory's own, or a new one with free ports."""
        kept = SandboxState.load(self.directory)
        if kept is not None and kept.running():
            raise _already_running_error(self.directory, kept)
        if kept is not None and self._port_wanted not in (0, kept.zookeeper_port):
            raise CallerError(
                f"the sandbox in {self.directory} keeps port {kept.zookeeper_port}, not {self._port_wanted}",
                advice="Leave the port out, or name another directory",
            )
        if kept is not None and len(kept.regions) != self._regions_wanted:
            had = (
                f"has {len(kept.regions)} regions, and keeps that number"
                if kept.regions
                else "was made without regions"
            )
            raise CallerError(
                f"the sandbox in {self.directory} {had}: its nodes' addresses say where they are",
                advice=f"Start it {f'with --regions {len(kept.regions)}' if kept.regions else 'without any'}, or name "
                "another directory",
            )
        if kept is not None and kept.secured != self._secure:
            raise CallerError(
                f"the sandbox in {self.directory} was made {'with' if kept.secured else 'without'} security, and keeps "
                "to it; it was not started",
                advice=f"Start it {'with' if kept.secured else 'without'} --secure, or name another directory",
            )
        # Ports that a former start had stay: a node's address is in the metadata of its ledgers.
        has = kept or SandboxState(self._port_wanted, ())
        wanted, reader, reader_grpc = self._proxies_wanted, has.read_proxy_port, has.read_proxy_grpc_port
        known = {*has.node_ports, *has.proxy_ports, *has.proxy_grpc_ports, has.zookeeper_port}
        for place in has.regions:
            known |= {place.zookeeper_port, place.quorum_port, place.election_port, place.gateway_port}
        count = self._nodes_wanted + 2 * wanted + 3 + _PORTS_A_REGION * self._regions_wanted
        # Regions have addresses of their own: there a port must be free at all of them.
        at = "0.0.0.0" if self._regions_wanted else "127.0.0.1"  # noqa: S104  # bound to find a free port, never listened on
        free = free_ports(count, {*known, reader or 0, reader_grpc or 0}, at)

        def filled_up(ports: tuple[int, ...], to: int) -> tuple[int, ...]:
            return (*ports, *(free.pop() for _ in range(to - len(ports))))

        return SandboxState(
            has.zookeeper_port or free.pop(),
            filled_up(has.node_ports, self._nodes_wanted),
            os.getpid(),
            processes.started(os.getpid()),
            filled_up(has.proxy_ports, wanted),
            reader or (free.pop() if wanted else None),
            wanted,
            filled_up(has.proxy_grpc_ports, wanted),
            reader_grpc or (free.pop() if wanted else None),
            None if self._cold_wanted is None else str(self._cold_wanted),
            has.regions or tuple(region_place(n, free) for n in range(1, self._regions_wanted + 1)),
            self._round_trip_ms if self._regions_wanted else 0.0,
            secured=self._secure,
        )

    def _initialise_metadata(self) -> None:
        from dlspark.core.runtime import Runtime

        copies = min(COPIES, self.node_count)
        quorums = None if copies == COPIES else (copies, copies, min(copies, ACKNOWLEDGED))
        security = None if self._security is None else self._security.operator()
        Runtime.shared().run(initialise(self.zookeeper_address, quorums, security))

    def _configure(self, index: int) -> Path:
        """Write a node's configuration; returns its file."""
        directory = self.node_directory(index)
        make_private_directory(directory)
        conf = directory / "bookie.conf"
        port = self.state.node_ports[index]
        place = self.state.node_region(index)
        host, spread = ("127.0.0.1", {}) if place is None else (place.host, self.regions.node_settings(place.name))
        security = {} if self._security is None else self._security.node_settings()
        settings = {**spread, **security, **self._node_settings}
        write_private_text(conf, _bookie_conf(directory, host, port, self.zookeeper_address, settings))
        return conf

    def _node_environment(self, index: int) -> dict[str, str]:
        place = self.state.node_region(index)
        return child_environment() | ({} if place is None else self.regions.environment(place.name))

    def _spawn(self, index: int) -> None:
        if self._stopping:  # a region that is being healed in another thread: what it starts now would stay
            raise CallerError("the sandbox is being stopped; its storage nodes are not started")
        conf = self._configure(index)
        self._processes[index] = self._spawner_thread().submit(self._start_process, index, conf).result()

    def _spawner_thread(self) -> ThreadPoolExecutor:
        # The kernel notifies a child of its parent's death when the *thread* that started it ends. So one thread starts
        # them all and lives as long as they do: a caller's own thread may end at any time.
        if self._spawner is None:
            self._spawner = ThreadPoolExecutor(1, thread_name_prefix="dlspark-sandbox")
        return self._spawner

    def _start_process(self, index: int, conf: Path) -> subprocess.Popen[bytes]:
        with open(self._log_file(index), "ab", opener=private_opener) as log:
            self._log_begins[index] = log.tell()
            return subprocess.Popen(
                ending_with_parent([sys.executable, "-m", "storage_node.bookie", "--conf", str(conf)], signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                # Python puts the folder it is started in before all else, where a user may have a metadata.py.
                cwd=self.node_directory(index),
                env=self._node_environment(index),
            )

    def _await_ready(self, index: int) -> None:
        """Wait for the line that a node prints once it serves."""
        process = self._processes[index]
        output = process.stdout
        served = output is not None and first_line(output, START_TIMEOUT_S)
        if output is not None:
            output.close()
        if not served:
            process.kill()
            process.wait()
            raise SandboxError(
                f"storage node {index} did not start (exit status {process.returncode}); its log ends with:\n"
                f"{log_tail(self._log_file(index), self._log_begins[index])}",
                node=self.node_ids[index],
            )

    def _log_file(self, index: int) -> Path:
        return self.node_directory(index) / "bookie.log"


def _refuse_proxied_shell() -> None:
    """Raise CallerError where connections of this process go by way of a SOCKS proxy: as in a shell that was put into a
    region of another sandbox. All that is started here would dial its own neighbours through it."""
    if os.environ.get(socks.VARIABLE):
        raise CallerError(
            f"{socks.VARIABLE} is set, so that the sandbox's own processes would reach each other by way of that "
            "proxy; it was not started",
            advice=f"Unset {socks.VARIABLE} and {socks.DIRECT_VARIABLE}, or take another shell",
        )


def _already_running_error(directory: Path, kept: SandboxState | None) -> CallerError:
    who = f" (process {kept.pid}, {kept.uri})" if kept is not None and kept.running() else ""
    return CallerError(
        f"a sandbox is already running in {directory}{who}",
        advice=f"Use its URI, or stop it first: dlspark sandbox stop --dir {shlex.quote(str(directory))}",
    )


def _secured(directory: Path) -> SandboxSecurity:
    from dlspark.sandbox.security import SandboxSecurity

    security = SandboxSecurity(directory)
    security.prepare()
    return security


def _bookie_conf(directory: Path, host: str, port: int, zookeeper: str, more: Mapping[str, object]) -> str:
    import javaproperties

    settings: dict[str, object] = {
        "bookiePort": port,
        "listeningAddress": host,
        "advertisedAddress": host,
        "journalDirectories": directory / "journal",
        "ledgerDirectories": directory / "ledgers",
        "zkServers": zookeeper,
        "zkLedgersRootPath": LEDGERS_PATH,
        "zkTimeout": 4000,
        **more,
    }
    return javaproperties.dumps({key: str(value) for key, value in settings.items()}, timestamp=None)
