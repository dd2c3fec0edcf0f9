"""Metrics, latency warnings, spans and structured logs of the core; docs/metrics.md lists what is measured."""

from dlspark.core.metrics.catalog import Measures
from dlspark.core.metrics.meter import NO_STATISTICS, Meter, Statistics, serve_metrics

__all__ = ["NO_STATISTICS", "Measures", "Meter", "Statistics", "serve_metrics"]
