"""What a store has to do for a Delta table: make the file of a version only where there is none yet.

A folder does it by itself; S3 is asked for it by a condition (`If-None-Match`), which deltalake puts on each commit. A
server that does not know the condition takes two commits at one version: the later one replaces the former, whose files
the table then lacks, though its sync was told that they are there. So the place of a new table is tried first, by an
object of its own, and refused where it does not keep to the condition. What is not found so is a server that keeps to
it only while nobody else asks; Amazon's, SeaweedFS and moto do it at any time.

Requests to a server are repeated by deltalake as it thinks fit. A repetition that finds its own first try done is
answered as somebody else's commit would be: whoever commits to a server cannot tell the two apart.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Final

from dlspark.cold.lake.targets import TableUnreachableError
from dlspark.objects.errors import ObjectExistsError, ObjectStoreError
from dlspark.objects.s3_changes import S3Changes
from dlspark.objects.s3_options import S3Options
from metadata.foundation.errors import CallerError

_S3: Final = ("s3://", "s3a://")
_CONDITION: Final = ("aws_conditional_put", "conditional_put")
_BY_ETAG: Final = "etag"


def is_served(address: str) -> bool:
    """Return whether a table's folder is in a store that is asked through a network."""
    return "://" in address and not address.startswith("file:")


def delta_options(address: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return what deltalake is to be told of a table's store: commits are conditional, whatever the environment says
    (`AWS_CONDITIONAL_PUT`). Raises CallerError where the declaration says otherwise."""
    told = dict(options)
    if not address.startswith(_S3):
        return told
    for key, value in options.items():
        if key.lower() in _CONDITION and value.lower() != _BY_ETAG:
            raise CallerError(
                f"The Delta table at {address} is declared with {key}={value}, and its commits would replace each "
                "other; nothing was done",
                advice=f"Drop the declaration, and declare the table without this option, or with {key}={_BY_ETAG}",
            )
    if not any(key.lower() in _CONDITION for key in options):
        told[_CONDITION[0]] = _BY_ETAG
    return told


def try_store(address: str, options: Mapping[str, str]) -> None:
    """Return if a new table may be made at an address. Blocks.

    Raises CallerError where its store makes an object twice, TableUnreachableError, MissingExtraError. No table was
    made then; an object of some bytes may be left below the address where it could not be deleted.
    """
    if not address.startswith(_S3):
        return
    bucket, _, folder = address.partition("://")[2].partition("/")
    name = "/".join([*filter(None, folder.split("/")), f"tried-by-dlspark-{uuid.uuid4().hex}"])
    try:
        keeps = asyncio.run(_makes_once(bucket, name, S3Options.parse(_places(options))))
    except ObjectStoreError as error:
        raise TableUnreachableError(
            f"The store of a Delta table at {address} could not be tried: {error}; no table was made",
            advice=error.advice or "Look whether it can be reached from here; then create the table again",
        ) from error
    if not keeps:
        raise CallerError(
            f"The store at {address} makes an object twice that is to be made only where there is none: two syncs at a "
            "time would lose each other's commits. No Delta table was made",
            advice="Take an Iceberg table, whose catalog decides; or a store that knows If-None-Match",
        )


async def _makes_once(bucket: str, name: str, options: S3Options) -> bool:
    changes = S3Changes(bucket, options)
    url = f"s3://{bucket}/{name}"
    try:
        await changes.put(name, url, b"tried")
        try:
            await changes.put(name, url, b"again")
        except ObjectExistsError:
            return True
        return False
    finally:
        try:
            await changes.delete(name, url)
        except ObjectStoreError:
            pass  # whoever writes may lack the right to delete: it is some bytes, which no table names
        changes.close()


def _places(options: Mapping[str, str]) -> dict[str, str]:
    """Return where a store is, in the words of our own objects. Credentials are the environment's."""
    found: dict[str, str] = {}
    for key, value in options.items():
        plain = key.lower().removeprefix("aws_")
        if plain in ("endpoint", "endpoint_url", "endpoint_url_s3"):
            found["endpoint"] = value
        elif plain in ("region", "default_region"):
            found["region"] = value
        elif plain == "virtual_hosted_style_request":
            found["path-style"] = "false" if value.lower() == "true" else "true"
    return found
