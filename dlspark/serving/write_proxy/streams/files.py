"""The limits of single streams, from the operators' files of dynamic settings.

    <streamConfigDirectory>/<stream>.conf     for the logs of one stream (`streamConfigRouterClass` says which)
    <streamConfigDefaultPath>                 for all logs; a key in their stream's file wins

They are the files that the log library reads for its own keys (docs/settings/logs.md). Here the four limits of writes
are taken from them; all other keys are the library's to judge. The directory is looked at as a whole, so what is held
is bounded by the operators' files and not by names that clients send.

Fault model: as `WatchedFile`: a file that cannot be used is reported, and what it said before stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from dlspark.core.dynamic.watched_file import REJECTED, ReadFile, WatchedFile, read_in_thread
from dlspark.core.settings.operations import StreamConverter, stream_converter
from dlspark.core.settings.settings import PROXY_STREAM_KEYS, Settings
from dlspark.errors import SettingsError
from dlspark.serving.write_proxy.settings import WriteProxySettings
from metadata.foundation.properties import local_path
from metadata.foundation.settings import Value
from metadata.foundation.tasks import end_tasks

_LOG: Final = logging.getLogger(__name__)

SUFFIX: Final = ".conf"
MAX_FILES: Final = 100_000
"""Files of a directory that are read, in order of their names; more are left out with a warning."""
_Values: TypeAlias = dict[str, Value]


class StreamFiles:
    """Which limits has a stream, by what the operators' files say now?

    Args:
        settings: the proxy's, which the files' limits go over.
        logs: the log library's settings, which name the files.
        counters: count the files that could not be used.
        on_change: called after each look that found other limits.
        read: reads a file; in a thread, unless given.
    """

    def __init__(
        self,
        settings: WriteProxySettings,
        logs: Settings,
        counters: Counter[str],
        on_change: Callable[[], None],
        read: ReadFile = read_in_thread,
    ) -> None:
        directory, default = logs.stream_config_directory, logs.stream_config_default
        self._settings = settings
        self._directory = local_path(directory, SettingsError) if directory else None
        self._counters = counters
        self._read = read
        self._default = self._watched(local_path(default, SettingsError)) if default else None
        self._converter: StreamConverter = stream_converter(logs.stream_config_router, "streamConfigRouterClass")
        self._on_change = on_change
        self._streams: dict[str, WatchedFile[_Values]] = {}
        self._made: dict[str, WriteProxySettings] = {}
        """By group of streams; the empty name is that of all streams without a file of their own."""
        self._task: asyncio.Task[None] | None = None

    def settings_of(self, stream: str) -> WriteProxySettings:
        """Return the proxy's settings with this stream's limits."""
        if not self._made:
            return self._settings
        return self._made.get(self._converter(stream).stream) or self._made[""]

    async def load(self) -> None:
        """Look for the first time. Raises SettingsError for a default file that cannot be used.

        A stream's own file that cannot be used is reported, and has no effect until it can.
        """
        if self._default is not None:
            await self._default.load()
            self._settings.for_stream(self._default.meaning or {})
        await self._look_at_directory()
        self._make()

    def start(self, interval_s: float) -> None:
        """Look again every `interval_s` seconds, until `close`, where any files are named."""
        if self._default is not None or self._directory is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(interval_s))

    async def reload(self) -> None:
        """Look now. What cannot be used is reported, and changes nothing."""
        before = self._made
        if self._default is not None:
            await self._default.refresh()
        await self._look_at_directory()
        self._make()
        if self._made != before:
            self._on_change()

    async def close(self) -> None:
        """End the task. Idempotent."""
        if self._task is not None:
            await end_tasks([self._task], drop_errors=True)

    async def _run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.reload()
            except Exception:  # One bad look must not end the task: the next one may find the file repaired.
                _LOG.exception("the files of streams could not be looked at; trying again in %g s", interval_s)

    def _watched(self, path: Path) -> WatchedFile[_Values]:
        return WatchedFile(path, self._understood, self._counters, self._read)

    def _understood(self, written: Mapping[str, str]) -> _Values:
        values: _Values = {key: value for key, value in written.items() if key in PROXY_STREAM_KEYS}
        self._settings.for_stream(values)
        return values

    async def _look_at_directory(self) -> None:
        """Read all files of the directory. One that is gone takes back nothing: a lost mount looks like that."""
        directory = self._directory
        if directory is None:
            return
        try:
            names = await asyncio.to_thread(_stream_names, directory)
        except OSError as error:
            self._counters[REJECTED] += 1
            _LOG.warning("%s cannot be read, what was read in it stays in force: %s", directory, error)
            return
        for file in list(self._streams.values()):
            await file.refresh()
        if len(names) > MAX_FILES:
            _LOG.warning("%s has %d files: those after the first %d are left out", directory, len(names), MAX_FILES)
        for name in names[:MAX_FILES]:
            if name not in self._streams:
                await self._add(name, self._watched(directory / f"{name}{SUFFIX}"))
        # A file that is gone keeps what it said last; one that never said anything is forgotten.
        for name in self._streams.keys() - set(names):
            if self._streams[name].meaning is None:
                del self._streams[name]

    async def _add(self, name: str, file: WatchedFile[_Values]) -> None:
        try:
            await file.load()
        except SettingsError as error:
            self._counters[REJECTED] += 1
            _LOG.warning("the limits of %s are not in force: %s", name, error)
        self._streams[name] = file

    def _make(self) -> None:
        base: _Values = (self._default.meaning if self._default is not None else None) or {}
        made = {"": self._settings.for_stream(base)}
        for name, file in self._streams.items():
            if file.meaning:
                made[name] = self._settings.for_stream(base | file.meaning)
        self._made = made


def _stream_names(directory: Path) -> list[str]:
    """Return the names of all streams with a file. Raises OSError where there is no directory."""
    next(directory.iterdir(), None)  # `rglob` finds nothing where there is none, as if all files had been taken away
    return sorted(
        str(path.relative_to(directory))[: -len(SUFFIX)] for path in directory.rglob(f"*{SUFFIX}") if path.is_file()
    )
