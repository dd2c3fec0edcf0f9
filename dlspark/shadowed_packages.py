"""Whether dlspark's other two packages, `metadata` and `storage_node`, are the ones that `import` finds.

Their names are plain ones, and Python takes the first module of a name on its path: a `metadata.py` beside the user's
script, in a notebook's folder or among a Spark job's files, comes before what is installed. Then everything below would
fail with an error about something else. So `import dlspark` looks first: at where the names lead and at a line of the
source there, without running it (it may be the very script that is running).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = ("metadata", "storage_node")
MARK = "BELONGS_TO"
OWNER = "dlspark"
_LINE = f'{MARK} = "{OWNER}"'.encode()


class ShadowedModuleError(ImportError):
    """Another module has the name of one of dlspark's packages; nothing of dlspark can be used."""


def check_not_shadowed() -> None:
    """Raise ShadowedModuleError unless both packages are dlspark's."""
    for package in PACKAGES:
        loaded = sys.modules.get(package)
        if loaded is not None:
            if getattr(loaded, MARK, None) != OWNER:
                raise _shadowed_error(package, _place_of(loaded))
            continue
        spec = importlib.util.find_spec(package)
        if spec is None or spec.loader is None:
            raise _shadowed_error(package, next(iter(spec.submodule_search_locations or ()), None) if spec else None)
        if not _is_ours(package, spec):
            raise _shadowed_error(package, spec.origin)


def _is_ours(package: str, spec: ModuleSpec) -> bool:
    read = getattr(spec.loader, "get_data", None)
    if spec.origin is not None and spec.origin.endswith(".py") and read is not None:
        return _LINE in read(spec.origin)  # from a zip file as well
    # No source to look at (byte code alone is installed, or it is frozen): the module has to be imported.
    return getattr(importlib.import_module(package), MARK, None) == OWNER


def _place_of(module: ModuleType) -> str | None:
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)


def _shadowed_error(package: str, place: str | None) -> ShadowedModuleError:
    if place is None:
        return ShadowedModuleError(
            f"dlspark is not whole: its package {package!r} is not found beside it. Install dlspark again",
            name=package,
        )
    shown = os.path.dirname(place) if os.path.basename(place) == "__init__.py" else place
    distribution = _distribution_of(package, place)
    if distribution is not None:
        todo = (
            f"It belongs to the distribution {distribution!r}, which cannot be used in one environment with dlspark: "
            f"uninstall it (pip uninstall {distribution}) and install dlspark again, or give dlspark a virtual "
            "environment of its own"
        )
    else:
        todo = "Rename it, or move your program to a folder without it"
    return ShadowedModuleError(
        f"dlspark cannot be imported: {shown} has the name of dlspark's own package {package!r} and comes before it on "
        f"Python's path. {todo}",
        name=package,
        path=place,
    )


def _distribution_of(package: str, place: str) -> str | None:
    """Return the installed distribution, other than dlspark, that this file is of; only asked where something is
    wrong."""
    from importlib import metadata as distributions

    for name in distributions.packages_distributions().get(package, ()):
        if name.lower() == OWNER:
            continue
        files = distributions.files(name) or ()
        if any(os.path.realpath(str(file.locate())) == os.path.realpath(place) for file in files):
            return name
    return None
