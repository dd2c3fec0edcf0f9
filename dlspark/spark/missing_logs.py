"""The error for a log that a query names and that does not exist: it says what may have been meant.

It is looked for only then, and with two requests: what is in the folder that the name has, and what lies beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlspark.core.namespace import AsyncNamespace
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.settings import did_you_mean


async def missing_log_error(namespace: AsyncNamespace, missing: Sequence[str]) -> LogNotFoundError:
    """Return the error for logs that a query names, of which these are missing; its advice is about the first of
    them."""
    name = missing[0]
    what = f"No such log: {', '.join(missing)}; nothing was read"
    inside = sorted(await namespace.logs_store.list(name))
    if inside:
        return LogNotFoundError(
            f"{what}. {name} is a folder, in which there are logs",
            advice=f"Name one ({name}/{inside[0]}), or those in the folder by subscribePattern ({name}/.*)",
            log=name,
        )
    near = await near_log(namespace, name)
    several = "Several logs are named by option subscribe. " if "," in name else ""
    return LogNotFoundError(
        what,
        advice=f"{near}{several}Create it (`dlspark log create {name}`), correct the name, or read by subscribePattern",
        log=name,
    )


async def near_log(namespace: AsyncNamespace, name: str) -> str:
    """Return how advice begins for a log that is not there: with one of nearly that name in its folder; empty without
    one."""
    folder = name.rpartition("/")[0]
    beside = await namespace.logs_store.list(folder)
    return did_you_mean(name, [f"{folder}/{one}" if folder else one for one in beside])
