"""`AuditTrail`: who asked for what, from where, and whether it was allowed: a file of JSON lines, one a note.

Every line has the same fields; what is not known of a note is null:

    time        UTC, to the millisecond
    event       what was asked for: "connection", "request", "rules", and what else a server names
    result      "allowed" or "refused"
    reason      why
    principal, scheme, peer, session, log, verb, request     who, by which proof, from where, and what for
    count       how many notes the line stands for: 1, unless `event` is "repeated" or "left-out"

Theory of operation. `note` makes the line and puts it into a queue in memory; it never waits for the disk. A thread
writes what has gathered once a second, syncs it, and begins a new file where the current one is full: `audit.log`
becomes `audit.log.1`, and so on, and the oldest one goes. So a crash of the process loses the last second at most, and
a crash of the machine no more than that.

A client decides how often it is refused, and with which texts. So texts are cut and escaped (a line is ASCII, a value
can neither end it nor look like another one), and notes of one host beyond the first few a second are counted: a line
"repeated" follows, which says how many of which events there were. Only so many hosts are told apart at a time; the
others share one count. Nothing is dropped in silence: what finds no room in the queue is counted, and the next line
that is written says so ("left-out").

Fault model. A disk that is full or fails: what is queued stays queued and is tried again every second, what part of a
batch was written is taken back, and the process's own log says so once. `failure` says why meanwhile. With
`auditLogFailure=refuse` whoever allows things asks `refuses` first, and allows nothing while it is set: at most what
was queued since the failure was allowed without being on disk, and it is written once the disk takes it. With `count`,
the default, work goes on; once the queue is full as well, notes are counted. A file that is removed, moved or cut
meanwhile is noticed before the next lines: they go into a new one in its place, or where its folder is gone as well,
they wait, as above. A file that cannot be opened at the start is an error. A last line that was cut off by a crash
stays as it is, and the next one begins on a line of its own. Two processes never write one trail: the second one is
refused (a lock beside it, `audit.log.lock`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from metadata.foundation.errors import CallerError, present
from metadata.foundation.opened_here import OpenedHere
from metadata.foundation.private_files import FILE_MODE
from metadata.foundation.settings import TEXT, WHOLE, setting
from metadata.foundation.times import time_text

_LOG: Final = logging.getLogger(__name__)

REPEATED: Final = "repeated"
"""The event of a line that stands for notes of one host which were counted."""
LEFT_OUT: Final = "left-out"
"""The event of a line that stands for notes which found no room."""
MAX_VALUE_CHARS: Final = 512
"""Longer values are cut; a log's name has 255 at most."""
REFUSALS_A_SECOND: Final = 10
"""Of one host, each with a line of its own; more are counted."""
ALLOWED_A_SECOND: Final = 100
"""The same for what was allowed."""
MAX_HOSTS: Final = 4096
"""Hosts that are told apart at a time."""
MAX_COUNTED_EVENTS: Final = 16
"""Events that one line "repeated" tells apart."""
MAX_QUEUED_BYTES: Final = 8 * 1024 * 1024
"""Lines that wait for the disk."""
FLUSH_S: Final = 1.0
"""Lines are written so long after the first of them; windows of counting have this length, too."""
CLOSE_S: Final = 10.0
"""The end waits so long for a disk."""

_DATA_VERBS: Final = frozenset(("read", "write"))
_MEANING_FULL: Final = (
    "What happens while the audit trail cannot be written, for the disk is full say. count: work goes on, notes are "
    "kept in memory (8 MiB), and counted beyond that. refuse: nothing more is allowed until it can be written again"
)


