"""What one unit of work costs: processor time of each process, its wake-ups and calls, and what the nodes counted.

Times on the clock depend on what else a machine does; these do so far less. A load runs within a window:

* `Watch` reads clocks and counters that the kernel keeps anyway, before and after, in the window that is timed. The
  processor time of a process is exact (no counts of hundredths); a wake-up is a voluntary switch of one of its
  threads, so one that had to wait and went on; read and write calls are those of files and pipes (sockets have others).
* `CallCount` counts system calls with `perf stat`, in a window of its own, as counting slows what is counted.

Both divide by the units that the load says it did, warm-up too: all that happened between begin and end counts. Memory
alone is not divided: it is the most that a process held within the block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from benchmarks.processes import TreeCpu, exact_cpu_s, largest_worker_bytes
from metadata.foundation.errors import check
from metadata.foundation.processes import ending_with_parent

Figures: TypeAlias = "Mapping[str, Mapping[str, float]]"
"""By process (or several of one kind) and by what is counted."""
CLIENT: Final = "client"
PROCESSOR: Final = "processor us"
WAKE_UPS: Final = "wake-ups"
SYSTEM_CALLS: Final = "system calls"
REQUESTS: Final = "requests"
MEMORY: Final = "memory MB"
COUNTED_S: Final = 0.5
"""Length of a window in which system calls are counted: counts hardly differ from one to the next."""
_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    SYSTEM_CALLS: ("raw_syscalls:sys_enter",),
    "fsyncs": ("syscalls:sys_enter_fdatasync", "syscalls:sys_enter_fsync"),
    "sends": ("syscalls:sys_enter_sendmsg", "syscalls:sys_enter_sendto"),
    "receives": ("syscalls:sys_enter_recvmsg", "syscalls:sys_enter_recvfrom"),
    "polls": ("syscalls:sys_enter_epoll_wait", "syscalls:sys_enter_epoll_pwait"),
}
_ACKNOWLEDGED: Final = b"ack\n\0"
_PERF_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Costs:
    """How much did one unit take, of each process?"""

    per: str
    """What one unit is."""
    figures: Figures
    missing: str = ""
    """Why system calls were not counted, where they should have been."""


class Window(Protocol):
    """Something that looks at processes while a load runs in its block; the load says how many units that were."""

    units: float

    def __enter__(self) -> object: ...

    def __exit__(self, kind: object, *_: object) -> None: ...


def within(window: Window | None) -> contextlib.AbstractContextManager[object]:
    """Return the window as a context manager; where there is none, one that does nothing."""
    return contextlib.nullcontext() if window is None else window


@dataclass(frozen=True, slots=True)
class Look:
    """What had a process done when it was looked at?"""

    cpu_s: float
    switches: Mapping[int, int] = field(default_factory=dict)
    """By thread: a thread that ends takes its number along."""
    io: Mapping[str, int] = field(default_factory=dict)
    peak: int = 0
    """The most resident memory since `forget_peak`, in bytes."""


_SWITCHES: Final = "voluntary_ctxt_switches"
_PEAK: Final = "VmHWM"
_IO: Final = {"syscr": "read calls", "syscw": "write calls", "write_bytes": "bytes to disk"}


def look_at(pid: int) -> Look:
    """Read the clock and the counters of a running process; the clock alone where there is no /proc."""
    home = Path(f"/proc/{pid}")
    if not home.exists():
        return Look(exact_cpu_s(pid))
    switches: dict[int, int] = {}
    for thread in (home / "task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            switches[int(thread.name)] = numbers_of((thread / "status").read_text(), [_SWITCHES])[_SWITCHES]
    peak = 1024 * numbers_of((home / "status").read_text(), [_PEAK])[_PEAK]
    return Look(exact_cpu_s(pid), switches, numbers_of((home / "io").read_text(), _IO), peak)


def forget_peak(pid: int) -> None:
    """Let the kernel measure a process's most resident memory from now on; from its beginning where it will not."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def numbers_of(text: str, names: Iterable[str]) -> dict[str, int]:
    """Return the numbers behind `name:` at the beginning of a line; 0 where the kernel does not count that."""
    found = {line.partition(":")[0]: line for line in text.splitlines()}
    return {name: int(found[name].split()[1]) if name in found else 0 for name in names}


