"""The program `dlspark` (and `python -m dlspark.cli`), from its first moment on.

Ctrl-C ends it without a trace back at any time. While modules are being imported an exception in their midst would show
as one, so until then the signal ends the process at once: nothing has been begun that would have to be finished.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line of this process."""
    # A shell makes what it starts in the background ignore the signal; that stays.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _end_at_once)
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding shows escapes; an error in the midst of an answer would end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    from dlspark.cli.main import app, output_failed

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # of what is printed outside of commands: help
        if not output_failed(error):
            raise
        sys.exit(1)


if __name__ == "__main__":
    main()
