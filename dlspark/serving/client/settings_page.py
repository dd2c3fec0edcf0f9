"""The settings of the thin client as a page for people.

python -m dlspark.serving.client.settings_page > docs/thin-client-settings.md
"""

from __future__ import annotations

from collections.abc import Iterator

from dlspark.serving.client.settings import WITHOUT_MEANING, ThinClientSettings
from metadata.foundation.settings import defaults_of, markdown_table, settings_of, written

_INTRODUCTION = """\
# Settings of the thin client

Keys are those of the builder of Apache DistributedLog's proxy client, unless marked as own. A key that is not listed, a
value that cannot be read, and values that contradict each other are errors; a misspelt key's error names the nearest
one. They are given as a mapping, `ThinClientSettings.from_mapping({"requestTimeoutMs": 5000})`, or as a properties
file, `ThinClientSettings.from_properties(path)`. What they do to a request: [serving/client.md](serving/client.md).

This page is generated from the registry: `python -m dlspark.serving.client.settings_page`.
"""
_REFUSED = """\
## Keys of Apache DistributedLog that are refused

They would change nothing here, so that setting one is an error that gives the reason.
"""


def settings_page() -> str:
    """The whole page docs/thin-client-settings.md."""
    refused = markdown_table(("key", "reason"), ((f"`{key}`", f"{why}.") for key, why in WITHOUT_MEANING.items()))
    return "\n".join((_INTRODUCTION, *_sections(), _REFUSED, *refused, ""))


def _sections() -> Iterator[str]:
    sections: dict[str, list[tuple[str, str, str]]] = {}
    defaults = defaults_of(ThinClientSettings)
    for info in settings_of(ThinClientSettings).values():
        if info.section:
            rows = sections.setdefault(info.section, [])
        default = written(defaults[info.key])
        choices = f": {', '.join(f'`{choice}`' for choice in info.choices)}" if info.choices else ""
        meaning = info.meaning + choices
        end = "" if meaning.endswith(")") else "."
        rows.append((f"`{info.key}`", f"`{default}`" if default else "", f"{meaning}{end}{' (own)' * info.own}"))
    for title, rows in sections.items():
        yield f"## {title}\n"
        yield from markdown_table(("key", "default", "meaning"), rows)
        yield ""


if __name__ == "__main__":
    print(settings_page(), end="")
