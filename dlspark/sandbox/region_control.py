"""Commands about regions, from `dlspark sandbox region` to the process that owns the sandbox.

A connection to a port on 127.0.0.1, which `sandbox.json` names while the sandbox takes commands, carries one line of
JSON each way: what to do, and the conditions of all regions after it, or the error. A command is answered once it
holds. Whoever may reach the port may reach the sandbox's ZooKeeper as well, which asks for no rights either.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from dlspark.sandbox.regions import Direction, SandboxRegions
from dlspark.sandbox.state import SandboxState
from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError, OutcomeUnknownError

HOST: Final = "127.0.0.1"
CLOSE_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 120.0
"""A killed region starts again within it."""
_REQUEST_TIMEOUT_S: Final = 5.0
_LONGEST_LINE: Final = 4096
_ACCEPT_PAUSE_S: Final = 0.1
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegionCommand:
    """What is to be done to a region of a running sandbox? `action`: cut, slow, kill, heal, or list, which needs no
    region.
    """

    action: str
    region: str = ""
    direction: Direction = "both"
    round_trip_ms: float = 0.0


class RegionOwner(Protocol):
    """What has regions, and runs their processes?"""

    @property
    def regions(self) -> SandboxRegions:
        """The regions."""
        ...

    def kill_region(self, name: str) -> None:
        """Cut a region off and kill all that runs in it. Raises CallerError."""
        ...

    def heal_region(self, name: str) -> None:
        """Take all faults from a region. Raises CallerError."""
        ...


class RegionControl:
    """Takes commands for one sandbox: changes one after the other, and questions at any time, also while a region is
    being healed. Each connection has a thread of its own, of which one waits for all."""

    def __init__(self, sandbox: RegionOwner) -> None:
        """Listen. Raises OSError."""
        self._sandbox = sandbox
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._changing = threading.Lock()
        self._answering: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="dlspark-regions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more commands; returns when the last one has been carried out, or `CLOSE_TIMEOUT_S` have passed: what
        it waits for may itself hang, and ends with the sandbox. Idempotent."""
        if not self._closing:
            self._closing = True
            # Wakes accept(): closing its socket does not.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in (self._thread, *list(self._answering)):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closing:  # too many open files, or a client that has gone: the next one may be served
                    _LOG.warning("a command about regions could not be taken: %s", error)
                    time.sleep(_ACCEPT_PAUSE_S)
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="dlspark-region", daemon=True)
            self._answering.add(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_REQUEST_TIMEOUT_S)
                with connection.makefile("rb") as lines:
                    answer = self._answer(lines.readline(_LONGEST_LINE))
                connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            pass  # the asker has gone; what it asked for is done
        finally:
            self._answering.discard(threading.current_thread())

    def _answer(self, line: bytes) -> Mapping[str, object]:
        try:
            command = RegionCommand(**json.loads(line))
        except (ValueError, TypeError) as error:
            return {"error": f"not a command: {error}", "advice": None}
        try:
            if command.action != "list":
                with self._changing:
                    self._change(command)
        except DistributedLogError as error:
            return {"error": error.message, "advice": error.advice}
        except Exception as error:  # the asker has to hear of it, and others are served as before
            _LOG.exception("a command about regions failed: %s", command)
            return {
                "error": f"{command.action} {command.region} failed, it may be done in part: {error!r}",
                "advice": "Look with: dlspark sandbox status; heal the region, or stop the sandbox and start it again",
            }
        regions = self._sandbox.regions
        return {"regions": {name: regions.condition(name) for name in regions.names}}

    def _change(self, command: RegionCommand) -> None:
        sandbox, name = self._sandbox, command.region
        if self._closing:
            raise CallerError("the sandbox is being stopped; nothing was done")
        if command.action == "cut":
            sandbox.regions.cut(name, command.direction)
        elif command.action == "slow":
            sandbox.regions.slow(name, command.round_trip_ms)
        elif command.action == "kill":
            sandbox.kill_region(name)
        elif command.action == "heal":
            sandbox.heal_region(name)
        else:
            raise CallerError(f"{command.action!r} is nothing that can be done to a region")


def tell(state: SandboxState, command: RegionCommand) -> Mapping[str, str]:
    """Have a running sandbox carry out a command; returns what is wrong with each region after it.

    Raises CallerError where the sandbox takes no commands or refuses this one, OutcomeUnknownError where the answer is
    lost.
    """
    if not state.regions:
        raise CallerError(
            "the sandbox has no regions; nothing was done",
            advice="Start another one, in a directory of its own: dlspark sandbox start --regions 3 --dir DIR",
        )
    if state.control_port is None or not state.running():
        raise NotAppliedError(
            "the sandbox does not take commands about regions; nothing was done",
            advice="It belongs to a program, which has its regions in hand: sandbox.take_commands() there lets it"
            if state.running()
            else f"It does not run; start it: dlspark sandbox start --regions {len(state.regions)}",
        )
    try:
        connection = socket.create_connection((HOST, state.control_port), _REQUEST_TIMEOUT_S)
    except OSError as error:
        raise NotAppliedError(
            f"the sandbox (process {state.pid}) takes no commands: {error}; nothing was done",
            advice="Stop it and start it again",
        ) from error
    try:
        with connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.sendall(json.dumps(asdict(command)).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise OutcomeUnknownError(
            f"the sandbox (process {state.pid}) did not answer; it is not known what was done: {error}",
            advice="Look with: dlspark sandbox status",
        ) from error
    if "error" in answer:
        raise CallerError(str(answer["error"]), advice=answer["advice"])
    return {str(name): str(words) for name, words in answer["regions"].items()}
