"""The settings of a write proxy as files for people.

python -m dlspark.serving.write_proxy.settings_pages > conf/write_proxy.conf
python -m dlspark.serving.write_proxy.settings_pages --table > docs/proxy-settings.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from dlspark.serving.write_proxy.settings import GROUPS, WITHOUT_MEANING, StreamLimitKeys, WriteProxySettings
from metadata.foundation.settings import (
    Setting,
    defaults_of,
    markdown_table,
    properties_entry,
    settings_of,
    written,
)

_DEFAULTS: Final = defaults_of(WriteProxySettings)

_INTRODUCTION: Final = """\
# Settings of a write proxy

Keys are Apache DistributedLog's, unless marked as own. A key that is not listed, and a value that cannot be read, are
errors; a misspelt key's error names the nearest one. conf/write_proxy.conf has every setting with its default. How logs
are written (ledgers, segments, locks) is the log library's to say: [settings.md](settings.md).

This page is generated from the registry: `python -m dlspark.serving.write_proxy.settings_pages --table`.

All limits are off unless they are set. Above a soft limit requests are only counted; above a hard one they are refused
with status 517. `bps` stands for bytes a second, `rps` for requests a second. The feature `service_rate_limit_disabled`
switches all of them off while it is on, `service_global_limiter_disabled` those of the whole proxy;
`service_checksum_disabled` has checksums believed, and `region_stop_accept_new_stream` has no other stream taken.
"""
_CONF_HEAD: Final = """\
# Settings of a write proxy, with their defaults. Keys are Apache DistributedLog's, unless marked (own).
# docs/proxy-settings.md says more, and lists Apache DistributedLog's keys that are ignored.
"""


def configuration_file() -> str:
    """The whole text of conf/write_proxy.conf."""
    return "\n".join((_CONF_HEAD, *_conf_groups()))


def _conf_groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"# ---- {group.__doc__} ----\n"
        for info in settings_of(group).values():
            yield properties_entry(f"{info.meaning}.{' (own)' * info.own}", info.key, _DEFAULTS[info.key])


def settings_page() -> str:
    """The whole page docs/proxy-settings.md."""
    return "\n".join((_INTRODUCTION, *_groups(), *_refused(), ""))


def _groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"## {group.__doc__}\n"
        if group is StreamLimitKeys:
            yield "A stream's own file of dynamic settings may set these; they change while it is served.\n"
        yield from markdown_table(("key", "default", "meaning"), map(_row, settings_of(group).values()))
        yield ""


def _row(info: Setting) -> tuple[str, ...]:
    default = written(_DEFAULTS[info.key])
    return f"`{info.key}`", f"`{default}`" if default else "", f"{info.meaning}{' (own)' * info.own}."


def _refused() -> Iterator[str]:
    yield "## Keys of Apache DistributedLog that do nothing here\n"
    yield "In a file they are ignored, with a warning that names the line and the reason, so that a proxy starts with a"
    yield "file of Apache DistributedLog's. The same holds there for the log library's keys that do nothing. By option,"
    yield "or by environment variable, setting one is an error that gives the reason.\n"
    yield from markdown_table(("key", "reason"), ((f"`{key}`", why) for key, why in WITHOUT_MEANING.items()))


def main() -> None:
    """Print one of the two files."""
    parser = argparse.ArgumentParser(
        prog="python -m dlspark.serving.write_proxy.settings_pages", description="Print a write proxy's settings."
    )
    parser.add_argument("--table", action="store_true", help="as the page docs/proxy-settings.md")
    print(settings_page() if parser.parse_args().table else configuration_file(), end="")


if __name__ == "__main__":
    main()
