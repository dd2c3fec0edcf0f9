"""Options that go on to the namespace's clients: `bkc.<key>` and `distributedlog.<key>` (docs/settings.md).

Spark hands options over in lower case, so the keys are found again in the registries of settings. Only the driver's
side needs this; tasks get what follows for them with their partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dlspark.core.settings.settings import CLIENT_PREFIX, REGISTRY
from metadata.foundation.settings import Value
from storage_node.settings.client import REGISTRY as CLIENT_REGISTRY


def namespace_settings(passed_on: Mapping[str, str]) -> dict[str, Value]:
    """Settings by their proper keys. An unknown key stays as it is: the settings refuse it by name."""
    if not passed_on:
        return {}
    proper = {key.lower(): key for key in _keys()}
    return {proper.get(key, key): value for key, value in passed_on.items()}


def _keys() -> Iterator[str]:
    yield from REGISTRY
    for key in CLIENT_REGISTRY:
        yield CLIENT_PREFIX + key