def difference(before: Look, after: Look) -> dict[str, float]:
    """Return what a process did between two looks. What a thread did that ended meanwhile is missed."""
    done = {PROCESSOR: (after.cpu_s - before.cpu_s) * 1e6}
    if after.switches:
        done[WAKE_UPS] = sum(count - before.switches.get(thread, 0) for thread, count in after.switches.items())
    done |= {_IO[name]: count - before.io[name] for name, count in after.io.items()}
    return done


def summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of figures of the same names."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def _own_last(processes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Return them with this process last: it is looked at last before a block and first behind it, as looking at the
    others is not its load."""
    return dict(sorted(processes.items(), key=lambda item: os.getpid() in item[1]))


def _none_counted() -> Figures:
    return {}


class Watch:
    """Looks at processes before and after its block; what several blocks took is added up.

    It may be sent to another process, which then has the block.

    Args:
        processes: by what they are called; those of one name are added up.
        jvm: a JVM that starts Python workers, which come and go: it and they are looked at as well.
        counters: gives numbers that the processes have counted themselves since they began, if any.
    """

    def __init__(
        self,
        processes: Mapping[str, Sequence[int]],
        *,
        jvm: int | None = None,
        counters: Callable[[], Figures] = _none_counted,
    ) -> None:
        self._processes = dict(processes)
        self._jvm = jvm
        self._counters = counters
        self._done: dict[str, dict[str, float]] = {}
        self._memory_mb: dict[str, float] = {}
        self.units = 0.0

    def __enter__(self) -> Watch:
        self._processes = _own_last(self._processes)
        self._counted = self._counters()
        self._tree = None if self._jvm is None else TreeCpu([self._jvm])
        self._jvm_s = 0.0 if self._jvm is None else exact_cpu_s(self._jvm)
        for pid in self._watched():
            forget_peak(pid)
        self._before = {name: [look_at(pid) for pid in pids] for name, pids in self._processes.items()}
        return self

    def _watched(self) -> list[int]:
        own = [] if self._jvm is None else [self._jvm]
        return own + [pid for pids in self._processes.values() for pid in pids]

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return  # a load that failed: its processes may be gone, and its error is the one to be seen
        for name, pids in reversed(self._processes.items()):
            looks = [look_at(pid) for pid in pids]
            both = zip(self._before[name], looks, strict=True)
            self._add(name, summed([difference(before, after) for before, after in both]))
            self._held(name, sum(look.peak for look in looks))
        if self._tree is not None and self._jvm is not None:
            jvm_s, tree_s = exact_cpu_s(self._jvm) - self._jvm_s, self._tree.seconds()
            # The JVM was looked at within the looks at its tree: what is left is not below 0.
            self._add("JVM", {PROCESSOR: jvm_s * 1e6})
            self._add("Python workers", {PROCESSOR: (tree_s - jvm_s) * 1e6})
            self._held("JVM", look_at(self._jvm).peak)
            self._held("Python workers", largest_worker_bytes(self._jvm))
        for name, counted in self._counters().items():
            self._add(name, {what: number - self._counted[name][what] for what, number in counted.items()})

    def _add(self, name: str, done: Mapping[str, float]) -> None:
        self._done[name] = summed([self._done.get(name, {}), done])

    def _held(self, name: str, peak: float) -> None:
        if peak:
            self._memory_mb[name] = max(self._memory_mb.get(name, 0.0), peak / 1e6)

    @property
    def figures(self) -> Figures:
        """What one unit took, and the most memory. Raises InvariantViolation where the load did none."""
        taken = _per_unit(self._done, self.units)
        for name, held in self._memory_mb.items():
            taken[name][MEMORY] = held
        return taken


def _per_unit(done: Figures, units: float) -> dict[str, dict[str, float]]:
    check(units > 0, "a load that was watched did nothing")
    return {name: {what: number / units for what, number in parts.items()} for name, parts in done.items()}


class CallCount:
    """Counts system calls of processes in its block, by `perf stat`, where it is installed and allowed."""

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._done: dict[str, dict[str, float]] = {}
        self.units = 0.0
        self.missing = ""
        """Why nothing was counted."""

    def __enter__(self) -> CallCount:
        with contextlib.ExitStack() as stack:
            try:
                processes = _own_last(self._processes)
                self._counting = {name: stack.enter_context(_perf(pids)) for name, pids in processes.items()}
            except PerfError as reason:
                self.missing, self._counting = str(reason), {}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._stack:
            try:
                counting = reversed(list(self._counting.items()))
                self._done = {name: end() for name, end in counting} if kind is None else {}
            except PerfError as reason:
                self.missing = str(reason)

    @property
    def figures(self) -> Figures:
        """Calls a unit; nothing where nothing was counted. Raises InvariantViolation where the load did nothing."""
        return _per_unit(self._done, self.units)


class PerfError(Exception):
    """`perf` cannot count here."""


@contextlib.contextmanager
def _perf(pids: Sequence[int]) -> Iterator[Callable[[], dict[str, float]]]:
    """Count calls of these processes from now on, until the function that is yielded is called, which returns them."""
    program = shutil.which("perf")
    if program is None:
        raise PerfError("perf is not installed")
    events = [event for names in _EVENTS.values() for event in names]
    control, ours_of_control = os.pipe()
    ours_of_answers, answers = os.pipe()
    with contextlib.ExitStack() as stack:
        for descriptor in (ours_of_control, ours_of_answers):
            stack.callback(os.close, descriptor)
        output = stack.enter_context(tempfile.TemporaryFile())
        command = [program, "stat", "-x,", "-D", "-1", "-e", ",".join(events), "-p", ",".join(map(str, pids))]
        process = subprocess.Popen(
            ending_with_parent([*command, "--control", f"fd:{control},{answers}"]),
            pass_fds=(control, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        stack.callback(_end, process)
        os.close(control)
        os.close(answers)

        def written() -> str:
            try:
                process.wait(_PERF_S)
            except subprocess.TimeoutExpired as error:
                raise PerfError(f"perf has not ended within {_PERF_S:g} s") from error
            output.seek(0)
            return output.read().decode(errors="replace")

        def say(word: bytes) -> None:
            with contextlib.suppress(BrokenPipeError):
                os.write(ours_of_control, word)
            # It answers, or it ends, which closes the pipe.
            if os.read(ours_of_answers, len(_ACKNOWLEDGED)) != _ACKNOWLEDGED:
                raise PerfError(refusal_of(written()))

        def end() -> dict[str, float]:
            say(b"disable\n")
            process.send_signal(signal.SIGINT)
            return calls_in(written())

        say(b"enable\n")
        yield end


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def refusal_of(output: str) -> str:
    """Return the first line in which `perf` says why it does not count."""
    lines = [line.strip() for line in output.splitlines() if not line.startswith("Events ")]
    lines = [line for line in lines if line.strip(".") and line != "Error:"]
    return f"perf does not count here: {lines[0]}" if lines else "perf does not count here"


def calls_in(output: str) -> dict[str, float]:
    """Return the numbers of calls that `perf stat -x,` wrote. An event that never happened is `<not counted>`.

    Raises PerfError where it has not counted one.
    """
    counted: dict[str, float] = {}
    for fields in (line.split(",") for line in output.splitlines()):
        if len(fields) > 2:
            with contextlib.suppress(ValueError):  # <not supported>
                counted[fields[2]] = 0.0 if fields[0].startswith("<not counted") else float(fields[0])
    if missing := [event for events in _EVENTS.values() for event in events if event not in counted]:
        raise PerfError(f"perf does not count here: {', '.join(missing)}")
    return {name: sum(counted[event] for event in events) for name, events in _EVENTS.items()}


def costs_of(per: str, watch: Watch, calls: CallCount | None = None) -> Costs:
    """Return what both have seen of one unit, each in its window."""
    figures = {name: dict(parts) for name, parts in watch.figures.items()}
    if calls is not None:
        for name, parts in calls.figures.items():
            figures.setdefault(name, {}).update(parts)
    return Costs(per, figures, calls.missing if calls is not None else "")


def beside(own: Costs, peer: str, other: Costs) -> Costs:
    """Return the costs together with those of the peer that the row compares with, whose processes are named so."""
    named = {f"{peer}: {name}": parts for name, parts in other.figures.items()}
    return Costs(own.per, {**own.figures, **named}, own.missing or other.missing)
