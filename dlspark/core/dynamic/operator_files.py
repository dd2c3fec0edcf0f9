"""`OperatorFiles`: the files by which operators control a namespace while it is open, and the task that looks at them.

The files hold feature switches (`features.FileFeatures`) and dynamic settings, which change while logs are open. The
task looks at them every `dynamicConfigReloadIntervalSec`; where none are configured there is no task. `close` ends it
(I16).

Dynamic settings (`DynamicSettings`) are in these files:

    <streamConfigDirectory>/<stream>.conf     for the logs of one stream (`settings.operations` says which those are)
    <streamConfigDefaultPath>                 for all logs; a key in their stream's file wins

A log's settings are the namespace's; over them what was given on opening the log; over them the default file; over it
the stream's file. Where a key disappears from a file, or a file does, what is below holds again.

Only keys that are marked as dynamic may be in these files. A file that holds another one, or a bad value, or values
that contradict the rest, is refused whole: with an error when it is read first (opening the namespace or the log), with
a warning and a count later, and then what was in force stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dlspark.core.dynamic.features import NO_FEATURES, FeatureProvider, FileFeatures
from dlspark.core.dynamic.watched_file import REJECTED, ReadFile, WatchedFile, read_in_thread
from dlspark.core.metrics.structured_logging import about
from dlspark.core.settings.operations import StreamConverter, provider_kind, stream_converter
from dlspark.core.settings.settings import LiveSettings, Settings, dynamic_values
from dlspark.errors import SettingsError
from metadata.foundation.properties import local_path
from metadata.foundation.settings import Value
from metadata.foundation.tasks import end_tasks

_log = logging.getLogger(__name__)

CHANGED: Final = "dynamic-settings-changed"
"""Counts the changes of open logs."""
_Values: TypeAlias = dict[str, Value]


@dataclass(eq=False, slots=True)
class _OpenLog:
    """One open log: its settings without files, its files, and the live settings that get the result."""

    name: str
    base: Settings
    files: tuple[WatchedFile[_Values], ...]
    """A later one goes over an earlier one."""
    live: LiveSettings

    def settings(self) -> Settings:
        """Return what should hold now. Raises SettingsError where the files contradict each other or the rest."""
        values: _Values = {}
        for file in self.files:
            values.update(file.meaning or {})
        return self.base.with_values(values)


class DynamicSettings:
    """The dynamic settings files of a namespace. All calls come from one event loop."""

    def __init__(self, settings: Settings, counters: Counter[str], read: ReadFile = read_in_thread) -> None:
        directory, default = settings.stream_config_directory, settings.stream_config_default
        self._directory = local_path(directory, SettingsError) if directory else None
        self._default = (
            WatchedFile(local_path(default, SettingsError), dynamic_values, counters, read) if default else None
        )
        self._converter: StreamConverter = stream_converter(settings.stream_config_router, "streamConfigRouterClass")
        self._counters = counters
        self._read = read
        self._directory_lost = False
        self._streams: dict[Path, WatchedFile[_Values]] = {}
        self._logs: list[_OpenLog] = []

    @property
    def configured(self) -> bool:
        """True if there can be any files."""
        return self._directory is not None or self._default is not None

    async def load(self) -> None:
        """Read the default file. Raises SettingsError, also where it or the directory is not there."""
        if self._directory is not None and not await asyncio.to_thread(self._directory.is_dir):
            raise SettingsError(
                f"streamConfigDirectory={self._directory} is not a directory", advice="Create it, or correct the path"
            )
        if self._default is not None:
            await self._default.load()
            if self._default.meaning is None:
                raise SettingsError(
                    f"streamConfigDefaultPath={self._default.path} does not exist",
                    advice="Create it, or correct the path",
                )

    async def open(self, log: str, base: Settings) -> LiveSettings:
        """Return the settings of a log that is being opened, which follow the files until they are closed.

        Raises SettingsError for a stream's file that is read for the first time and cannot be used.
        """
        stream = await self._stream_file(log)
        files = tuple(file for file in (self._default, stream) if file is not None)
        live = LiveSettings(base, lambda: self._forget(opened))
        opened = _OpenLog(log, base, files, live)
        live.change(opened.settings())
        self._logs.append(opened)
        return live

    async def reload(self) -> None:
        """Look at every file again, and give open logs what has changed. Does not raise for an unusable file."""
        files = [self._default] if self._default is not None else []
        if await self._directory_is_there():
            files += self._streams.values()
        refreshed = await asyncio.gather(*(file.refresh() for file in files))
        changed = {id(file) for file, is_new in zip(files, refreshed, strict=True) if is_new}
        for opened in list(self._logs):
            if any(id(file) in changed for file in opened.files):
                self._apply(opened)

    async def _directory_is_there(self) -> bool:
        """Return False, and warn once, where the whole directory is gone: a lost mount takes back no settings."""
        if self._directory is None:
            return False
        there = await asyncio.to_thread(self._directory.is_dir)
        if not there and not self._directory_lost:
            self._counters[REJECTED] += 1
            subject = about(path=str(self._directory))
            _log.warning("the directory %s is gone, what was read in it stays in force", self._directory, extra=subject)
        self._directory_lost = not there
        return there

    def _apply(self, opened: _OpenLog) -> None:
        try:
            settings = opened.settings()
        except SettingsError as error:
            self._counters[REJECTED] += 1
            paths = " and ".join(str(file.path) for file in opened.files)
            _log.warning(
                "log %s: %s cannot be used, its settings stay: %s",
                opened.name,
                paths,
                error,
                extra=about(log=opened.name),
            )
            return
        if opened.live.change(settings):
            self._counters[CHANGED] += 1
            _log.info("log %s: its dynamic settings have changed", opened.name, extra=about(log=opened.name))

    async def _stream_file(self, log: str) -> WatchedFile[_Values] | None:
        if self._directory is None:
            return None
        # A log's name has no relative components, so that this stays within the directory.
        path = self._directory / f"{self._converter(log).stream}.conf"
        if path not in self._streams:
            file = WatchedFile(path, dynamic_values, self._counters, self._read)
            await file.load()
            self._streams.setdefault(path, file)
        return self._streams[path]

    def _forget(self, opened: _OpenLog) -> None:
        self._logs.remove(opened)
        used = {id(file) for one in self._logs for file in one.files}
        self._streams = {path: file for path, file in self._streams.items() if id(file) in used}


class OperatorFiles:
    """Operators' files as they were read last. `load` makes it."""

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
        """Return the settings of a log that is being opened: `base`, and what the files say, now and later."""
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
                _log.exception("the configuration files could not be checked; trying again in %s s", interval_s)
