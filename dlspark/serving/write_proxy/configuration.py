"""Where a write proxy's settings come from: a file, environment variables, options; split between it and its logs.

Upstream has the keys of a proxy and those of the log library in one properties file. So it is here: a key that the
proxy knows, or refuses with a reason of its own, is the proxy's, every other one is the log library's, with its errors.
Later ones go over earlier ones: the defaults, `DLSPARK_CONF` or the file that is given in its place, the variables
`DLSPARK_SET_<key>`, what is given by option.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dlspark.core.settings.settings import FILE_VARIABLE, VARIABLE_PREFIX, Settings
from dlspark.errors import SettingsError
from dlspark.serving.write_proxy.settings import REGISTRY, WITHOUT_MEANING, WriteProxySettings
from metadata.foundation.properties import read_properties
from metadata.foundation.settings import Value

_OWN_PREFIX: Final = "server_"
_LOCK_TIMEOUT: Final = "lockTimeoutSeconds"
_Split: TypeAlias = tuple[dict[str, Value], dict[str, Value]]


@dataclass(frozen=True, slots=True)
class ProxyConfiguration:
    """What a proxy and the logs that it writes are set to."""

    proxy: WriteProxySettings
    logs: Settings


def is_of_proxy(key: str) -> bool:
    """Whether a key is a write proxy's, known or not; else it is the log library's."""
    return key in REGISTRY or key in WITHOUT_MEANING or key.startswith(_OWN_PREFIX)


def read_configuration(
    conf: str | os.PathLike[str] | None = None,
    given: Mapping[str, Value] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ProxyConfiguration:
    """The configuration from a file, the environment (the process's, unless given) and what is given by option.

    `lockTimeoutSeconds` is 0 whatever a file says: a client that comes to the wrong proxy is sent on at once.

    Raises SettingsError for a file that cannot be read, and for a key or value that cannot be honoured.
    """
    environment = os.environ if environment is None else environment
    file = conf if conf is not None else environment.get(FILE_VARIABLE)
    from_file: Mapping[str, Value] = {}
    if file:
        from_file = read_properties(file, SettingsError, named_by=f"--conf, or environment variable {FILE_VARIABLE}")
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


def _split(values: Mapping[str, Value]) -> _Split:
    proxy = {key: value for key, value in values.items() if is_of_proxy(key)}
    return proxy, {key: value for key, value in values.items() if key not in proxy}


def with_stream_files(configuration: ProxyConfiguration, directory: Path) -> ProxyConfiguration:
    """The same, with the streams' dynamic settings in `directory` (`streamConfigDirectory`)."""
    logs = configuration.logs.with_values({"streamConfigDirectory": str(directory)})
    return ProxyConfiguration(configuration.proxy, logs)
