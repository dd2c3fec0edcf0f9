"""`OperatorFiles`: the files by which operators control a namespace while it is open, and the task that looks at them.

The files hold dynamic settings (`dynamic_settings`) and feature switches (`feature_files`). The task looks at them
every `dynamicConfigReloadIntervalSec`; where neither is configured there is no task. `close` ends it (I16).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from dlspark.core.dynamic.dynamic_settings import DynamicSettings
from dlspark.core.dynamic.feature_files import FileFeatures
from dlspark.core.dynamic.features import NO_FEATURES, FeatureProvider, provider_kind
from dlspark.core.dynamic.watched_file import ReadFile, read_in_thread
from dlspark.core.settings import LiveSettings, Settings
from metadata.foundation.tasks import end_tasks

_log = logging.getLogger(__name__)


class OperatorFiles:
    """What the files say now. Made by `load`."""

    def __init__(self, dynamic: DynamicSettings, switches: FileFeatures | None, features: FeatureProvider) -> None:
        self.features = features
        """The provider that is asked for features: the caller's, else the files, else one with everything off."""
        self._dynamic = dynamic
        self._switches = switches
        self._reloading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def load(
        cls,
        settings: Settings,
        counters: Counter[str],
        features: FeatureProvider | None = None,
        read: ReadFile = read_in_thread,
    ) -> OperatorFiles:
        """Read the files that `settings` name. `features`, if given, takes the place of `featureProviderClass`.

        Raises SettingsError.
        """
        dynamic = DynamicSettings(settings, counters, read)
        await dynamic.load()
        switches = None
        if features is None and provider_kind(settings.feature_provider) == "files":
            features = switches = FileFeatures(settings, counters, read)
            await switches.load()
        return cls(dynamic, switches, NO_FEATURES if features is None else features)

    def start(self, interval_s: float) -> None:
        """Look at the files again every `interval_s` seconds, if any are configured, until `close`."""
        if self._dynamic.configured or self._switches is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(interval_s))

    async def settings_of(self, log: str, base: Settings) -> LiveSettings:
        """The settings of a log that is being opened: `base`, and what the files say, now and later."""
        return await self._dynamic.open(log, base)

    async def reload(self) -> None:
        """Look at the files now. A file that cannot be used is reported, and what it said before stays in force."""
        async with self._reloading:
            await self._dynamic.reload()
            if self._switches is not None:
                await self._switches.reload()

    async def close(self) -> None:
        """End the task. Idempotent."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.reload()
            except Exception:
                # One bad look must not end the task: the next one may find the file repaired.
                _log.exception("the configuration files could not be looked at; trying again in %s s", interval_s)