class Noted(Protocol):
    """Where does a server note what it allowed and refused? In an `AuditTrail`, or nowhere (`NOWHERE`)."""

    @property
    def refuses(self) -> str | None:
        """Say why nothing may be allowed now, for it could not be noted; None: all is well."""
        ...

    def note(
        self,
        event: str,
        *,
        allowed: bool,
        reason: str,
        principal: str | None,
        peer: str,
        session: str | None = None,
        log: str | None = None,
        verb: str | None = None,
        scheme: str | None = None,
        request: str | None = None,
    ) -> None:
        """Note it. Never waits and never raises.

        Args:
            event: a word of the server's own, never a client's text: "connection", "request".
            principal: its name; None: nothing was proved.
            peer: `host:port`.
            scheme: by which means the principal was proved.
            request: the kind of the request, or its number.
        """
        ...


class Unnoted:
    """Notes nothing: a `Noted` for where no trail is asked for."""

    @property
    def refuses(self) -> None:
        """See `Noted`."""

    def note(
        self,
        event: str,
        *,
        allowed: bool,
        reason: str,
        principal: str | None,
        peer: str,
        session: str | None = None,
        log: str | None = None,
        verb: str | None = None,
        scheme: str | None = None,
        request: str | None = None,
    ) -> None:
        """See `Noted`."""


NOWHERE: Final[Noted] = Unnoted()


@dataclass(frozen=True)
class AuditKeys:
    """Audit trail"""

    audit_log: str = setting(
        TEXT,
        "",
        "auditLog",
        "The file of the audit trail: who was allowed and refused what, a JSON object a line. Each process needs one "
        "of its own. Empty: there is none",
        own=True,
        section="Audit trail",
    )
    audit_log_max_mb: int = setting(
        WHOLE,
        64,
        "auditLogMaxMB",
        "The size at which a new file is begun, in MiB",
        minimum=1,
        maximum=65_536,
        own=True,
    )
    audit_log_files: int = setting(
        WHOLE,
        10,
        "auditLogFiles",
        "Files of the audit trail that are kept, the current one included; the oldest one is deleted where there would "
        "be more",
        minimum=2,
        maximum=1000,
        own=True,
    )
    audit_allowed: str = setting(
        TEXT,
        "changes",
        "auditAllowed",
        "What is noted of what was allowed; refusals always are. off: nothing; changes: connections, and creating, "
        "truncating, deleting and administering; all: each write and read as well, the first hundred a second of a "
        "host one by one, the others counted",
        choices=("off", "changes", "all"),
        own=True,
    )
    audit_log_failure: str = setting(
        TEXT, "count", "auditLogFailure", _MEANING_FULL, choices=("count", "refuse"), own=True
    )

    def open_audit(self) -> AuditTrail | None:
        """Open the trail that they ask for; None where they ask for none. Raises CallerError where it cannot be."""
        if not self.audit_log:
            return None
        return AuditTrail(
            self.audit_log,
            max_bytes=self.audit_log_max_mb * 1024 * 1024,
            files=self.audit_log_files,
            allowed=self.audit_allowed,
            refuse_unwritten=self.audit_log_failure == "refuse",
        )


@dataclass(slots=True)
class _Window:
    """The notes of one host within a second."""

    began_s: float
    passed: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """Notes with a line of their own, by whether they were allowed, and were of reading or writing: a client that reads
    and writes much, or others behind its address, must not hide what else is done."""
    counted: Counter[tuple[bool, str]] = field(default_factory=Counter)
    """Notes without a line of their own, by whether they were allowed, and by their event and verb."""
    last: dict[bool, tuple[str | None, str]] = field(default_factory=dict)
    """Principal and reason of the last such note."""


