"""`dlspark regions move`: a log's home, the region whose proxy owns it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dlspark.cli.common import At, over_namespace
from dlspark.cli.proxies import write_tier


@over_namespace
async def move(
    at: At,
    log: Annotated[str, typer.Argument(help="The log.")],
    region: Annotated[str, typer.Argument(help="The region, as its proxies announce it (dlspark proxy list).")],
) -> None:
    """Hand a log over to a write proxy of a region: its owner ends its segment, and one of that region goes on. Clients
    see no error. A log that nobody owns is opened there; one that is there already stays."""
    from dlspark.serving.write_proxy.tier.homes import move_home
    from metadata.distributedlog.log_names import LogNotFoundError

    async with write_tier(at) as (namespace, peers, members):
        # A heartbeat would make it, by a name that was mistyped.
        if not await namespace.log_exists(log):
            raise LogNotFoundError("no such log in this namespace", log=log, advice="dlspark log list shows all names")
        began = time.monotonic()
        done = await move_home(peers, members, log, region)
        took_ms = round((time.monotonic() - began) * 1000)
    how = f"in {took_ms} ms, by {done.round_trips} requests to proxies in turn"
    if not done.moved:
        text = f"{log} is at home in {region} already: {done.target} owns it"
    elif done.source is None:
        text = f"{log}, which nobody owned, was opened by {done.target} in {region} {how}"
    else:
        text = f"{log} was handed over from {done.source} to {done.target} in {region} {how}"
    at.result(
        {
            "log": log,
            "region": region,
            "from": done.source,
            "to": done.target,
            "moved": done.moved,
            "round_trips": done.round_trips,
            "took_ms": took_ms,
        },
        text,
    )
