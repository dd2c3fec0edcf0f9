"""The pages of docs/settings/ and the files of conf/ that have all keys, from the settings themselves.

python -m dlspark.cli.settings_pages

writes all of them where it is run, at the top of the repository. `PAGES` says what is on which page; what a page says
beside its tables is in `settings_texts`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from dlspark.cli import settings_texts as texts
from dlspark.core.dynamic.features import KNOWN_FEATURES
from dlspark.core.settings import settings as logs
from dlspark.core.settings.log_setting import LogSetting
from dlspark.serving.client import settings as thin_client
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.security.settings import SECURITY_CLASSES
from dlspark.serving.write_proxy import settings as write_proxy
from dlspark.spark.options.registry import OPTIONS, Option, scope_words
from metadata.foundation.settings import Setting, defaults_of, markdown_table, properties_entry, settings_of, written
from metadata.security.audit import AuditKeys
from metadata.security.sasl.settings import ClientProofSettings, NodeProofSettings, SaslSettings
from metadata.security.settings import AdmissionSettings, SecuritySettings
from storage_node.settings import client as ledger_client
from storage_node.settings.autorecovery import AutoRecoverySettings
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.files import bookie_conf
from storage_node.settings.http import HttpTlsSettings
from storage_node.settings.placement import PlacementSettings

DIRECTORY: Final = "docs/settings"
OVERVIEW: Final = f"{DIRECTORY}/README.md"

Defaults: TypeAlias = Mapping[str, object]
Column: TypeAlias = tuple[str, Callable[[Setting, Defaults], str]]


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Settings that stand in one table."""

    title: str
    settings: Sequence[Setting]
    note: str = ""
    """The text of the page for all of them."""


@dataclass(frozen=True, slots=True)
class ConfFile:
    """A file of conf/ with the settings of a page: every key with its default."""

    path: str
    head: str
    end: str = ""


def _key(info: Setting, _: Defaults) -> str:
    return " ".join((f"`{info.key}`", *(f"(`{other}`)" for other in info.other_keys)))


def _default(info: Setting, defaults: Defaults) -> str:
    if info.key not in defaults:
        return "has to be given"
    default = defaults[info.key]
    text = "" if default is None else written(default)
    return f"`{text}`" if text else ""


def _meaning(info: Setting, _: Defaults) -> str:
    choices = f": {', '.join(f'`{choice}`' for choice in info.choices)}" if info.choices else ""
    text = f"{info.meaning}{choices}{' (own)' * info.own}"
    return text if text.endswith(".)") else f"{text}."


def _one_log(info: Setting, _: Defaults) -> str:
    return "yes" if isinstance(info, LogSetting) and info.per_log else ""


def _dynamic(info: Setting, _: Defaults) -> str:
    return "yes" if isinstance(info, LogSetting) and info.dynamic else ""


def _option_type(info: Setting, _: Defaults) -> str:
    return info.type_words if isinstance(info, Option) else ""


def _option_default(info: Setting, _: Defaults) -> str:
    if not isinstance(info, Option) or (info.default is None and info.default_words is None):
        return "none"
    return info.default_words or f"`{info.default}`"


def _option_scope(info: Setting, _: Defaults) -> str:
    return scope_words(info.scope) if isinstance(info, Option) else ""


_COLUMNS: Final[tuple[Column, ...]] = (("key", _key), ("default", _default), ("meaning", _meaning))
_LOG_COLUMNS: Final[tuple[Column, ...]] = (
    *_COLUMNS[:2],
    ("one log", _one_log),
    ("dynamic", _dynamic),
    _COLUMNS[2],
)
_OPTION_COLUMNS: Final[tuple[Column, ...]] = (
    ("option", _key),
    ("type", _option_type),
    ("default", _option_default),
    ("scope", _option_scope),
    ("meaning", _meaning),
)


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """One page of docs/settings/."""

    name: str
    whose: str
    given: str
    """How values are given, in a few words; like `whose` it stands in the overview."""
    introduction: str
    groups: tuple[PageGroup, ...]
    defaults: Defaults = field(default_factory=dict)
    columns: tuple[Column, ...] = _COLUMNS
    refused: Mapping[str, str] = field(default_factory=dict)
    """Upstream's keys that would do nothing, and why."""
    refused_head: str = ""
    conf: ConfFile | None = None
    by_hand: str = ""
    """The heading from which on the page is written by hand; it is kept as it stands in the file."""

    @property
    def path(self) -> str:
        """Where it lies in the repository."""
        return f"{DIRECTORY}/{self.name}.md"