class AuditTrail(OpenedHere):
    """How does a process note what it allowed and refused? One object a process; `note` from any thread.

    Args:
        path: the current file; its folder exists.
        max_bytes: a file that has as many is put aside.
        files: how many are kept, the current one included.
        allowed: what is noted of what was allowed: "off", "changes" or "all".
        refuse_unwritten: whether `refuses` says so while nothing can be written.
        now_s: the time, seconds since the epoch.
        monotonic_s: a clock for windows, seconds.

    Raises CallerError where the file cannot be written, or another process writes it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int,
        files: int,
        allowed: str = "changes",
        refuse_unwritten: bool = False,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = Path(path)
        self._file = RotatedFile(self._path, max_bytes, files)
        self._allowed = allowed
        self._refuse_unwritten = refuse_unwritten
        self._now_s, self._monotonic_s = now_s, monotonic_s
        self._lock = threading.Lock()
        """Of the fields below. The thread holds it to take what is queued, never while it writes."""
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._left_out = 0
        self._windows: dict[str, _Window] = {}
        self._failure: str | None = None
        self._work = threading.Event()
        self._closing = threading.Event()
        self._turn = threading.Lock()
        """Held while a batch is written: by the thread, or by who flushes."""
        self._thread = threading.Thread(target=self._run, name="audit trail", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what it says of itself

    @property
    def failure(self) -> str | None:
        """Why the trail cannot be written now; None while it can."""
        return self._failure

    @property
    def refuses(self) -> str | None:
        """See `Noted`."""
        return self._failure if self._refuse_unwritten else None

    # ------------------------------------------------------------------ noting

    def note(
        self,
        event: str,
        *,
        allowed: bool,
        reason: str,
        principal: str | None,
        peer: str,
        session: str | None = None,
        log: str | None = None,
        verb: str | None = None,
        scheme: str | None = None,
        request: str | None = None,
    ) -> None:
        """See `Noted`."""
        if allowed and (self._allowed == "off" or (self._allowed == "changes" and verb in _DATA_VERBS)):
            return
        with self._lock:
            # A change that was done is never only counted: there are few, and what was deleted has to be known.
            is_change = allowed and verb is not None and verb not in _DATA_VERBS
            if not is_change and self._is_counted(
                host_of(peer), event, verb, allowed=allowed, principal=principal, reason=reason
            ):
                self._work.set()
                return
        line = self._line(
            event, allowed, reason, 1, principal, scheme, peer, session=session, log=log, verb=verb, request=request
        )
        with self._lock:
            self._put(line)

    def _is_counted(
        self, host: str, event: str, verb: str | None, *, allowed: bool, principal: str | None, reason: str
    ) -> bool:
        """Return whether this one is only counted, for its host had its lines in this second."""
        window = self._windows.get(host)
        if window is None:
            if len(self._windows) >= MAX_HOSTS:
                host = ""  # of all others together
                window = self._windows.get(host)
            if window is None:
                window = self._windows[host] = _Window(self._monotonic_s())
                self._work.set()  # the thread ends windows
        most = ALLOWED_A_SECOND if allowed else REFUSALS_A_SECOND
        place = allowed, verb in _DATA_VERBS
        if window.passed[place] < most:
            window.passed[place] += 1
            return False
        kind = (allowed, event if verb is None else f"{event}/{verb}")
        if kind not in window.counted and len(window.counted) >= MAX_COUNTED_EVENTS:
            kind = (allowed, "other")
        window.counted[kind] += 1
        window.last[allowed] = (principal, reason)
        return True

    def _put(self, line: bytes) -> None:
        if self._queued_bytes + len(line) > MAX_QUEUED_BYTES:
            self._left_out += 1
        else:
            self._queue.append(line)
            self._queued_bytes += len(line)
        self._work.set()

    def _line(
        self,
        event: str,
        allowed: bool,
        reason: str,
        count: int,
        principal: str | None,
        scheme: str | None,
        peer: str | None,
        **others: str | None,
    ) -> bytes:
        fields: dict[str, object] = {
            "time": time_text(int(self._now_s() * 1000)),
            "event": bounded(event),
            "result": "allowed" if allowed else "refused",
            "reason": bounded(reason),
            "principal": bounded(principal),
            "scheme": bounded(scheme),
            "peer": bounded(peer),
        }
        fields |= {name: bounded(others.get(name)) for name in ("session", "log", "verb", "request")}
        fields["count"] = count
        # ASCII: no line end of any kind, and no sign that turns the text around, reaches a terminal as itself.
        return json.dumps(fields, ensure_ascii=True).encode("ascii") + b"\n"

    # ------------------------------------------------------------------ writing

    def _run(self) -> None:
        while not self._closing.is_set():
            self._work.wait()
            self._closing.wait(FLUSH_S)  # what comes within this is written together
            self._write_batch(end_windows=self._closing.is_set())

    def _write_batch(self, *, end_windows: bool) -> None:
        """Write what is queued, and the counts of windows that are over."""
        with self._turn:
            with self._lock:
                over = self._take_windows(all_of_them=end_windows)
            # Outside of the lock, for which `note` waits on an event loop: there may be thousands of them.
            counts = [line for host, window in over for line in self._lines_of(host, window)]
            with self._lock:
                for line in counts:
                    self._put(line)
                if self._left_out and self._queued_bytes < MAX_QUEUED_BYTES // 2:
                    count, self._left_out = self._left_out, 0
                    self._put(self._line(LEFT_OUT, False, "no room for them in memory", count, None, None, None))
                batch, self._queue = self._queue, deque()
                self._work.clear()
                if self._windows:
                    self._work.set()
            if not batch:
                with self._lock:
                    self._queued_bytes = sum(map(len, self._queue))
                return
            try:
                self._file.write(batch)
            except OSError as error:
                self._say_failed(f"the audit trail {self._path} cannot be written: {error.strerror or error}")
            else:
                self._say_failed(None)
            with self._lock:
                # What was not written is tried again, in front of what came meanwhile.
                self._queue.extendleft(reversed(batch))
                self._queued_bytes = sum(map(len, self._queue))
                if self._queue or self._left_out:
                    self._work.set()

    def _take_windows(self, *, all_of_them: bool) -> list[tuple[str, _Window]]:
        """Return the windows that are over, with their hosts, and forget them."""
        now_s = self._monotonic_s()
        over = [host for host, one in self._windows.items() if all_of_them or now_s - one.began_s >= FLUSH_S]
        return [(host, self._windows.pop(host)) for host in over]

    def _lines_of(self, host: str, window: _Window) -> Iterator[bytes]:
        for allowed in (False, True):
            counted = {kind: count for (one, kind), count in window.counted.items() if one is allowed}
            if counted:
                principal, reason = window.last[allowed]
                said = ", ".join(f"{kind} {count}" for kind, count in sorted(counted.items()))
                told = f"{said}; the last one: {reason}"
                yield self._line(REPEATED, allowed, told, sum(counted.values()), principal, None, host or None)

    def _say_failed(self, failure: str | None) -> None:
        before, self._failure = self._failure, failure
        if failure is not None and before is None:
            so = "nothing is allowed until it can be" if self._refuse_unwritten else "work goes on, notes are counted"
            _LOG.error("%s; %s. Make room, or mend the disk: it is tried again every second", failure, so)
        elif failure is None and before is not None:
            _LOG.warning("the audit trail %s is written again", self._path)

    def flush(self) -> None:
        """Wait until all that was noted so far, counts included, is written, or has failed to be: `failure` says so."""
        self._write_batch(end_windows=True)

    def close(self) -> None:
        """Write what is left, and end. Waits for the disk, CLOSE_S at most. Idempotent."""
        self._closing.set()
        self._work.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _LOG.error("the audit trail %s could not be ended: its disk does not answer", self._path)
            return
        self._write_batch(end_windows=True)
        with self._lock:
            lost = len(self._queue) + self._left_out
        if lost:
            _LOG.error("%d lines of the audit trail %s were not written: %s", lost, self._path, self._failure)
        self._file.close()


class RotatedFile:
    """Appends lines to a file, and begins a new one where it is full. For one thread at a time.

    Args:
        path: the current file; `path.1` is the one before it.
        max_bytes: a file that has as many is put aside.
        files: how many are kept.

    Raises CallerError where the file cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._fd: int | None = None
        self._size = 0
        try:
            self._lock_fd = _opened(Path(f"{path}.lock"))
        except OSError as error:
            raise _unusable_error(path, error) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open()
        except BlockingIOError as error:
            os.close(self._lock_fd)
            raise CallerError(
                "another process writes this audit trail",
                path=str(path),
                advice="Give each process an audit trail of its own: auditLog",
            ) from error
        except OSError as error:
            os.close(self._lock_fd)
            raise _unusable_error(path, error) from error

    def _open(self) -> None:
        fd = _opened(self._path)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                size += os.write(fd, b"\n")  # a crash cut the last line off
        except OSError:
            os.close(fd)
            raise
        self._fd, self._size = fd, size

    def write(self, lines: deque[bytes]) -> None:
        """Append lines and sync them; those that are on disk are taken out of `lines`. Raises OSError."""
        self._look()
        while lines:
            if self._fd is None:
                self._open()
            if self._size and self._size + len(lines[0]) > self._max_bytes:
                self._rotate()
                self._open()
            fd = present(self._fd, "the audit trail's file is not open")
            part: list[bytes] = []
            room = self._max_bytes - self._size
            for line in lines:
                if part and room < len(line):
                    break
                part.append(line)
                room -= len(line)
            self._append(fd, b"".join(part))
            for _ in part:
                lines.popleft()

    def _look(self) -> None:
        """Leave a file that its name leads to no more: nobody would find what was written there. Raises OSError."""
        if self._fd is None:
            return
        mine = os.fstat(self._fd)
        if not os.path.lexists(self._path) or not os.path.samestat(mine, os.lstat(self._path)):
            _LOG.warning("somebody has removed or moved the audit trail %s; it goes on in a new file there", self._path)
            os.close(self._fd)
            self._fd = None
        elif mine.st_size != self._size:
            if mine.st_size < self._size:
                _LOG.warning("somebody has cut the audit trail %s to %d bytes", self._path, mine.st_size)
            self._size = mine.st_size

    def _append(self, fd: int, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fdatasync(fd)
        except OSError:
            # Half a batch is taken back, so that it is there once when it is written again. Where even that fails, the
            # file is opened anew, and lines may be there twice: rather twice than never.
            self._fd = None
            try:
                os.ftruncate(fd, self._size)
            finally:
                os.close(fd)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        """Put the current file aside. A crash in between leaves a gap in the numbers, and no file less."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        names = [self._path]
        while len(names) < self._files and names[-1].exists():
            names.append(Path(f"{self._path}.{len(names)}"))
        # The oldest first, up to the first number that is free: only the oldest file of all is ever replaced.
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            os.replace(newer, older)

    def close(self) -> None:
        """Close the file, and let another process write it. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            os.close(lock_fd)


def _opened(path: Path) -> int:
    """Open a file for its owner alone, to append. A link is not followed: it could lead to any other file."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.fchmod(fd, FILE_MODE)
    except OSError:
        os.close(fd)
        raise
    return fd


def _unusable_error(path: Path, error: OSError) -> CallerError:
    return CallerError(
        f"the audit trail cannot be written: {error.strerror or error}",
        path=str(path),
        advice="auditLog names a file, in a folder that exists, which this user may write",
    )


def host_of(peer: str) -> str:
    """Return the host of `host:port`, so that a client with many connections is one."""
    return peer.rpartition(":")[0] or peer


def bounded(value: str | None) -> str | None:
    """Return a text from elsewhere, cut to MAX_VALUE_CHARS, and without halves of characters."""
    if value is None:
        return None
    text = value if len(value) <= MAX_VALUE_CHARS else f"{value[: MAX_VALUE_CHARS - 3]}..."
    return text.encode("utf-8", "backslashreplace").decode()
