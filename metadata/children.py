"""Processes that end with the one that started them, even where it is killed (Linux; elsewhere they are on their own).

The request to the kernel is made by a small Python that then becomes the command. It is not made between fork and exec
(`preexec_fn`): that runs this process's other threads' end in the child, where objects of theirs are finalised: sockets
they share with their originals are shut down, py4j's to the JVM among them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_LAUNCHER: Final = """\
import ctypes, os, sys
parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, number, 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
os.execv(command[0], command)
"""


def ending_with_parent(command: Sequence[str], number: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command line that runs `command` (its first word a path) and gets signal `number` when this process ends.

    The kernel sends it at the end of the *thread* that starts the command: that one has to live as long.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(number)), *command]