def _titled(owners: Sequence[type], notes: Mapping[type, str] | None = None) -> tuple[PageGroup, ...]:
    """Return a group of each class, whose docstring is its title."""
    said = notes or {}
    return tuple(PageGroup(one.__doc__ or "", [*settings_of(one).values()], said.get(one, "")) for one in owners)


def _by_section(*owners: type) -> tuple[PageGroup, ...]:
    """Return the groups of settings that say where one begins."""
    sections: dict[str, list[Setting]] = {}
    for owner in owners:
        for info in settings_of(owner).values():
            if info.section:
                rows = sections.setdefault(info.section, [])
            rows.append(info)
    return tuple(PageGroup(title, infos) for title, infos in sections.items())


_SECURITY_DEFAULTS = {key: value for kind in SECURITY_CLASSES for key, value in defaults_of(kind).items()}


def _features() -> str:
    rows = ((f"`{name}`", f"{effect}.") for name, effect in KNOWN_FEATURES.items())
    return "\n".join(markdown_table(("feature", "effect"), rows))


_DISTRIBUTEDLOG: Final = texts.REFUSED.format(upstream="Apache DistributedLog")

PAGES: Final = (
    SettingsPage(
        "logs",
        "namespaces and logs: whatever opens one, the command line and both proxies included",
        "`DLSPARK_CONF`, `DLSPARK_SET_<key>`, `python -X`, in code, one log's own, dynamic files",
        texts.LOGS.replace("{features}", _features()),
        _titled(tuple(reversed(logs.Settings.__bases__))),
        defaults_of(logs.Settings),
        _LOG_COLUMNS,
        logs.WITHOUT_MEANING,
        _DISTRIBUTEDLOG,
        ConfFile("conf/distributedlog.conf", texts.LOGS_CONF, texts.LOGS_CONF_END),
    ),
    SettingsPage(
        "ledger-client",
        "the ledger client of a namespace",
        "as those of namespaces, with the prefix `bkc.`",
        texts.LEDGER_CLIENT,
        (
            PageGroup("Requests and ledgers", [*settings_of(ledger_client.ClientSettings).values()]),
            PageGroup("Placement", [*settings_of(PlacementSettings).values()]),
            PageGroup("Security", [*settings_of(SecuritySettings).values()]),
            PageGroup(
                "Authentication by SASL",
                [*settings_of(ClientProofSettings).values(), *settings_of(SaslSettings).values()],
            ),
        ),
        defaults_of(ledger_client.ClientSettings)
        | defaults_of(PlacementSettings)
        | defaults_of(SecuritySettings)
        | defaults_of(ClientProofSettings)
        | defaults_of(SaslSettings),
        refused=dict(sorted(ledger_client.WITHOUT_MEANING.items())),
        refused_head=texts.REFUSED.format(upstream="Apache BookKeeper"),
    ),
    SettingsPage(
        "storage-node",
        "a storage node, and auto-recovery",
        "the file of `dlspark bookie --conf FILE`, `dlspark autorecovery --conf FILE`",
        texts.STORAGE_NODE,
        _by_section(
            BookieSettings,
            HttpTlsSettings,
            SecuritySettings,
            AdmissionSettings,
            SaslSettings,
            NodeProofSettings,
            ClientProofSettings,
            AuditKeys,
            AutoRecoverySettings,
        ),
        defaults_of(BookieSettings)
        | defaults_of(HttpTlsSettings)
        | defaults_of(SecuritySettings)
        | defaults_of(AdmissionSettings)
        | defaults_of(SaslSettings)
        | defaults_of(NodeProofSettings)
        | defaults_of(ClientProofSettings)
        | defaults_of(AuditKeys)
        | defaults_of(AutoRecoverySettings),
    ),
    SettingsPage(
        "write-proxy",
        "a write proxy",
        "its `--conf FILE`, `DLSPARK_SET_<key>`, `--set`",
        texts.WRITE_PROXY,
        (
            *_titled(write_proxy.GROUPS, {write_proxy.StreamLimitKeys: texts.STREAM_LIMITS}),
            *_by_section(*SECURITY_CLASSES),
        ),
        defaults_of(write_proxy.WriteProxySettings) | _SECURITY_DEFAULTS,
        refused=write_proxy.WITHOUT_MEANING,
        refused_head=texts.WRITE_PROXY_REFUSED,
        conf=ConfFile("conf/write_proxy.conf", texts.WRITE_PROXY_CONF),
    ),
    SettingsPage(
        "read-proxy",
        "a read proxy",
        "its `--conf FILE`, `--set`",
        texts.READ_PROXY,
        _by_section(ReadProxySettings, *SECURITY_CLASSES),
        defaults_of(ReadProxySettings) | _SECURITY_DEFAULTS,
    ),
    SettingsPage(
        "thin-client",
        "a client of the proxies, which needs no ZooKeeper",
        "a mapping, or a properties file",
        texts.THIN_CLIENT,
        _by_section(thin_client.ThinClientSettings, SecuritySettings),
        defaults_of(thin_client.ThinClientSettings) | defaults_of(SecuritySettings),
        refused=thin_client.WITHOUT_MEANING,
        refused_head=_DISTRIBUTEDLOG,
    ),
    SettingsPage(
        "spark",
        "one query of the Spark connector",
        "its `option`s, else the session's confs `spark.distributedlog.<option>`",
        texts.SPARK,
        (PageGroup("Every option", OPTIONS),),
        columns=_OPTION_COLUMNS,
        by_hand="## How options work together",
    ),
)


