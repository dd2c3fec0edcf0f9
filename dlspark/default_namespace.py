"""Which namespace is meant where no URI is given: the one that `DLSPARK_URI` names, else that of a running sandbox.

    given in code, by option or conf  >  the environment variable DLSPARK_URI  >  a sandbox that runs on this machine

The sandbox is the one in its default directory (`~/.dlspark/sandbox`), and it counts only while the process that owns
it runs: a sandbox that was stopped or killed is never used.
"""

from __future__ import annotations

import logging
import os

from dlspark.sandbox.state import SandboxState, default_directory
from metadata.foundation.errors import CallerError

VARIABLE = "DLSPARK_URI"
ADVICE = f"set {VARIABLE}, or start a sandbox on this machine: dlspark sandbox start --detach"
_log = logging.getLogger(__name__)


def default_uri() -> str | None:
    """Return the URI of the variable, else of the sandbox that runs, else None. Logs (INFO) which of them it is.

    Raises CallerError for a sandbox whose state file is damaged.
    """
    named = os.environ.get(VARIABLE, "").strip()
    if named:
        _log.info("the namespace is %s: the variable %s says so", named, VARIABLE)
        return named
    directory = default_directory()
    state = SandboxState.load(directory)
    if state is None or not state.running():
        return None
    _log.info("the namespace is %s: that of the sandbox which runs in %s (process %s)", state.uri, directory, state.pid)
    return state.uri


def uri_or_default(uri: str | None, how: str = 'Give a URI, "distributedlog://host:port/path"') -> str:
    """Return `uri` if there is one, else the one that is known. Raises CallerError where there is none; `how` says how
    to give one in place."""
    if uri is not None and not uri.strip():
        # As a variable that is not set gives it to a script: not a reason to take another namespace.
        raise CallerError("an empty URI was given; nothing was done", advice=how)
    found = uri or default_uri()
    if not found:
        raise CallerError(
            f"no namespace was named: no URI was given, {VARIABLE} is not set, and no sandbox runs in "
            f"{default_directory()}",
            advice=f"{how}, or {ADVICE}. One with another --dir is named by its URI: dlspark sandbox status --dir DIR",
        )
    return found
