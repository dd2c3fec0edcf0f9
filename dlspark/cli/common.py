"""What the commands share: the namespace's URI, and how results are printed."""

from __future__ import annotations

import os
from enum import Enum
from typing import Annotated

import typer

from dlspark.errors import CallerError

UriOption = Annotated[
    str | None, typer.Option("--uri", help="Namespace URI, distributedlog://host:port/path. [env: DLSPARK_URI]")
]


class Output(str, Enum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="How the result is printed.")]


def namespace_uri(uri: str | None) -> str:
    """The URI given by option or environment. Raises CallerError where there is none."""
    found = uri or os.environ.get("DLSPARK_URI")
    if not found:
        raise CallerError(
            "no namespace was named",
            advice="Give --uri distributedlog://host:port/path or set DLSPARK_URI (dlspark sandbox status prints it)",
        )
    return found