def made(root: Path) -> dict[str, str]:
    """Return all files by their path in the repository, whose top is `root`; what is written by hand comes from
    there.
    """
    files = {OVERVIEW: overview(), "conf/bookie.conf": bookie_conf()}
    for page in PAGES:
        files[page.path] = page_text(page) + (_kept(root / page.path, page.by_hand) if page.by_hand else "")
        if page.conf is not None:
            files[page.conf.path] = conf_text(page, page.conf)
    return files


def overview() -> str:
    """Return the page that leads to the others."""
    rows = ((f"[{page.name}.md]({page.name}.md)", page.whose, page.given) for page in PAGES)
    table = "\n".join(markdown_table(("page", "settings of", "given by"), rows))
    return texts.OVERVIEW.replace("{pages}", table)


def page_text(page: SettingsPage) -> str:
    """Return a page, without what is written by hand."""
    return "\n".join((page.introduction.replace("{generated}", texts.GENERATED), *_tables(page), ""))


def _tables(page: SettingsPage) -> Iterator[str]:
    head = [title for title, _ in page.columns]
    for group in page.groups:
        yield f"## {group.title}\n"
        if group.note:
            yield f"{group.note}\n"
        yield from markdown_table(
            head, ([cell(info, page.defaults) for _, cell in page.columns] for info in group.settings)
        )
        if group is not page.groups[-1] or page.refused:
            yield ""
    if page.refused:
        yield page.refused_head
        yield from markdown_table(("key", "reason"), ((f"`{key}`", why) for key, why in page.refused.items()))


def _kept(path: Path, heading: str) -> str:
    _, found, rest = path.read_text(encoding="utf-8").partition(f"\n{heading}\n")
    if not found:
        raise SystemExit(f"{path} has no heading {heading!r}, below which it is written by hand")
    return found + rest


def conf_text(page: SettingsPage, conf: ConfFile) -> str:
    """Return the properties file with the settings of a page."""
    return "\n".join((conf.head, *_conf_groups(page), *([conf.end] if conf.end else [])))


def _conf_groups(page: SettingsPage) -> Iterator[str]:
    for group in page.groups:
        yield f"# ---- {group.title} ----\n"
        for info in group.settings:
            yield properties_entry(f"{info.meaning}.{_marks(info)}", info.key, page.defaults[info.key])


def _marks(info: Setting) -> str:
    own = " (own)" * info.own
    if not isinstance(info, LogSetting):
        return own
    return " (namespace)" * (not info.per_log) + " (dynamic)" * info.dynamic + own


def main() -> None:
    """Write all files."""
    argparse.ArgumentParser(
        prog="python -m dlspark.cli.settings_pages",
        description=f"Write {DIRECTORY}/ and conf/ from the settings. To be run at the top of the repository.",
    ).parse_args()
    root = Path()
    for path, text in made(root).items():
        (root / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
