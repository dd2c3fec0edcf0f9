"""Regions by name: what may be one, and which one this process is in.

A region is the first part of a network location, `eu` of `/eu/rack1`. A process knows its own by what is said to it: a
setting, or the environment, which is right where one setting cannot be, as for Spark's executors in several regions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from metadata.foundation.errors import CallerError

REGION_VARIABLE: Final = "DLSPARK_REGION"
"""Environment variable with this process's own region, where its setting `region` says none."""


def region_named(name: str, key: str) -> str:
    """Return the name of a region, or the empty text, as it was given under `key`. Raises CallerError for what is the
    name of none: it is one part of a network location, and stands in a list with semicolons."""
    if any(character in "/;" or character.isspace() for character in name):
        raise CallerError(
            f"{key}: {name!r} is not the name of a region",
            advice="It is the first part of a network location, `eu` of `/eu/rack1`: without /, ; and spaces",
        )
    return name


def region_names(listed: str) -> tuple[str, ...]:
    """Return the regions of a list, `eu;us;asia`."""
    return tuple(one for part in listed.split(";") if (one := part.strip()))


def said_region(said: str, environment: Mapping[str, str] | None = None) -> str:
    """Return this process's own region: what was `said`, else what the environment says; empty where neither does.
    Raises CallerError for the name of none."""
    environment = os.environ if environment is None else environment
    return said or region_named(environment.get(REGION_VARIABLE, "").strip(), REGION_VARIABLE)


def region_of_task(said: str, environment: Mapping[str, str]) -> str | None:
    """Return the own region of a process that does a part of what another one has planned: what the environment says,
    else what was `said`, which is the planner's to say and the same for all of its processes; None where neither does.
    Raises CallerError for the name of none."""
    return region_named(environment.get(REGION_VARIABLE, "").strip(), REGION_VARIABLE) or said or None
