"""Where a write proxy's settings come from: a file, environment variables, options; split between it and its logs.

Upstream has the keys of a proxy and those of the log library in one properties file. So it is here: a key that the
proxy knows, or refuses with a reason of its own, is the proxy's, every other one is the log library's, with its errors.
Later ones go over earlier ones: the defaults, `DLSPARK_CONF` or the file that is given in its place, the variables
`DLSPARK_SET_<key>`, what is given by option.

A file may be upstream's: keys of upstream's that would do nothing here are left out of it with a warning, which names
the line and the reason. The same by variable or option is an error, for whoever writes it writes it for this proxy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dlspark.core.settings.settings import FILE_VARIABLE, VARIABLE_PREFIX, Settings
from dlspark.core.settings.settings import REGISTRY as LOG_REGISTRY
from dlspark.errors import SettingsError
from dlspark.serving.write_proxy.settings import REGISTRY, WITHOUT_MEANING, WriteProxySettings
from metadata.foundation.properties import lines_of, local_path, read_if_exists, read_properties
from metadata.foundation.settings import Value

_LOG: Final = logging.getLogger(__name__)

_OWN_PREFIX: Final = "server_"
_LOCK_TIMEOUT: Final = "lockTimeoutSeconds"
_Split: TypeAlias = tuple[dict[str, Value], dict[str, Value]]


@dataclass(frozen=True, slots=True)
class ProxyConfiguration:
    """What a proxy and the logs that it writes are set to."""

    proxy: WriteProxySettings
    logs: Settings


def is_of_proxy(key: str) -> bool:
    """Return whether a key is a write proxy's, known or not; else it is the log library's."""
    return key in REGISTRY or key in WITHOUT_MEANING or key.startswith(_OWN_PREFIX)


def read_configuration(
    conf: str | os.PathLike[str] | None = None,
    given: Mapping[str, Value] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ProxyConfiguration:
    """Return the configuration from a file, the environment (the process's, unless given) and what is given by option.

    `lockTimeoutSeconds` is 0 whatever a file says: a client that comes to the wrong proxy is sent on at once.

    Raises SettingsError for a file that cannot be read, and for a key or value that cannot be honoured.
    """
    environment = os.environ if environment is None else environment
    file = conf if conf is not None else environment.get(FILE_VARIABLE)
    from_file: Mapping[str, Value] = {}
    if file:
        from_file = read_properties(file, SettingsError, named_by=f"--conf, or environment variable {FILE_VARIABLE}")
        from_file = _with_meaning(from_file, local_path(file, SettingsError))
    proxy, logs = _split(from_file)
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX) and is_of_proxy(name[len(VARIABLE_PREFIX) :])
    }
    proxy |= {name[len(VARIABLE_PREFIX) :]: value for name, value in variables.items()}
    others = {name: value for name, value in environment.items() if name not in variables and name != FILE_VARIABLE}
    by_option = _split(given or {})
    settings = Settings.from_environment(others, Settings.from_mapping(logs)).with_values(by_option[1])
    return ProxyConfiguration(
        WriteProxySettings.from_mapping(proxy | by_option[0]), settings.with_values({_LOCK_TIMEOUT: 0})
    )


def _with_meaning(values: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return what a file says, without keys of upstream's that do nothing here: each is warned of, with its line."""
    reasons = {
        key: reason
        for key in values
        if (reason := (REGISTRY if is_of_proxy(key) else LOG_REGISTRY).reason_against(key)) is not None
    }
    lines = lines_of(read_if_exists(path) or b"") if reasons else {}
    for key, reason in reasons.items():
        where = f"{path}, line {lines[key]}" if key in lines else str(path)
        _LOG.warning("%s: the setting %s has no effect here and is ignored: %s", where, key, reason)
    return {key: value for key, value in values.items() if key not in reasons}


def _split(values: Mapping[str, Value]) -> _Split:
    proxy = {key: value for key, value in values.items() if is_of_proxy(key)}
    return proxy, {key: value for key, value in values.items() if key not in proxy}


def with_stream_files(configuration: ProxyConfiguration, directory: Path) -> ProxyConfiguration:
    """Return the same, with the streams' dynamic settings in `directory` (`streamConfigDirectory`)."""
    logs = configuration.logs.with_values({"streamConfigDirectory": str(directory)})
    return ProxyConfiguration(configuration.proxy, logs)
