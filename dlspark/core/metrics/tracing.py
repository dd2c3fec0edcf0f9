"""Spans for OpenTelemetry: what the library spends time on, in the traces of the program that uses it.

Nothing of OpenTelemetry is imported unless spans are wanted (setting `tracingEnabled`, or a tracer provider given with
`Statistics`). The library needs the API only (extra `telemetry`); where spans go is set up by the program.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from dlspark.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

SCOPE = "dlspark"
_NOTHING: AbstractContextManager[None] = nullcontext()


class Tracing:
    """Makes no spans."""

    on = False
    """Whether to take the trouble of calling `past`."""

    def span(self, name: str, **attributes: str | int | None) -> AbstractContextManager[None]:
        """A block that is a span, and a failed one where it raises. Attributes that are None are left out."""
        return _NOTHING

    def past(self, name: str, seconds: float, error: BaseException | None, **attributes: str | int | None) -> None:
        """What has just ended and took so long was a span, part of the current one."""


class OpenTelemetry(Tracing):
    """Makes spans by a tracer."""

    on = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def span(self, name: str, **attributes: str | int | None) -> Iterator[None]:
        with self._tracer.start_as_current_span(name, attributes=_attributes(attributes)):
            yield

    def past(self, name: str, seconds: float, error: BaseException | None, **attributes: str | int | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        end_ns = time.time_ns()
        span = self._tracer.start_span(
            name, attributes=_attributes(attributes), start_time=end_ns - int(seconds * 1_000_000_000)
        )
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(end_ns)


def _attributes(attributes: dict[str, str | int | None]) -> dict[str, str | int]:
    return {f"dlspark.{name}": value for name, value in attributes.items() if value is not None}


NO_TRACING = Tracing()


def tracing(wanted: bool, provider: TracerProvider | None) -> Tracing:
    """By `provider`; without one, if `wanted`, by the program's own. Raises SettingsError without the extra."""
    if provider is None and not wanted:
        return NO_TRACING
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise SettingsError(
            "tracingEnabled takes OpenTelemetry, which is not installed", advice="pip install dlspark[telemetry]"
        ) from error
    return OpenTelemetry(trace.get_tracer(SCOPE, tracer_provider=provider))
