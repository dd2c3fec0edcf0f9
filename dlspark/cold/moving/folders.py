"""Where a log's files may lie: its folders at the stores, by its settings and by what its marks say.

    {root}/{namespace id}/{log id}/...      also below the root of each mirror that the log names, and there
                                            the folders of copies of files that it adopted

A folder is the log's alone. Settings that name another root leave what is in the former one there, so both are looked
at as long as a mark names the former one. A borrowed file lies in another log's folder, which is none of this log's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dlspark.core.settings.settings import Settings
from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.cold_units import ColdAttempt, ColdLog, ColdUnit


@dataclass(frozen=True, slots=True)
class ColdFolder:
    """Which folder of a store, and how is that reached? `url` ends with a slash. `mirror`: of copies alone."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    mirror: bool = False

    @property
    def root(self) -> str:
        """The address below which all logs have their folders: what settings name. It is what a store is opened by:
        a log's own folder comes and goes, but where the root is missing its file system is not mounted, and that must
        not look like a folder without files."""
        return self.url.rstrip("/").rsplit("/", 2)[0]


def folders_of(
    cold: ColdLog, settings: Settings, units: Iterable[ColdUnit], attempts: Iterable[ColdAttempt]
) -> list[ColdFolder]:
    """Return a log's folders, each once."""
    own = f"/{cold.namespace_id}/{cold.log_id}/"
    found: dict[str, ColdFolder] = {}
    if settings.cold_root:
        url = settings.cold_root + own
        found[url] = ColdFolder(url, settings.cold_options)
    places: list[ColdFile | ColdAttempt] = [*files_of(units), *attempts]
    for place in places:
        url = f"{place.url.rpartition('/')[0]}/"
        if url.endswith(own) and url not in found:
            found[url] = ColdFolder(url, place.options)
    return list(found.values())


def mirror_folders_of(cold: ColdLog, folders: Sequence[ColdFolder], units: Sequence[ColdUnit]) -> list[ColdFolder]:
    """Return the folders of a log's copies in its mirrors: those that are none of its own `folders`, as they are where
    a mirror has become the place for files."""
    own = f"{cold.namespace_id}/{cold.log_id}"
    return [
        ColdFolder(url, one.options, mirror=True)
        for one in cold.mirrors
        for url in one.folders(own, files_of(units))
        if not any(url == folder.url and one.same_place(folder.root, folder.options) for folder in folders)
    ]


def files_of(units: Iterable[ColdUnit]) -> list[ColdFile]:
    """Return all files that units name and that are the log's own, replaced ones included."""
    files = [file for unit in units for file in (*([unit.file] if unit.file else []), *unit.replaced)]
    return [file for file in files if not file.borrowed]
