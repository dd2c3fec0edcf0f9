"""docs/client-settings.md, from the registries of the ledger client's settings.

python -m storage_node.settings.pages > docs/client-settings.md
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields

from storage_node.settings import placement as placement_settings
from storage_node.settings.client import describe_client_settings
from storage_node.settings.placement import PlacementSettings
from storage_node.settings.refused_keys import WITHOUT_MEANING

INTRODUCTION = """# Settings of the ledger client

Keys are BookKeeper's where nothing else is said. In a namespace's settings (conf/distributedlog.conf, `DLSPARK_CONF`,
or a mapping in code) they carry the prefix `bkc.`, e.g. `bkc.delayEnsembleChange=true`; as an environment variable
`DLSPARK_SET_bkc_delayEnsembleChange=true`. They override what follows from DistributedLog's own settings, as
`bkcWriteTimeoutSeconds`, and hold for a whole namespace. A key that is not listed, or a value that cannot be read, is
an error. In Python: `ClientSettings.from_mapping({"delayEnsembleChange": True})`.

This page is generated from the registry: `python -m storage_node.settings.pages`."""


def settings_table() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, "", *_client(), "", *_placement(), "", *_refused(), ""])


def _client() -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for info, default in describe_client_settings():
        own = " (not one of BookKeeper's keys)" if info.own else ""
        also = f" Also `{'`, `'.join(info.aliases)}`." if info.aliases else ""
        yield f"| `{info.key}` | `{_text(default)}` | {info.meaning}{own}.{also} |"
    yield ""
    yield "`readTimeout` sets `addEntryTimeoutSec` and `readEntryTimeoutSec` where these are not given, and"
    yield "`speculativeReadTimeout` is an older name of `firstSpeculativeReadTimeout`."


def _placement() -> Iterator[str]:
    meanings = _documented_fields()
    yield "## Placement"
    yield ""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for item in fields(PlacementSettings):
        default: object = item.default
        key = item.metadata["key"]
        yield f"| `{key}` | `{_text(default)}` | {meanings.get(item.name, 'What its name says.')} |"


def _refused() -> Iterator[str]:
    yield "## Keys without meaning here"
    yield ""
    yield "They are refused, so that nobody believes they did something."
    yield ""
    yield "| key | why |"
    yield "|---|---|"
    for key, why in sorted(WITHOUT_MEANING.items()):
        yield f"| `{key}` | {why} |"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or " "


def _documented_fields() -> dict[str, str]:
    """The docstrings beside the placement's fields."""
    tree = ast.parse(inspect.getsource(placement_settings))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == PlacementSettings.__name__:
            for field, text in zip(node.body, node.body[1:], strict=False):
                documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                if documented and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    print(settings_table(), end="")
