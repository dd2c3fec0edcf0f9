"""Feature switches from files: a base file, and an overlay whose switches take the place of the base file's.

    fileFeatureProviderBaseConfigPath       has to exist
    fileFeatureProviderOverlayConfigPath    may appear and disappear: for what is switched in a hurry

Both are properties files of full names and availability, `dl.disable_write_limit=100`; above 0 is on. They are looked
at regularly (`dynamicConfigReloadIntervalSec`); a file that cannot be used leaves the switches as they were.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from dlspark.core.dynamic.features import BKC_SCOPE, DL_SCOPE, KNOWN_FEATURES, SettableFeatures
from dlspark.core.dynamic.watched_file import ReadFile, WatchedFile, read_in_thread
from dlspark.core.settings import Settings
from dlspark.errors import SettingsError
from metadata.foundation.properties import local_path

_log = logging.getLogger(__name__)

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class FileFeatures(SettableFeatures):
    """Switches as two files have them. `load` before use."""

    def __init__(self, settings: Settings, counters: Counter[str], read: ReadFile = read_in_thread) -> None:
        super().__init__()
        overlay = settings.feature_overlay_path
        self._base = WatchedFile(local_path(settings.feature_base_path, SettingsError), _availability, counters, read)
        self._overlay = (
            WatchedFile(local_path(overlay, SettingsError), _availability, counters, read) if overlay else None
        )

    async def load(self) -> None:
        """Read the files. Raises SettingsError, also where the base file does not exist."""
        await self._base.load()
        if self._base.meaning is None:
            raise SettingsError(
                f"fileFeatureProviderBaseConfigPath={self._base.path} does not exist",
                advice="Create it, correct the path, or set featureProviderClass=DefaultFeatureProvider",
            )
        if self._overlay is not None:
            await self._overlay.load()
        self._switch()

    async def reload(self) -> None:
        """Look at the files again."""
        changed = await self._base.refresh()
        if self._overlay is not None:
            changed = await self._overlay.refresh() or changed
        if changed:
            self._switch()

    def _switch(self) -> None:
        before = self.switched()
        overlay = self._overlay.meaning if self._overlay is not None else None
        self.replace({**(self._base.meaning or {}), **(overlay or {})})
        after = self.switched()
        for name in sorted(before.keys() | after.keys()):
            if before.get(name, 0) != after.get(name, 0):
                _log.info("feature %s: %d, was %d", name, after.get(name, 0), before.get(name, 0))


def _availability(written: Mapping[str, str]) -> dict[str, int]:
    """The switches of a file. Raises SettingsError for an availability that is not a whole number."""
    found: dict[str, int] = {}
    for name, text in written.items():
        if not _NUMBER.fullmatch(text.strip()):
            raise SettingsError(f"{name}={text!r} is not a whole number", advice="Above 0 switches the feature on")
        found[name] = int(text)
        _warn_if_unknown(name)
    return found


def _warn_if_unknown(name: str) -> None:
    """Warn of a switch in a scope of this library that nothing looks at: it is misspelt, or only upstream has it."""
    if name in KNOWN_FEATURES or name.partition(".")[0] not in (DL_SCOPE, BKC_SCOPE):
        return
    nearest = difflib.get_close_matches(name, KNOWN_FEATURES, n=1)
    advice = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(KNOWN_FEATURES)}"
    _log.warning("the feature %s is switched in a file, but nothing here looks at it; %s", name, advice)
