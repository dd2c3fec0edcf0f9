"""Connecting to a query's namespace from the driver's side, with an error that names the option to correct."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dlspark.core.namespace import AsyncNamespace
from metadata.foundation.errors import MetadataUnavailableError

Connect: TypeAlias = Callable[[str], Awaitable[AsyncNamespace]]


async def open_namespace(uri: str, connect: Connect = AsyncNamespace.open) -> AsyncNamespace:
    """Connect. Raises MetadataUnavailableError, or CallerError for a namespace that does not exist."""
    try:
        return await connect(uri)
    except MetadataUnavailableError as error:
        raise MetadataUnavailableError(
            f"ZooKeeper of {uri} cannot be reached: {error.message}; nothing was read",
            advice="Start it (`dlspark sandbox status` tells of a sandbox), or correct the option uri",
        ) from error
